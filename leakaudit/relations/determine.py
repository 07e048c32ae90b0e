"""Which combinations of vectors a view determines, and the formula that computes them (docs/relations.md, identify).

c'x is determined up to noise iff c lies in row(F), without noise iff (c, 0) lies in row([F B]). Every unknown but the targets is
eliminated; the rows left over are a basis of what is determined. All decisions are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias, TypeVar

import torch

from leakaudit.errors import LeakauditError
from leakaudit.relations.expression import Expression
from leakaudit.relations.knowledge import Knowledge
from leakaudit.relations.modular import (
    PRIMES,
    Row,
    echelon,
    eliminate,
    minimal_span,
    normal,
    rational,
    residue,
    subtract,
)

Basis: TypeAlias = Literal["span", "echelon"]
Key = TypeVar("Key", bound=Hashable)
DRAWS = 2  # random parameters of a generic rank


def determined(
    knowledge: Knowledge,
    targets: Sequence[Expression],
    *,
    up_to_noise: bool = False,
    form: Basis = "span",
) -> list[Expression]:
    """Return a basis of the combinations of the target vectors that are determined, in exact rationals.

    up_to_noise: also those that are known only with noise on them. form: ``span`` for the shortest rows from first to last
    target, ``echelon`` for the reduced row echelon form; both in the targets' order.
    """
    return determined_each(knowledge, {0: targets}, up_to_noise=up_to_noise, form=form)[0]


def determined_each(
    knowledge: Knowledge,
    groups: Mapping[Key, Sequence[Expression]],
    *,
    up_to_noise: bool = False,
    form: Basis = "span",
) -> dict[Key, list[Expression]]:
    """Do what `determined` does for several groups of targets, such as every node's gradients; what they share is eliminated once."""
    orders = {key: [t.vector for t in targets] for key, targets in groups.items()}

    def solve(prime: int) -> dict[Key, list[Row]]:
        found = _left(knowledge, orders, up_to_noise, prime)
        return {
            key: minimal_span(rows, orders[key], prime) if form == "span" else rows
            for key, rows in found.items()
        }

    return _in_rationals(solve, knowledge)


def rank(knowledge: Knowledge, targets: Sequence[Expression], *, up_to_noise: bool = False) -> int:
    """Return the number of independent combinations of the targets that are determined."""
    return len(_left(knowledge, {0: [t.vector for t in targets]}, up_to_noise, PRIMES[0])[0])


def basis(combinations: Sequence[Expression]) -> list[Expression]:
    """Return those combinations, in order, that the ones before do not already give."""
    prime, pivots, kept = PRIMES[0], dict[int, Row](), list[Expression]()
    for combination in combinations:
        row = {k: residue(v, prime) for k, v in combination.terms.items()}
        while row and (column := min(row)) in pivots:
            row = subtract(row, pivots[column], column, prime)
        if row:
            pivots[min(row)] = normal(row, min(row), prime)
            kept.append(combination)
    return kept


def explain(
    knowledge: Knowledge, combination: Expression, *, up_to_noise: bool = False
) -> Expression | None:
    """Return the formula, over known vectors, that computes a combination; None where it is not determined.

    With up_to_noise the formula may hold noise vectors: they are its error. One formula of many; `estimate` finds the quietest.
    """
    tag = len(knowledge.declared.vectors)
    unknown = knowledge.flat if up_to_noise else knowledge.flat + knowledge.noise

    def solve(prime: int) -> dict[int, list[Row]]:
        question = {k: residue(v, prime) for k, v in combination.terms.items()} | {tag: prime - 1}
        rows = [{k: residue(v, prime) for k, v in r.terms.items()} for r in knowledge.relations]
        outside = (
            combination.terms.keys() - knowledge.known
        )  # unknowns that occur in no relation cannot be cleared
        left = eliminate([*rows, question], {*unknown, *outside}, prime)
        answer = min((r for r in left if tag in r), key=len, default=None)
        if answer is None:
            return {0: []}
        scale = pow(-answer[tag], -1, prime)
        return {0: [{k: v * scale % prime for k, v in answer.items() if k != tag}]}

    found = _in_rationals(solve, knowledge)[0]
    return found[0] if found else None


