"""The noise of a protocol from an epsilon: what a scenario asks for, and what the paper needs.

A victim whose paper states its noise for an epsilon has its own constant ``epsilon``. Every other
victim with noise takes ``epsilon`` too, and the constant that scales its noise is found from it: by
its claims, which are solved for the noise, or by the exact view (`judging.auditing.levels`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from leakaudit._util.bisection import crossing, geometric
from leakaudit.core.claim import Claim
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Json, Setting

CLAIM = "claim"
EXACT = "exact"
METHODS = (CLAIM, EXACT)
# Constants that every noisy victim has, unless it declares them itself.
EPSILON = "epsilon"
STD = "sigma"  # name of the noise that an epsilon replaces
HELPS = {
    EPSILON: "if given, the noise is set for it: by the paper's theorem, or with "
    "--calibrate exact by the exact view of the strongest adversary",
    "delta": "delta of that epsilon; by default that of the claim, else 1e-5",
    "sensitivity": "largest change of a gradient by one record, for --calibrate exact; by default "
    "that of the claim, else of the clip",
    "smoothness": "Lipschitz constant of a node's gradients, for --calibrate exact of protocols "
    "that do not send their models",
}

# Range in which the noise constant is searched, a choice: outside it, the noise of gradients with a
# norm near 1 is negligible, or hides them completely.
LOW = 1e-9
HIGH = 1e9


@dataclass(frozen=True)
class Target:
    """The noise that a scenario asks for by an epsilon."""

    epsilon: float
    constant: str  # constant of the victim that sets its noise
    delta: float | None  # None for that of the claim
    sensitivity: float | None  # largest change of a gradient; None for that of the claim or clip
    smoothness: float | None  # Lipschitz constant of a node's gradients; None if unknown


@dataclass(frozen=True)
class Calibrated:
    """The noise that was found for a target, and what it rests on."""

    epsilon: float
    delta: float | None
    constant: str
    value: float
    method: str  # one of `METHODS`
    basis: str  # the theorem, or the adversary whose view is the worst

    @property
    def words(self) -> str:
        """What whoever records is told."""
        of = f"epsilon {self.epsilon:g}"
        if self.delta:
            of += f" at delta {self.delta:g}"
        return f"{self.constant} = {self.value:.6g} gives {of}, {self.basis}"

    def to_json(self) -> dict[str, Json]:
        """Return what the provenance of a trace says about its noise."""
        return dict(vars(self))


def replaces(known: Collection[str], constant: str) -> bool:
    """Return whether an epsilon stands in place of the noise, and not beside its factor."""
    return constant == STD or EPSILON not in known


def added(known: Collection[str], constant: str) -> tuple[str, ...]:
    """Return the constants that a victim takes besides its own, if it has noise."""
    if constant not in known:
        return ()
    return tuple(name for name in HELPS if name not in known)


def target(
    settings: Mapping[str, Any], known: Collection[str], constant: str, exact: bool
) -> Target | None:
    """Return what is to be found; None if nothing is, or if the victim computes it itself."""
    if not exact and constant not in known:
        return None  # its own epsilon, or an argument of the model
    if exact and EPSILON not in settings:
        raise LeakauditError("calibrate=exact needs an epsilon; set epsilon=…")
    epsilon = _number(settings, EPSILON)
    if not epsilon:
        return None
    if constant not in known:
        raise LeakauditError("it adds no noise, so no epsilon can set it")
    if _number(settings, constant) and (exact or replaces(known, constant)):
        raise LeakauditError(
            f"expected epsilon or {constant}, got both; epsilon sets {constant} itself"
        )
    if not exact:
        if EPSILON in known:
            return None
        for name in added(known, constant):
            if name != EPSILON and name in settings:
                raise LeakauditError(f"{name} goes with calibrate=exact; omit it")
    given = {name: _number(settings, name) for name in HELPS if name != EPSILON}
    return Target(epsilon, constant, **given)


def dropped(
    settings: Mapping[str, Any], constant: str, noiseless: Mapping[str, Setting]
) -> LeakauditError | None:
    """Return what is wrong with a given level of noise where the victim adds none."""
    for name in (EPSILON, constant):
        value = settings.get(name)
        if value not in (None, "none", ""):
            silent = ", ".join(f"{key}={off}" for key, off in noiseless.items())
            return LeakauditError(
                f"{silent} adds no noise, so {name}={value} would have no effect; "
                f"set another {' and '.join(noiseless)}, or omit {name}"
            )
    return None


def _number(settings: Mapping[str, Any], name: str) -> float | None:
    value = settings.get(name)
    if value in (None, "none", ""):
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf or (name == EPSILON and not number):
        raise LeakauditError(f"{name}: expected a finite number > 0, got {value!r:.40}")
    return number or None


def by_claims(
    epsilon: float, constant: str, name: str, claims: Callable[[float], Sequence[Claim]]
) -> tuple[float, Claim]:
    """Return the noise at which the weakest of the paper's claims states this epsilon.

    It is rounded to the private side.

    Args:
        claims: Returns the claims at a value of the constant; their epsilon is monotone in it.
    """

    def claim(noise: float) -> Claim:
        said = [one for one in claims(noise) if one.epsilon is not None]
        if not said:
            raise LeakauditError(
                f"{name}: its paper claims no epsilon for these constants, so only the exact view "
                'can set the noise; use calibrate=exact, or noise = "exact" in a plan'
            )
        return max(said, key=_epsilon)

    rising = _epsilon(claim(HIGH)) > _epsilon(claim(LOW))  # a rate of noise, or an epsilon itself
    least, most = sorted((_epsilon(claim(LOW)), _epsilon(claim(HIGH))))
    if not least <= epsilon <= most:
        raise LeakauditError(
            f"epsilon: expected one that the paper claims for some {constant} between {LOW:g} and "
            f"{HIGH:g} (from {least:.4g} to {most:.4g}), got {epsilon:g}"
        )

    def moved(noise: float) -> bool:
        return (_epsilon(claim(noise)) <= epsilon) != rising

    side: Literal["above", "below"] = "below" if rising else "above"
    value = crossing(moved, LOW, HIGH, side=side, middle=geometric)
    return value, claim(value)


def _epsilon(claim: Claim) -> float:
    assert claim.epsilon is not None
    return claim.epsilon
