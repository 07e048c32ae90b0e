"""Truncated noise against the claim of its release: the exact delta of one coordinate, and what escapes in many dimensions."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leakaudit._util.bisection import crossing
from leakaudit.bounds.mechanisms import Additive, truncated_laplace
from leakaudit.lint.case import Case
from leakaudit.lint.pitfall import Pitfall
from leakaudit.verdict import Verdict
from leakaudit.victim import Claim

MORE, ROUNDING = 1 + 1e-6, 1e-6
SQRT_PI = math.sqrt(math.pi)


def check(case: Case) -> Iterator[Pitfall]:
    """Yield a claim of one release with truncated noise whose true delta is larger, for a change of the recorded `sensitivity`."""
    if (moved := case.number("sensitivity")) <= 0:
        return
    for claim in case.claims:
        if claim.rounds != 1 or not claim.delta or claim.std is None:
            continue
        if (noise := _noise(case.laws, claim, moved)) is not None:
            yield from _judge(noise, claim, moved, case.trace.layout.size)
            return


def _judge(noise: Additive, claim: Claim, moved: float, coordinates: int) -> Iterator[Pitfall]:
    epsilon, delta = claim.epsilon or 0.0, claim.delta or 0.0
    alone = noise.delta(epsilon, moved)
    spread = noise.escape([moved / math.sqrt(coordinates)] * coordinates)
    if max(alone, spread) <= delta * MORE:
        return
    figures = {
        "epsilon": epsilon,
        "delta": delta,
        "one_coordinate": alone,
        "escape": spread,
        "coordinates": coordinates,
    }
    says = f"({epsilon:.4g}, {delta:g}) of {claim.source} with noise up to {noise.width:.4g}: the true delta is at least "
    if spread > max(alone, delta * MORE):
        says += f"{spread:.3g} where a record moves all {coordinates} coordinates a little: some fall where the other data cannot put them"
    else:
        says += f"{alone:.3g} where a record moves one coordinate"
    yield Pitfall(10, Verdict.REFUTED, says, figures)


def _noise(laws: frozenset[str], claim: Claim, moved: float) -> Additive | None:
    """Return the noise of a claim from its law and standard deviation, None where they do not fit a known calibration."""
    if "truncated_laplace" in laws:
        return truncated_laplace(claim.epsilon or 1.0, claim.delta or 0.1, moved)
    if "truncated_gaussian" not in laws or not claim.epsilon or claim.std is None:
        return None
    scale = moved / math.sqrt(claim.epsilon)  # DP-dKM, Theorem 6
    if not 0 < claim.std < scale / math.sqrt(2) * (1 + ROUNDING):
        return None
    std = claim.std
    edge = crossing(lambda u: _std(scale, u) >= std, 1e-6, 30.0, side="above")
    return Additive(2, scale, scale * edge)


def _std(scale: float, u: float) -> float:
    """Return the standard deviation of exp(-(z / scale)^2) on [-u scale, u scale]."""
    return scale * math.sqrt(max(0.0, 0.5 - u * math.exp(-u * u) / (SQRT_PI * math.erf(u))))