def is_determined(
    knowledge: Knowledge, combination: Expression, *, up_to_noise: bool = False
) -> bool:
    """Return whether a combination of vectors, known ones included, is determined."""
    dropped, prime = knowledge.known | frozenset(knowledge.noise if up_to_noise else ()), PRIMES[0]
    tag = len(knowledge.declared.vectors)
    question = {
        k: residue(v, prime) for k, v in combination.terms.items() if k not in knowledge.known
    } | {tag: prime - 1}
    rows = (
        {k: residue(v, prime) for k, v in r.terms.items() if k not in dropped}
        for r in knowledge.relations
    )
    left = eliminate(
        [*rows, question], {*knowledge.flat, *knowledge.noise, *question} - {tag}, prime
    )
    return any(tag in r for r in left)


@dataclass(frozen=True)
class Generic:
    """Ranks of what is determined: at the declared parameters, and the largest at parameters drawn at random."""

    here: int
    generic: int

    @property
    def structural(self) -> bool:
        """Whether the leak comes from the protocol's structure and not from a coincidence of its constants."""
        return self.here == self.generic


def generic(
    declare: Callable[..., tuple[Knowledge, Sequence[Expression]]],
    parameters: Mapping[str, Fraction],
    generator: torch.Generator,
    *,
    up_to_noise: bool = False,
) -> Generic:
    """Compare the rank at the parameters with the rank at random rationals in their place (generic rank).

    declare: called with the parameters as keyword arguments; returns an adversary's knowledge and the targets.
    """
    if not parameters:
        raise LeakauditError("generic rank: expected at least one parameter to vary, got none")
    here = rank(*declare(**parameters), up_to_noise=up_to_noise)
    drawn = [{name: _draw(generator) for name in parameters} for _ in range(DRAWS)]
    return Generic(here, max(rank(*declare(**values), up_to_noise=up_to_noise) for values in drawn))


def _draw(generator: torch.Generator) -> Fraction:
    """Return a rational in (0, 1) whose denominator is prime, so that nothing cancels by chance."""
    return Fraction(int(torch.randint(1, 10**6, (), generator=generator)), 10**6 + 3)


def _left(
    knowledge: Knowledge, orders: Mapping[Key, list[int]], up_to_noise: bool, prime: int
) -> dict[Key, list[Row]]:
    """Return the echelon form, per group, of the rows left over when every unknown but the group's targets is eliminated."""
    dropped = knowledge.known | frozenset(knowledge.noise if up_to_noise else ())
    if seen := [k for order in orders.values() for k in order if k in dropped]:
        raise LeakauditError(
            f"{knowledge.declared.vectors[seen[0]].label} is no target: this adversary knows it, or it is noise"
        )
    rows = (
        {k: residue(v, prime) for k, v in r.terms.items() if k not in dropped}
        for r in knowledge.relations
    )
    targets = frozenset(k for order in orders.values() for k in order)
    unknown = [*knowledge.flat, *(() if up_to_noise else knowledge.noise)]
    shared = eliminate(rows, (k for k in unknown if k not in targets), prime)
    return {
        key: echelon(eliminate(shared, targets.difference(order), prime), order, prime)
        for key, order in orders.items()
    }


def _in_rationals(
    solve: Callable[[int], Mapping[Key, Iterable[Row]]], knowledge: Knowledge
) -> dict[Key, list[Expression]]:
    """Solve modulo one prime after the other until every number is a short rational."""
    home = knowledge.declared.vectors
    for prime in PRIMES:
        found: dict[Key, list[Expression]] = {}
        for key, rows in solve(prime).items():
            forms = [{k: rational(v, prime) for k, v in row.items()} for row in rows]
            found[key] = [
                Expression(home, {k: v for k, v in f.items() if v is not None})
                for f in forms
                if None not in f.values()
            ]
            if len(found[key]) < len(forms):
                break
        else:
            return found
    raise LeakauditError(
        "the combination is determined, but its rational coefficients have more than 600 digits; use fewer rounds"
    )
