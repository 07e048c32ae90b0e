"""The one place where guarantees are composed: every kind says what two releases cost, the rest follows here.

Composition is adaptive: a release may be chosen from the results of earlier ones. All guarantees must hold under one adjacency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, TypeVar

from leakaudit.bounds import pld
from leakaudit.bounds.approximate import Approximate
from leakaudit.bounds.gaussian import Gdp
from leakaudit.bounds.guarantee import Guarantee
from leakaudit.bounds.pld import Pld
from leakaudit.bounds.renyi import ORDERS, Rdp, randomised_response
from leakaudit.bounds.zcdp import Zcdp
from leakaudit.errors import LeakauditError

KINDS: tuple[type[Guarantee], ...] = (
    Gdp,
    Approximate,
    Zcdp,
    Rdp,
    Pld,
)  # in the order in which a mixture is put into one of them
G = TypeVar("G", bound=Guarantee)


def compose(guarantees: Iterable[Guarantee], into: type[Guarantee] | None = None) -> Guarantee:
    """Return the guarantee of all releases together.

    into: the kind to compute with; by default the kind of all, or the first of `KINDS` into which all can be put. Pld is the
    tightest for a mixture. Raises LeakauditError for no release, several adjacencies, or kinds that have none in common.
    """
    parts = list(guarantees)
    if not parts:
        raise LeakauditError("expected at least one guarantee to compose, got none")
    if len(found := {p.adjacency for p in parts}) > 1:
        raise LeakauditError(
            f"expected one adjacency, got: {'; '.join(sorted(found))}; state all guarantees under the same one"
        )
    same = {type(p) for p in parts}
    kind = into or (same.pop() if len(same) == 1 else _common(parts))
    return reduce(lambda a, b: a.plus(b), [translate(p, kind) for p in parts])


def repeat(guarantee: G, times: int) -> G:
    """Return the guarantee of the same kind of release made `times` times, in log2(times) steps."""
    if times < 1:
        raise LeakauditError(f"expected at least one release, got {times}")
    total, power = None, guarantee
    while True:
        if times % 2:
            total = power if total is None else total.plus(power)
        if (times := times // 2) == 0 and total is not None:
            return total
        power = power.plus(power)


def translate(guarantee: Guarantee, kind: type[Guarantee]) -> Guarantee:
    """Return what a guarantee implies in another kind; raises LeakauditError where that is not known without loss of all."""
    if isinstance(guarantee, kind):
        return guarantee
    if (how := TRANSLATIONS.get((type(guarantee), kind))) is None or not _possible(guarantee, kind):
        raise LeakauditError(
            f"expected a guarantee that reads as {kind.__name__}, got {type(guarantee).__name__}; choose its (epsilon, delta) first"
        )
    return how(guarantee)


TRANSLATIONS: dict[tuple[type[Guarantee], type[Guarantee]], Callable[[Any], Guarantee]] = {
    (Gdp, Zcdp): lambda g: Zcdp(g.mu**2 / 2, g.adjacency),  # Bun, Steinke 2016, Proposition 1.6
    (Gdp, Rdp): lambda g: Rdp(tuple(a * g.mu**2 / 2 for a in ORDERS), g.adjacency),
    (Zcdp, Rdp): lambda g: Rdp(tuple(a * g.rho for a in ORDERS), g.adjacency),
    (Approximate, Zcdp): lambda g: Zcdp(
        sum(n * e * e for e, _, n in g.terms) / 2, g.adjacency
    ),  # Bun, Steinke 2016, Proposition 1.4
    (Approximate, Rdp): lambda g: Rdp(
        tuple(sum(n * randomised_response(e, a) for e, _, n in g.terms) for a in ORDERS),
        g.adjacency,
    ),
    (Gdp, Pld): lambda g: pld.gaussian(g.mu, g.adjacency),
    (Approximate, Pld): lambda g: pld.of_terms(g.terms, g.adjacency),
}


def _possible(guarantee: Guarantee, kind: type[Guarantee]) -> bool:
    """Whether a translation exists and loses nothing: Renyi divergences are infinite where something leaks with chance delta."""
    leaks = isinstance(guarantee, Approximate) and guarantee.lost > 0 and kind in (Zcdp, Rdp)
    return isinstance(guarantee, kind) or ((type(guarantee), kind) in TRANSLATIONS and not leaks)


def _common(parts: list[Guarantee]) -> type[Guarantee]:
    for kind in KINDS:
        if all(_possible(p, kind) for p in parts):
            return kind
    names = ", ".join(sorted({type(p).__name__ for p in parts}))
    raise LeakauditError(
        f"expected guarantees with a kind in common, got {names}; choose an (epsilon, delta) of each and compose those"
    )
