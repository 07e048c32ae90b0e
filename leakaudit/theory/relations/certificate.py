"""How far a mu can be trusted: what determines the points at which gradients are evaluated.

A mu bounds the effect of gradients that change by a sensitivity (docs/relations.md, account). This
is the change of one record only if the gradients are evaluated at the same models with and without
it, that is, if each point is a function of what was observed before. Relations are added in the
order of time, because what is observed later depends on the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from leakaudit.theory.relations.expression import Expression, places
from leakaudit.theory.relations.knowledge import Knowledge
from leakaudit.theory.relations.modular import PRIMES, Row, Staircase, modular


class PastRelations:
    """What follows from the relations added so far, including nonlinear functions of it."""

    def __init__(self, knowledge: Knowledge, known: Collection[int]) -> None:
        self.knowledge = knowledge
        self.vectors = len(knowledge.declared.vectors)
        self.rows = Staircase(PRIMES[0])
        self.known = known
        self.pending = dict(knowledge.declared.opaques)
        self._added = 0  # relations of the knowledge that `advance` has added

    def advance(self, before: int) -> None:
        """Add the relations of the knowledge that were declared before this place."""
        rows = self.knowledge.rows
        while self._added < len(rows) and rows[self._added] < before:
            terms = self.knowledge.relations[self._added].terms
            self.add(Expression(self.knowledge.declared.vectors, terms))
            self._added += 1

    def add(self, terms: Expression) -> None:
        """Add a relation."""
        self.rows.add(self._row(terms))

    def holds(self, form: Expression, before: int | None = None) -> bool:
        """Return whether a form follows, also by nonlinear steps declared before a place."""
        if before is None:
            before = self.vectors
        self._process(before)
        return self.rows.holds(self._row(form))

    def _process(self, before: int) -> None:
        """Add the outputs of nonlinear steps whose inputs follow, in the order of declaration."""
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
        worst: The knowledge of an adversary who knows all secrets except the targets.
        others: Gradients that are not targets and reach the view. One whose point is not a function
            of the view reacts to everything declared before it, so targets declared before it have
            0. If hidden noise moves its point, the noise is not the declared one, so all targets
            have 0.
    """
    wanted = set(places(targets))
    seen = PastRelations(worst, worst.known)
    own = PastRelations(worst, worst.known | wanted)
    points = worst.declared.points
    level = dict.fromkeys(wanted, 2)
    reacts: float = -1  # the last gradient of others that reacts
    for k in sorted(points):
        if k not in wanted and k not in others:
            continue
        point = points[k]
        seen.advance(point.before)
        if seen.holds(point.at, k):  # a function of the view: certificate 2
            continue
        own.advance(point.before)
        moved_only_by_targets = own.holds(point.at, k)
        if k in wanted:
            level[k] = int(moved_only_by_targets)
        else:
            reacts = max(reacts, k if moved_only_by_targets else math.inf)
    for k in wanted:
        if k < reacts:
            level[k] = 0
    return tuple(map(level.__getitem__, places(targets)))
