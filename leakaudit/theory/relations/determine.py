"""Which combinations of vectors a view determines, and by which formula."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from typing import Literal, TypeAlias

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.relations.expression import Expression, Vector, places
from leakaudit.theory.relations.knowledge import Knowledge
from leakaudit.theory.relations.modular import (
    PRIMES,
    Row,
    Staircase,
    echelon,
    eliminate,
    minimal_span,
    modular,
    normal,
    rational,
)

# See docs/relations.md, identify. c'x is determined up to noise iff c lies in row(F), without noise
# iff (c, 0) lies in row([F B]). Every unknown except the targets is eliminated; the remaining rows
# are a basis of what is determined. All decisions are exact.

Basis: TypeAlias = Literal["span", "echelon"]


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
        up_to_noise: Also return combinations that are known only with noise.
        form: ``span`` for the rows that are shortest from first to last target, ``echelon`` for the
            reduced row echelon form; both in the targets' order.
    """
    order = places(targets)
    dropped = knowledge.used & knowledge.known
    unknown = {*knowledge.flat, *knowledge.noise}
    if up_to_noise:
        dropped = dropped.union(knowledge.noise)
    for k in order:
        if k in knowledge.known or k in dropped:
            raise LeakauditError(
                f"{knowledge.declared.vectors[k].label} cannot be a target: this adversary "
                "knows it, or it is noise"
            )

    def solve(prime: int) -> list[Row]:
        left = eliminate(knowledge.modular(prime, dropped), unknown.difference(order), prime)
        rows = echelon(left, order, prime)
        return minimal_span(rows, order, prime) if form == "span" else rows

    return _in_rationals(solve, knowledge.declared.vectors)


def basis(combinations: Sequence[Expression]) -> list[Expression]:
    """Return, in order, the combinations that do not follow from those before them."""
    stairs = Staircase()
    return [form for form in combinations if stairs.add(modular(form.terms))]


def eliminated(
    combinations: Sequence[Expression], unwanted: Collection[int], order: Sequence[int]
) -> list[Expression]:
    """Return a basis of the sums of multiples of combinations that do not contain some vectors."""
    if not combinations:
        return []

    def solve(prime: int) -> list[Row]:
        rows = [modular(combination.terms, prime) for combination in combinations]
        left = eliminate(rows, unwanted, prime)
        return minimal_span(echelon(left, order, prime), order, prime)

    return _in_rationals(solve, combinations[0].home)


def explain(
    knowledge: Knowledge, combination: Expression, *, up_to_noise: bool = False
) -> Expression | None:
    """Return the formula, over known vectors, that computes a combination; None if there is none.

    It is one of many; `estimate` finds the one of least variance.

    Args:
        knowledge: The relations in use, and what is known.
        combination: Of any vectors.
        up_to_noise: Allow noise vectors in the formula, which are its error.
    """
    tag = len(knowledge.declared.vectors)

    def solve(prime: int) -> list[Row]:
        answers = _answers(knowledge, combination, up_to_noise, prime)
        if not answers:
            return []
        answer = normal(min(answers, key=len), tag, prime)
        return [{k: prime - v for k, v in answer.items() if k != tag}]

    found = _in_rationals(solve, knowledge.declared.vectors)
    return found[0] if found else None


def is_determined(
    knowledge: Knowledge, combination: Expression, *, up_to_noise: bool = False
) -> bool:
    """Return whether a combination of vectors is determined.

    Args:
        knowledge: The relations in use, and what is known.
        combination: Of any vectors, including known ones.
        up_to_noise: Accept noise as an error.
    """
    return bool(_answers(knowledge, combination, up_to_noise, PRIMES[0], knowledge.known))


def _answers(
    knowledge: Knowledge,
    combination: Expression,
    up_to_noise: bool,
    prime: int,
    dropped: Collection[int] = (),
) -> list[Row]:
    """Return rows that state the value of a combination, minus a tag that represents it."""
    # Unknowns that do not occur in any relation cannot be eliminated, and therefore leave no
    # answer.
    unknown = {*knowledge.flat, *(combination.terms.keys() - knowledge.known)}
    if not up_to_noise:
        unknown.update(knowledge.noise)
    # The combination minus the tag is one more row. A remaining row without unknowns but with the
    # tag states the value.
    tag = len(knowledge.declared.vectors)
    question = modular(combination.terms, prime, dropped)
    question[tag] = prime - 1
    left = eliminate([*knowledge.modular(prime, dropped), question], unknown, prime)
    return [row for row in left if tag in row]


def _in_rationals(
    solve: Callable[[int], Sequence[Row]], home: Sequence[Vector]
) -> list[Expression]:
    """Solve modulo one prime after another until every number is a short rational."""
    for prime in PRIMES:
        rows = solve(prime)
        forms = [_rational_terms(row, prime) for row in rows]
        found = [Expression(home, terms) for terms in forms if terms is not None]
        if len(found) == len(rows):
            return found
    raise LeakauditError(
        "the combination is determined, but its rational coefficients have more than 600 digits; "
        "use fewer rounds"
    )


def _rational_terms(row: Row, prime: int) -> dict[int, Fraction] | None:
    terms: dict[int, Fraction] = {}
    for k, value in row.items():
        short = rational(value, prime)
        if short is None:
            return None
        terms[k] = short
    return terms
