"""The only place where guarantees are composed.

Every kind of guarantee defines the sum of two releases, the second of which may depend on the
result of the first. All guarantees must hold under the same adjacency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, TypeVar

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds import pld
from leakaudit.theory.bounds.approximate import Approximate
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import Guarantee
from leakaudit.theory.bounds.pld import Pld
from leakaudit.theory.bounds.renyi import ORDERS, Rdp, randomised_response
from leakaudit.theory.bounds.zcdp import Zcdp

# The kinds into which a mixture is translated, in order of preference.
KINDS: tuple[type[Guarantee], ...] = (Gdp, Approximate, Zcdp, Rdp, Pld)

G = TypeVar("G", bound=Guarantee)


def compose(guarantees: Iterable[Guarantee], into: type[Guarantee] | None = None) -> Guarantee:
    """Return the guarantee of all releases together.

    Args:
        guarantees: Of all releases, under one adjacency.
        into: The kind to compute with; by default the common kind of all, or the first of `KINDS`
            into which all can be translated. Pld is the tightest for a mixture.

    Raises:
        LeakauditError: There is no release, no common adjacency, or no such kind.
    """
    parts = list(guarantees)
    if not parts:
        raise LeakauditError("expected at least one guarantee to compose, got none")
    adjacencies = {part.adjacency for part in parts}
    if len(adjacencies) > 1:
        raise LeakauditError(
            f"expected one adjacency, got: {'; '.join(sorted(adjacencies))}; "
            "state all guarantees under the same one"
        )
    kinds = {type(part) for part in parts}
    if into is not None:
        kind = into
    elif len(kinds) == 1:
        kind = kinds.pop()
    else:
        kind = _common(parts)
    return reduce(lambda a, b: a.plus(b), [translate(part, kind) for part in parts])


def repeat(guarantee: G, times: int) -> G:
    """Return the guarantee of the same kind of release made several times, in log2(times) steps.

    Args:
        guarantee: Of one release.
        times: Number of releases, at least 1.
    """
    if times < 1:
        raise LeakauditError(f"expected at least one release, got {times}")
    # Square and multiply: `power` is the guarantee of 2^k releases, and `total` collects those of
    # the binary digits of `times`.
    total: G | None = None
    power = guarantee
    while True:
        if times % 2:
            total = power if total is None else total.plus(power)
        times //= 2
        if times == 0 and total is not None:
            return total
        power = power.plus(power)


def translate(guarantee: Guarantee, kind: type[Guarantee]) -> Guarantee:
    """Return what a guarantee implies in another kind.

    Args:
        guarantee: The guarantee to translate.
        kind: The class of the result.

    Raises:
        LeakauditError: No translation is known, or it would lose everything.
    """
    if isinstance(guarantee, kind):
        return guarantee
    how = TRANSLATIONS.get((type(guarantee), kind))
    if how is None or not _possible(guarantee, kind):
        raise LeakauditError(
            f"expected a guarantee that reads as {kind.__name__}, got {type(guarantee).__name__}; "
            "choose its (epsilon, delta) first"
        )
    return how(guarantee)


def _gdp_to_zcdp(g: Gdp) -> Zcdp:
    return Zcdp(g.mu**2 / 2, g.adjacency)  # Bun, Steinke 2016, Proposition 1.6


def _gdp_to_rdp(g: Gdp) -> Rdp:
    return Rdp(tuple(a * g.mu**2 / 2 for a in ORDERS), g.adjacency)


def _gdp_to_pld(g: Gdp) -> Pld:
    return pld.gaussian(g.mu, g.adjacency)


def _zcdp_to_rdp(g: Zcdp) -> Rdp:
    return Rdp(tuple(a * g.rho for a in ORDERS), g.adjacency)


def _approximate_to_zcdp(g: Approximate) -> Zcdp:
    # Bun, Steinke 2016, Proposition 1.4
    return Zcdp(sum(n * e * e for e, _, n in g.terms) / 2, g.adjacency)


def _approximate_to_rdp(g: Approximate) -> Rdp:
    def divergence(order: float) -> float:
        return sum(n * randomised_response(e, order) for e, _, n in g.terms)

    return Rdp(tuple(divergence(a) for a in ORDERS), g.adjacency)


def _approximate_to_pld(g: Approximate) -> Pld:
    return pld.of_terms(g.terms, g.adjacency)


TRANSLATIONS: dict[tuple[type[Guarantee], type[Guarantee]], Callable[[Any], Guarantee]] = {
    (Gdp, Zcdp): _gdp_to_zcdp,
    (Gdp, Rdp): _gdp_to_rdp,
    (Gdp, Pld): _gdp_to_pld,
    (Zcdp, Rdp): _zcdp_to_rdp,
    (Approximate, Zcdp): _approximate_to_zcdp,
    (Approximate, Rdp): _approximate_to_rdp,
    (Approximate, Pld): _approximate_to_pld,
}


def _possible(guarantee: Guarantee, kind: type[Guarantee]) -> bool:
    if isinstance(guarantee, kind):
        return True
    if isinstance(guarantee, Approximate) and guarantee.lost > 0 and kind in (Zcdp, Rdp):
        return False
    return (type(guarantee), kind) in TRANSLATIONS


def _common(parts: list[Guarantee]) -> type[Guarantee]:
    for kind in KINDS:
        if all(_possible(part, kind) for part in parts):
            return kind
    names = ", ".join(sorted({type(part).__name__ for part in parts}))
    raise LeakauditError(
        f"expected guarantees with a kind in common, got {names}; "
        "choose an (epsilon, delta) of each and compose those"
    )
