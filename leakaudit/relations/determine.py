"""Which combinations of vectors a view determines, and by which formula.

See docs/relations.md, identify. c'x is determined up to noise iff c lies in row(F), without noise
iff (c, 0) lies in row([F B]). Every unknown but the targets is eliminated; the rows left over are a
basis of what is determined. All decisions are exact.
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
# Random parameters of a generic rank; one fails with a chance of about 1e-6 for each degree of a
# minor.
DRAWS = 2


def determined(
    knowledge: Knowledge,
    targets: Sequence[Expression],
    *,
    up_to_noise: bool = False,
    form: Basis = "span",
) -> list[Expression]:
    """Return a basis of the combinations of target vectors that are determined, in exact rationals.

    Args:
        knowledge: The relations in use, and what is known.
        targets: Unknown vectors.
        up_to_noise: Return also those that are known only with noise on them.
        form: ``span`` for the shortest rows from first to last target, ``echelon`` for the reduced
            row echelon form; both in the targets' order.
    """
    return determined_each(knowledge, {0: targets}, up_to_noise=up_to_noise, form=form)[0]


def determined_each(
    knowledge: Knowledge,
    groups: Mapping[Key, Sequence[Expression]],
    *,
    up_to_noise: bool = False,
    form: Basis = "span",
) -> dict[Key, list[Expression]]:
    """Do what `determined` does for several groups of targets; what they share is eliminated once.

    Args:
        knowledge: The relations in use, and what is known.
        groups: Targets by any key, such as every node's gradients.
        up_to_noise: As for `determined`.
        form: As for `determined`.
    """
    orders = {key: [t.vector for t in targets] for key, targets in groups.items()}

    def solve(prime: int) -> dict[Key, list[Row]]:
        found = _left(knowledge, orders, up_to_noise, prime)
        return {
            key: minimal_span(rows, orders[key], prime) if form == "span" else rows
            for key, rows in found.items()
        }

    return _in_rationals(solve, knowledge)


def rank(knowledge: Knowledge, targets: Sequence[Expression], *, up_to_noise: bool = False) -> int:
    """Return the number of independent combinations of the targets that are determined.

    Args:
        knowledge: The relations in use, and what is known.
        targets: Unknown vectors.
        up_to_noise: Count also those that are known only with noise on them.
    """
    return len(_left(knowledge, {0: [t.vector for t in targets]}, up_to_noise, PRIMES[0])[0])


def basis(combinations: Sequence[Expression]) -> list[Expression]:
    """Return those combinations, in order, that the ones before do not already give.

    Args:
        combinations: Of vectors of one declaration.
    """
    prime = PRIMES[0]
    pivots: dict[int, Row] = {}  # first column -> row with a 1 there
    kept: list[Expression] = []
    for combination in combinations:
        row = {k: residue(v, prime) for k, v in combination.terms.items()}
        while row and min(row) in pivots:
            column = min(row)
            row = subtract(row, pivots[column], column, prime)
        if row:
            pivots[min(row)] = normal(row, min(row), prime)
            kept.append(combination)
    return kept


def explain(
    knowledge: Knowledge, combination: Expression, *, up_to_noise: bool = False
) -> Expression | None:
    """Return the formula, over known vectors, that computes a combination; None if there is none.

    It is one formula of many; `estimate` finds the one of least variance. The combination itself is
    added to the relations, with a tag of its own. After elimination of all unknowns, a row that
    still holds the tag is the formula.

    Args:
        knowledge: The relations in use, and what is known.
        combination: Of any vectors.
        up_to_noise: Allow noise vectors in the formula: they are its error.
    """
    tag = len(knowledge.declared.vectors)
    unknown = knowledge.flat if up_to_noise else knowledge.flat + knowledge.noise

    def solve(prime: int) -> dict[int, list[Row]]:
        question = {k: residue(v, prime) for k, v in combination.terms.items()} | {tag: prime - 1}
        rows = [{k: residue(v, prime) for k, v in r.terms.items()} for r in knowledge.relations]
        # Unknowns that occur in no relation cannot be cleared, and so leave no answer.
        outside = combination.terms.keys() - knowledge.known
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
    """Return whether a combination of vectors is determined.

    Args:
        knowledge: The relations in use, and what is known.
        combination: Of any vectors, known ones included.
        up_to_noise: Accept noise as an error.
    """
    prime = PRIMES[0]
    dropped = knowledge.known
    if up_to_noise:
        dropped = dropped | frozenset(knowledge.noise)
    tag = len(knowledge.declared.vectors)
    unknown = {k: v for k, v in combination.terms.items() if k not in knowledge.known}
    question = {k: residue(v, prime) for k, v in unknown.items()}
    question[tag] = prime - 1
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
    """Ranks of what is determined.

    Attributes:
        here: At the declared parameters.
        generic: The largest at parameters drawn at random.
    """

    here: int
    generic: int

    @property
    def structural(self) -> bool:
        """Whether the leak comes from the protocol's structure, not from its constants."""
        return self.here == self.generic


def generic(
    declare: Callable[..., tuple[Knowledge, Sequence[Expression]]],
    parameters: Mapping[str, Fraction],
    generator: torch.Generator,
    *,
    up_to_noise: bool = False,
) -> Generic:
    """Compare the rank at the parameters with the rank at random rationals in their place.

    The latter is the generic rank. A rank is the largest for almost all parameters, so parameters
    at random show what the structure of the protocol gives away.

    Args:
        declare: Called with the parameters as keyword arguments; returns an adversary's knowledge
            and the targets.
        parameters: At least one, by name.
        generator: Draws the random parameters.
        up_to_noise: As for `determined`.
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
    """Return, per group, the echelon form of what is left without every other unknown."""
    dropped = knowledge.known
    unknown = list(knowledge.flat)
    if up_to_noise:
        dropped = dropped | frozenset(knowledge.noise)
    else:
        unknown += knowledge.noise
    targets = frozenset(k for order in orders.values() for k in order)
    seen = [k for order in orders.values() for k in order if k in dropped]
    if seen:
        raise LeakauditError(
            f"{knowledge.declared.vectors[seen[0]].label} is no target: this adversary knows it, "
            "or it is noise"
        )
    rows = (
        {k: residue(v, prime) for k, v in r.terms.items() if k not in dropped}
        for r in knowledge.relations
    )
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
        "the combination is determined, but its rational coefficients have more than 600 digits; "
        "use fewer rounds"
    )
