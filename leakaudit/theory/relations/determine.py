"""Which combinations of vectors a view determines, and by which formula."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Literal, TypeAlias, TypeVar

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
Key = TypeVar("Key", bound=Hashable)


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
    return determined_each(knowledge, {0: targets}, up_to_noise=up_to_noise, form=form)[0]


def determined_each(
    knowledge: Knowledge,
    groups: Mapping[Key, Sequence[Expression]],
    *,
    up_to_noise: bool = False,
    form: Basis = "span",
) -> dict[Key, list[Expression]]:
    """Return the same for several groups of targets; what they share is eliminated once."""
    orders = {key: places(targets) for key, targets in groups.items()}

    def solve(prime: int) -> dict[Key, list[Row]]:
        found = _left(knowledge, orders, up_to_noise, prime)
        if form == "span":
            for key, rows in found.items():
                found[key] = minimal_span(rows, orders[key], prime)
        return found

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

    def solve(prime: int) -> dict[int, list[Row]]:
        rows = [modular(combination.terms, prime) for combination in combinations]
        left = eliminate(rows, unwanted, prime)
        return {0: minimal_span(echelon(left, order, prime), order, prime)}

    return _in_rationals(solve, combinations[0].home)[0]


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
    # Unknowns that do not occur in any relation cannot be eliminated, and therefore leave no
    # answer.
    unknown = {*knowledge.flat, *(combination.terms.keys() - knowledge.known)}
    if not up_to_noise:
        unknown.update(knowledge.noise)

    def solve(prime: int) -> dict[int, list[Row]]:
        # The combination, minus a tag that represents its value, is one more row. A remaining row
        # without unknowns but with the tag states the value.
        question = modular(combination.terms, prime)
        question[tag] = prime - 1
        left = eliminate([*knowledge.modular(prime), question], unknown, prime)
        answers = [row for row in left if tag in row]
        if not answers:
            return {0: []}
        answer = normal(min(answers, key=len), tag, prime)
        return {0: [{k: prime - v for k, v in answer.items() if k != tag}]}

    found = _in_rationals(solve, knowledge.declared.vectors)[0]
    if not found:
        return None
    return found[0]


def is_determined(
    knowledge: Knowledge, combination: Expression, *, up_to_noise: bool = False
) -> bool:
    """Return whether a combination of vectors is determined.

    Args:
        knowledge: The relations in use, and what is known.
        combination: Of any vectors, including known ones.
        up_to_noise: Accept noise as an error.
    """
    prime = PRIMES[0]
    dropped = knowledge.used & knowledge.known
    if up_to_noise:
        dropped = dropped.union(knowledge.noise)
    tag = len(knowledge.declared.vectors)
    question = modular(combination.terms, prime, knowledge.known)
    unknown = {*knowledge.flat, *knowledge.noise, *question}
    question[tag] = prime - 1
    left = eliminate([*knowledge.modular(prime, dropped), question], unknown, prime)
    return any(tag in row for row in left)


def _left(
    knowledge: Knowledge, orders: Mapping[Key, list[int]], up_to_noise: bool, prime: int
) -> dict[Key, list[Row]]:
    """Return, for each group, the echelon form that remains without the other unknowns."""
    dropped = knowledge.used & knowledge.known
    unknown = list(knowledge.flat)
    if up_to_noise:
        dropped = dropped.union(knowledge.noise)
    else:
        unknown += knowledge.noise
    targets: set[int] = set()
    for order in orders.values():
        for k in order:
            if k in knowledge.known or k in dropped:
                raise LeakauditError(
                    f"{knowledge.declared.vectors[k].label} cannot be a target: this adversary "
                    "knows it, or it is noise"
                )
        targets.update(order)
    shared = eliminate(knowledge.modular(prime, dropped), set(unknown) - targets, prime)
    found: dict[Key, list[Row]] = {}
    for key, order in orders.items():
        others = targets.difference(order)
        own = eliminate(shared, others, prime) if others else shared
        found[key] = echelon(own, order, prime)
    return found


def _in_rationals(
    solve: Callable[[int], Mapping[Key, Iterable[Row]]], home: Sequence[Vector]
) -> dict[Key, list[Expression]]:
    """Solve modulo one prime after another until every number is a short rational."""
    for prime in PRIMES:
        found: dict[Key, list[Expression]] = {}
        for key, rows in solve(prime).items():
            forms = [_rational_terms(row, prime) for row in rows]
            found[key] = [Expression(home, terms) for terms in forms if terms is not None]
            if len(found[key]) < len(forms):
                break
        else:
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
