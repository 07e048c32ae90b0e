"""How far one changed record moves the node's later gradients (docs/relations.md, account).

This yields record level for views with certificates of 1. With the view held fixed, relations bound
the change s of every vector: |c_k| s_k <= sum_j |c_j| s_j if k is the only vector not bounded yet,
s = 0 for known vectors, and s = Delta_t + L s(point) for a gradient of a loss with L-Lipschitz
gradients. For w+ = a (w - step g), this is s+ = |a| (s (1 + step L) + step Delta), and mu^2 <= sum
over the noise of (s / sigma)^2.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.relations.account import gaussian, sensitivities, worst_case
from leakaudit.theory.relations.determine import determined
from leakaudit.theory.relations.expression import Expression, places
from leakaudit.theory.relations.knowledge import Knowledge


@dataclass(frozen=True)
class Drift:
    """The effect of one changed record, with the view held fixed."""

    # (T,) how far each target moves, including its reaction to the moved model: sensitivities for
    # `account` at record level
    limits: tuple[float, ...]
    # upper value from the shift that every noise hides; inf if messages reveal a combination
    # without noise, or if the relations do not bound every noise individually. With one noise per
    # message and changes that add up, it is the exact mu of `account`.
    mu: float


def drift(
    knowledge: Knowledge,
    targets: Sequence[Expression],
    sensitivity: float | Sequence[float],
    smoothness: float,
) -> Drift:
    """Bound how one changed record moves all gradients of its node, for Lipschitz gradients.

    Args:
        sensitivity: Of each gradient at the same point, 0 if the record does not take part; one for
            all, or (T,).
        smoothness: Lipschitz constant L >= 0 of the node's gradients, as they enter the protocol.

    Raises:
        LeakauditError: As for `account`; or a gradient that is not a target reacts; or the
            relations before a gradient do not bound its point.
    """
    same_point = sensitivities(targets, sensitivity)
    if not 0 <= smoothness < math.inf:
        raise LeakauditError(
            "drift: expected a smoothness >= 0 (the Lipschitz constant of the gradients), got "
            f"{smoothness}"
        )
    worst, view = worst_case(knowledge, targets)
    at_same_point = dict(zip(places(targets), same_point.tolist(), strict=True))
    moves = _moved(worst, view.used, at_same_point, smoothness)
    limits = tuple(moves.of(target.terms) or 0.0 for target in targets)
    moving = []
    for target, limit in zip(targets, limits, strict=True):
        if limit and target.vector in view.used:
            moving.append(target)
    if determined(view, moving):
        return Drift(limits, math.inf)
    gaussian(view, targets)
    # Independent noises add up: mu^2 <= sum (s / sigma)^2.
    ratios = []
    for k in view.noise:
        size = moves.of({k: Fraction(1)})
        if size is None:
            return Drift(limits, math.inf)
        ratios.append(size / view.declared.vectors[k].std)
    return Drift(limits, math.hypot(*ratios))


class _Moves:
    """Bounds on how far vectors move, from relations in order of time; 0 for known vectors."""

    def __init__(self, worst: Knowledge) -> None:
        self.known = worst.known - worst.declared.opaques.keys()
        self.pending = dict(worst.declared.opaques)
        self.bound: dict[int, float] = {}
        self.waiting = defaultdict[int, list[Mapping[int, Fraction]]](list)

    def of(self, terms: Mapping[int, Fraction]) -> float | None:
        parts = []
        for k, coefficient in terms.items():
            if k in self.known:
                continue
            size = self.bound.get(k)
            if size is None:
                return None
            parts.append(abs(float(coefficient)) * size)
        try:
            return math.fsum(parts)
        except OverflowError:
            return math.inf

    def settle(self, vector: int, bound: float) -> None:
        todo = [(vector, bound)]
        while todo:
            k, size = todo.pop()
            self.bound[k] = size
            for terms in self.waiting.pop(k, ()):
                todo += self._follows(terms)
            # If the inputs of a nonlinear step do not move, neither does its output.
            for out, parts in list(self.pending.items()):
                if all(self.of(part.terms) == 0 for part in parts):
                    del self.pending[out]
                    todo.append((out, 0.0))

    def take(self, terms: Mapping[int, Fraction]) -> None:
        """Add a relation: it bounds its only vector without a bound, or waits for others."""
        for vector, bound in self._follows(terms):
            self.settle(vector, bound)

    def _follows(self, terms: Mapping[int, Fraction]) -> list[tuple[int, float]]:
        """Return the vector that a relation bounds, with its bound, or wait for the others."""
        free = [k for k in terms if k not in self.known and k not in self.bound]
        if len(free) == 1:
            others = self.of({k: c for k, c in terms.items() if k != free[0]}) or 0.0
            return [(free[0], others / abs(float(terms[free[0]])))]
        if free:
            self.waiting[free[0]].append(terms)
        return []


def _moved(
    worst: Knowledge, reached: frozenset[int], same_point: Mapping[int, float], smoothness: float
) -> _Moves:
    """Process the declaration in time; relations before a gradient must bound its point."""
    vectors = worst.declared.vectors
    points = worst.declared.points
    moves = _Moves(worst)
    at = 0
    for k in sorted(same_point.keys() | (points.keys() & reached)):
        while k in points and at < len(worst.rows) and worst.rows[at] < points[k].before:
            moves.take(worst.relations[at].terms)
            at += 1
        moved: float | None = 0.0
        if k in points:
            moved = moves.of(points[k].at.terms)
        if k not in same_point:
            if moved != 0:
                raise LeakauditError(
                    f"drift: {vectors[k].label} reacts to the change but is not a target; "
                    "pass all gradients of one node"
                )
        elif moved is None:
            raise LeakauditError(
                f"drift: what is observed before {vectors[k].label} and the node's own past "
                "gradients do not bound the point at which it was evaluated"
            )
        else:
            moves.settle(k, same_point[k] + smoothness * moved)
    for relation in worst.relations[at:]:
        moves.take(relation.terms)
    return moves
