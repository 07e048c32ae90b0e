"""One set of weights for many rounds: where a protocol does the same every round, its formulas do too (docs/relations.md, reuse)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from leakaudit.errors import LeakauditError
from leakaudit.relations.declare import Relations
from leakaudit.relations.estimate import Estimate
from leakaudit.relations.expression import Expression, Vector

_Shape = frozenset[tuple[object, ...]]


def steady(declared: Relations) -> range:
    """Return the last rounds of a declaration that all hold the same relations, moved in time; vectors of round 0 stay."""
    shapes = defaultdict[int, set[_Shape]](set)
    for r in declared.relations:
        terms = ((declared.vectors[k], c) for k, c in r.terms.items())
        shapes[r.round].add(frozenset((_moved(v, -r.round), v.name, v.owner, v.index, v.dst, v.std, c) for v, c in terms))
    first = last = declared.round
    while first > 1 and shapes[first - 1] == shapes[last]:
        first -= 1
    return range(first, last + 1) if last else range(0)


def later(estimate: Estimate, declared: Relations, by: int) -> Estimate:
    """Return an estimate with the same weights, `by` rounds later, or earlier for by < 0.

    It holds where the window of relations that was used (`Knowledge.within`), and that window moved by `by`, lie in the `steady`
    rounds and the same messages are heard in both. Raises LeakauditError where the declaration has no such round.
    """
    vectors = tuple(declared.vectors[_place(declared, v, by)] for v in estimate.vectors)
    combinations = tuple(
        Expression(c.home, {_place(declared, c.home[k], by): v for k, v in c.terms.items()}) for c in estimate.combinations
    )
    return replace(estimate, vectors=vectors, combinations=combinations)


def _moved(vector: Vector, by: int) -> tuple[str, int]:
    return (vector.kind, vector.round + by) if vector.round else ("start", 0)


def _place(declared: Relations, vector: Vector, by: int) -> int:
    wanted = replace(vector, round=vector.round + by) if vector.round else vector
    place = declared.place(wanted)
    if place is None:
        raise LeakauditError(f"{wanted.label} is not declared; the estimate cannot be moved by {by} rounds")
    return place
