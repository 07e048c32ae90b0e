"""Extension of a declaration: if all rounds have the same relations, further rounds are copies.

See docs/relations.md, reuse.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from fractions import Fraction

from leakaudit._util.uncollected import uncollected
from leakaudit.core.errors import LeakauditError
from leakaudit.theory.relations import declare
from leakaudit.theory.relations.declare import Relation, Relations
from leakaudit.theory.relations.expression import Expression, Vector


def steady(declared: Relations, most: int | None = None) -> range:
    """Return the last rounds of a declaration that all have the same relations, shifted in time.

    At most `most` rounds are examined. Vectors of round 0 are not shifted.
    """
    rows = defaultdict[int, list[Relation]](list)
    for r in declared.relations:
        rows[r.round].append(r)
    first = last = declared.round
    shape = _shape(declared, rows[last])
    while (
        first > 1
        and (most is None or last - first + 1 < most)
        and _shape(declared, rows[first - 1]) == shape
    ):
        first -= 1
    if not last:
        return range(0)
    return range(first, last + 1)


def _shape(declared: Relations, rows: Iterable[Relation]) -> set[Hashable]:
    """Return the relations of a round, and the points of the gradients in them, without times."""
    shape = set[Hashable]()
    for r in rows:
        shape.add(shifted(r.terms, -r.round, declared.vectors))
        for k in r.terms:
            used = [k]
            if k in declared.points:
                at = declared.points[k].terms
                shape.add((declared.vectors[k].name, shifted(at, -r.round, declared.vectors)))
                used += at
            for out in used:
                if out in declared.firmly:
                    of = declared.firmly[out][0].terms
                    inputs = shifted(of, -r.round, declared.vectors)
                    shape.add((declared.vectors[out].name, "firm", inputs))
                for part in declared.opaques.get(out, ()):
                    inputs = shifted(part.terms, -r.round, declared.vectors)
                    shape.add((declared.vectors[out].name, "of", inputs))
    return shape


def shifted(terms: Mapping[int, Fraction], by: int, vectors: Sequence[Vector]) -> Hashable:
    """Return a linear form some rounds later, comparable with forms of any declaration."""
    found = []
    for k, c in terms.items():
        v = vectors[k]
        noise = (v.std, v.law, v.width)
        factor = c.as_integer_ratio()
        found.append((_moved(v, by), v.name, v.owner, v.index, v.dst, v.secure, *noise, factor))
    return frozenset(found)


def extend(declared: Relations, same: range, rows: Iterable[int], rounds: range) -> Relations:
    """Return some relations of a declaration for other rounds.

    They are the declaration's own, followed by copies of its second to last round (the last one may
    lack what the next round would define). If the rounds start after the steady ones do, all are
    copies, and nothing is declared about the time before.

    Raises:
        LeakauditError: The declaration does not have three steady rounds, or there would be more
            than `declare.LARGEST` relations.
    """
    last = declared.round - 1
    if len(same) < 3:
        raise LeakauditError(
            "extend: the last three rounds of this declaration differ; "
            "declare all rounds that are needed"
        )
    by_round = defaultdict[int, list[int]](list)
    for r in sorted(rows):
        by_round[declared.relations[r].round].append(r)
    if len(by_round[last]) * len(rounds) > declare.LARGEST:
        raise LeakauditError(
            f"{len(rounds):,} rounds have more than {declare.LARGEST:,} relations, "
            "too many to be bounded; choose fewer rounds"
        )
    longer = Relations(declared.graph)
    late = rounds.start > same.start
    first = 0
    if late:
        first = rounds.start
    with uncollected():
        for t in range(first, rounds.stop):
            like = last
            if not late:
                like = min(t, last)
            places = _Places(declared, t - like, longer, first)
            for r in by_round[like]:
                _copy(declared, r, places)
    longer.round = rounds.stop - 1
    return longer


class _Places(dict[int, int]):
    """Places of vectors of one declaration in another; missing vectors are added."""

    def __init__(self, declared: Relations, by: int, to: Relations, first: int) -> None:
        super().__init__()
        self.vectors = declared.vectors
        self.unexplained = declared.unexplained
        self.declared = declared
        self.by = by
        self.to = to
        self.first = first
        self.new: list[int] = []  # whose explanations were not copied yet

    def __missing__(self, k: int) -> int:
        place = self.to.adopt(self.vectors[k], self.by)
        self[k] = place
        self.new.append(k)
        return place

    def explain(self) -> None:
        """Copy what is known of vectors without relations, such as models that are never sent."""
        declared = self.declared
        while self.new:
            k = self.new.pop()
            place = self[k]
            if k in declared.drawn:
                self.to.drawn.add(place)
            elif k in self.unexplained:
                self.to.carry(place)
            if k in declared.points and place not in self.to.points:
                # It is in no relation so far; at least those of earlier rounds came before it.
                at = self.moved(declared.points[k].terms)
                now = self.to.vectors[place].round
                before = bisect_left(self.to.relations, now, key=lambda r: r.round)
                self.to.points[place] = at
                self.to.before[place] = before
            if k in declared.shares:
                self.to.shares[place] = declared.shares[k]
            if k in declared.firmly and place not in self.to.firmly:
                of, step = declared.firmly[k]
                if step is not None:
                    step = self.moved(step.terms)
                self.to.firmly[place] = (self.moved(of.terms), step)
            is_new = place not in self.to.opaques and self.to.vectors[place].round >= self.first
            if k in declared.opaques and is_new:
                parts = declared.opaques[k]
                self.to.opaques[place] = tuple(self.moved(part.terms) for part in parts)

    def moved(self, form: Mapping[int, Fraction]) -> Expression:
        return Expression(self.to.vectors, {self[k]: v for k, v in form.items()})


def _copy(declared: Relations, row: int, places: _Places) -> None:
    """Add one relation, shifted by some rounds, and what is known about the vectors in it."""
    relation = declared.relations[row]
    to = places.to
    for k in relation.terms:
        if k in declared.points:
            # The point comes first, as in the declaration: it may be a vector without relations.
            at = places.moved(declared.points[k].terms)
            if places[k] not in to.points:
                to.points[places[k]] = at
                to.before[places[k]] = len(to.relations)
        if declared.sent.get(k) == row:
            to.sent[places[k]] = len(to.relations)
        if k in declared.changes:
            before, steps = declared.changes[k]
            to.changes[places[k]] = (places.moved(before.terms), steps)
        if k in declared.omits:
            to.omits[places[k]] = places[declared.omits[k]]
    terms = places.moved(relation.terms)
    places.explain()
    to.relations.append(Relation(terms.terms, relation.round + places.by, terms, 0))


def _moved(vector: Vector, by: int) -> tuple[str, int]:
    if not vector.round:
        return ("start", 0)
    return (vector.kind, vector.round + by)
