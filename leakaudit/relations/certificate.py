"""How far a mu may be trusted: what decides where gradients are taken (docs/relations.md, account).

A mu prices the change of gradients by a sensitivity. That is the change of one record only if the
gradients are taken at the same models with it and without it. So each gradient is asked: is its
point a function of what was seen before it was taken? Relations are taken in by time, because what
is seen later depends on the gradient.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from leakaudit.relations.expression import Expression, places
from leakaudit.relations.knowledge import Knowledge
from leakaudit.relations.modular import PRIMES, Row, Staircase, modular


class Past:
    """What follows from the relations taken in so far; nonlinear functions of what follows do, too.

    Args:
        knowledge: The declaration, with its nonlinear steps.
        known: Places of the vectors that count as seen.
    """

    def __init__(self, knowledge: Knowledge, known: Collection[int]) -> None:
        self.vectors = len(knowledge.declared.vectors)
        self.rows = Staircase(PRIMES[0])
        self.known = known
        self.pending = dict(knowledge.declared.opaques)

    def add(self, terms: Expression) -> None:
        """Take a relation in."""
        self.rows.add(self._row(terms))

    def holds(self, form: Expression, before: int | None = None) -> bool:
        """Whether a form follows.

        Nonlinear steps count if their output was declared before this place.
        """
        if before is None:
            before = self.vectors
        self._process(before)
        return self.rows.holds(self._row(form))

    def _process(self, before: int) -> None:
        """Take in the outputs of nonlinear steps whose inputs follow, the earlier ones first."""
        for out, parts in list(self.pending.items()):
            if out < before and all(self.rows.holds(self._row(part)) for part in parts):
                self.rows.add({out: 1})
                del self.pending[out]

    def _row(self, form: Expression) -> Row:
        return modular(form.terms, PRIMES[0], self.known)


def certificates(
    worst: Knowledge, targets: Sequence[Expression], others: Collection[int]
) -> tuple[int, ...]:
    """Return the certificate of every target, by the relations before each gradient (`Bound`).

    Args:
        worst: All secrets but the targets are known.
        targets: Gradients or other secrets of one node.
        others: Gradients that are not targets and reach the view. If the point of one is not a
            function of the view, it reacts to the change of what was declared before it, so these
            targets have 0.
    """
    wanted = set(places(targets))
    seen = Past(worst, worst.known)
    own = Past(worst, worst.known | wanted)
    points = worst.declared.points
    level = dict.fromkeys(wanted, 2)
    reacts = -1  # the last gradient of others that reacts
    at = 0
    for k in sorted(points):
        if k not in wanted and k not in others:
            continue
        while at < len(worst.rows) and worst.rows[at] < points[k].before:
            form = Expression(worst.declared.vectors, worst.relations[at].terms)
            seen.add(form)
            own.add(form)
            at += 1
        if seen.holds(points[k].at, k):  # a function of the view: certificate 2
            continue
        if k in wanted:
            level[k] = int(own.holds(points[k].at, k))
        else:
            reacts = k
    for k in wanted:
        if k < reacts:
            level[k] = 0
    return tuple(map(level.__getitem__, places(targets)))
