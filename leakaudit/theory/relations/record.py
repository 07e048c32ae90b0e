"""The effect of one changed record on a view (docs/relations.md, account)."""

from __future__ import annotations

import copy
import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from leakaudit._util.once import once
from leakaudit.core.errors import LeakauditError
from leakaudit.theory.relations.account import (
    account,
    only_noise,
    rounded,
    sensitivities,
    worst_case,
)
from leakaudit.theory.relations.declare import Relation, Relations
from leakaudit.theory.relations.determine import determined
from leakaudit.theory.relations.expression import SECRET, Expression, Vector, decimal, places
from leakaudit.theory.relations.kkt import Array
from leakaudit.theory.relations.knowledge import Knowledge
from leakaudit.theory.relations.semidefinite import supremum

# A changed record moves the model, and therefore the gradients that are evaluated there. `account`
# assumes gradients that move by at most a sensitivity, which is true for a record only if
# everything else that it moves is observed: certificate 2. Otherwise:
#
# - `alone`, `with_models`: an adversary who observes more. Its mu is an upper value for a weaker
#   one.
# - `drift`: gradients that are L-Lipschitz, if certificates are at least 1. With the view held
#   fixed, relations bound the change s of every vector: |c_k| s_k <= sum_j |c_j| s_j if k is the
#   only vector not bounded yet, s = 0 for known vectors, and s = Delta_t + L s(point) for a
#   gradient. For w+ = a (w - step g), this is s+ = |a| (s (1 + step L) + step Delta); mu^2 <= sum
#   (s / sigma)^2 over the noise.
# - `reached`: quadratic losses, whose reaction is one more linear relation, so that mu is exact.

HEARD = ("message", "public")
OWN = ("gradient", "secret", "state", "noise")
# Maximum number of choices of batches that are tried one by one; a choice, about a second of
# semidefinite programmes.
PATTERNS = 256

# One block per epoch, with the sets of gradients that a record can enter in it.
Turns = Sequence[Sequence[Collection[int]]]


def alone(declared: Relations, node: int) -> Knowledge | None:
    """Return the knowledge of everybody except one node: all that it receives and sends.

    Other nodes use only what the node sent before, so neither their views nor that of an
    eavesdropper reveal more about its data. They need not follow their own relations: a message
    that is lost, late or replaced by an old one is one more received vector, and a known vector
    leaves mu and certificates unchanged.

    Returns:
        None if the node's relations contain vectors other than its messages, public vectors and its
        own private ones.
    """
    private = _privates(declared)
    if node in private.shared:
        return None
    known = private.known
    for g in declared.gradients(node):
        for k in declared.points[g.vector].terms:
            vector = declared.vectors[k]
            if k not in known and not (vector.owner == node and vector.kind in OWN):
                return None
    return Knowledge(declared, known, tuple(private.rows.get(node, ())))


@dataclass(frozen=True)
class _PrivateRelations:
    """The private relations of every node."""

    known: frozenset[int]  # places of messages and public vectors
    rows: Mapping[int, Sequence[int]]  # node -> relations whose other vectors are all its own
    # nodes of which some relation also contains a private vector of another node
    shared: frozenset[int]


@once
def _privates(declared: Relations) -> _PrivateRelations:
    vectors = declared.vectors
    rows = defaultdict[int, list[int]](list)
    shared: set[int] = set()
    for at, relation in enumerate(declared.relations):
        owners = {vectors[k].owner for k in relation.terms if vectors[k].kind in OWN}
        own = [owner for owner in owners if owner is not None]
        if len(owners) > 1:
            shared.update(own)
        elif own:
            rows[own[0]].append(at)
    shared.update(vectors[k].owner or 0 for k in declared.shares if vectors[k].kind in OWN)
    known = frozenset(k for k, v in enumerate(vectors) if v.kind in HEARD)
    return _PrivateRelations(known, rows, frozenset(shared))


def with_models(
    knowledge: Knowledge, targets: Sequence[Expression], certificate: Sequence[int], below: int
) -> Knowledge | None:
    """Return the knowledge including the models of targets with certificates below a level.

    Returns:
        None if this adds nothing, or if one of these models is not a single unknown state plus
        known vectors.
    """
    vectors = knowledge.declared.vectors
    shown: set[int] = set()
    for target, level in zip(targets, certificate, strict=True):
        if level >= below:
            continue
        point = knowledge.declared.points[target.vector]
        hidden = [k for k in point.terms if k not in knowledge.known]
        if len(hidden) != 1 or vectors[hidden[0]].kind != "state":
            return None
        shown.add(hidden[0])
    if not shown:
        return None
    return replace(knowledge, known=knowledge.known | shown)


def reached(
    knowledge: Knowledge,
    targets: Sequence[Expression],
    enters: Collection[int],
    curvature: float = 0.0,
) -> float:
    """Return the mu that a record attains for quadratic losses.

    The record moves the gradients that it enters by one vector of length 1. The losses of all nodes
    have the Hessian `curvature` I: g = curvature x + a constant, so the reaction to the moved
    model, and to unobserved noise, is linear, and the view of both data sets is Gaussian with the
    same covariance. Changing a label in least squares is such a change.

    Returns:
        The exact mu; inf if the change is visible without noise. If the declaration does not
        explain all vectors, what it is at least.
    """
    declared = knowledge.declared
    wanted = set(places(targets))
    closed = copy.copy(declared)
    closed.vectors = list(declared.vectors)
    closed.relations = list(declared.relations)
    moved = len(closed.vectors)
    owner = declared.vectors[targets[0].vector].owner
    closed.vectors.append(Vector("secret", "moved", owner, 0))
    entered = {targets[at].vector for at in enters}
    bend = decimal(curvature)
    # Each gradient that reacts becomes a state: g = curvature * (point of evaluation) + moved, the
    # last term only if the record enters it.
    unknown = knowledge.used - knowledge.known
    for k in declared.points:
        reacts = bend and k in unknown
        if k not in wanted and not reacts:
            continue
        closed.vectors[k] = replace(closed.vectors[k], kind="state")
        terms = {k: Fraction(-1)}
        for place, coefficient in declared.points[k].terms.items():
            terms[place] = terms.get(place, Fraction(0)) + bend * coefficient
        if k in entered:
            terms[moved] = Fraction(1)
        form = Expression(closed.vectors, {place: value for place, value in terms.items() if value})
        closed.relations.append(Relation(form.terms, declared.vectors[k].round, form, 0))
    rows = (*knowledge.rows, *range(len(declared.relations), len(closed.relations)))
    change = Expression(closed.vectors, {moved: Fraction(1)})
    view = Knowledge(closed, knowledge.known, rows)
    return account(view, [change], 1.0, certify=False, least=True).mu


def largest(m: Array, turns: Turns) -> tuple[float, float, tuple[int, ...]]:
    """Return the largest mu over the gradients that a record may enter, at sensitivity 1.

    A small number of choices is tried one by one. Otherwise, the upper value is the root of sum_ef
    max |M| over the choices in blocks e and f, which is exact if the noise of different rounds is
    independent, and the lower one is that of the choices with the largest diagonal.

    Returns:
        The value that constant gradients attain, a certified upper value for all changes, and the
        gradients that the record enters in the former case.
    """
    blocks: list[list[tuple[int, ...]]] = []
    for choices in turns:
        if choices:
            blocks.append([tuple(sorted(some)) for some in choices])
    size = abs(m)
    if math.prod(map(len, blocks)) <= PATTERNS:
        patterns = []
        for chosen in itertools.product(*blocks):
            patterns.append(tuple(sorted(itertools.chain(*chosen))))
        return _tried(m, size, patterns)
    best = []
    for block in blocks:
        best.append(max(block, key=lambda some: _total(m, some, some)))
    entered = tuple(sorted(itertools.chain(*best)))
    low = math.sqrt(max(_total(m, entered, entered), 0.0))
    total = 0.0
    for rows in blocks:
        for columns in blocks:
            total += max(_total(size, a, b) for a in rows for b in columns)
    return low, max(low, math.sqrt(total)), entered


def _tried(
    m: Array, size: Array, patterns: Sequence[tuple[int, ...]]
) -> tuple[float, float, tuple[int, ...]]:
    """Return the same over listed patterns; one whose sum |M| is too small is not solved."""
    entered = max(patterns, key=lambda some: _total(m, some, some))
    low = math.sqrt(max(_total(m, entered, entered), 0.0))
    high = low
    ceilings = [(_total(size, some, some), some) for some in patterns]
    for ceiling, some in sorted(ceilings, reverse=True):
        if math.sqrt(ceiling) <= high:
            break
        high = max(high, supremum(m[np.ix_(some, some)], np.ones(len(some)))[1])
    return low, high, entered


def _total(m: Array, rows: Sequence[int], columns: Sequence[int]) -> float:
    return float(m[np.ix_(rows, columns)].sum())


def secretless(declared: Relations, nodes: Iterable[int]) -> frozenset[int]:
    """Return the nodes that enter no gradient and hold no secret, so that nothing can leak.

    There are none if data enters in another way than through gradients.
    """
    if not declared.points:
        return frozenset()
    holders = {vector.owner for vector in declared.vectors if vector.kind in SECRET}
    return frozenset(nodes).difference(holders)


def drift(
    knowledge: Knowledge,
    targets: Sequence[Expression],
    sensitivity: float | Sequence[float],
    smoothness: float,
) -> tuple[float, tuple[float, ...]]:
    """Bound how one changed record moves all gradients of its node, for Lipschitz gradients.

    The upper mu is that of the shift that every noise hides, with the view held fixed: inf if
    messages reveal a combination without noise, or if the relations do not bound every noise
    individually. With one noise per message and changes that add up, it is the exact mu of
    `account`.

    Args:
        sensitivity: Of each gradient at the same point, 0 if the record does not take part; one for
            all, or (T,).
        smoothness: Lipschitz constant L >= 0 of the node's gradients, as they enter the protocol.

    Returns:
        An upper mu, and how far each target moves (T,), including its reaction to the moved model:
        sensitivities for `account` at record level.

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
        return math.inf, limits
    only_noise(view, moving)
    # Independent noises add up: mu^2 <= sum (s / sigma)^2.
    ratios = []
    for k in view.noise:
        size = moves.of({k: Fraction(1)})
        if size is None:
            return math.inf, limits
        ratios.append(size / view.declared.vectors[k].std)
    return math.hypot(*ratios), limits


class _Moves:
    """Bounds on how far vectors move, from relations in order of time; 0 for known vectors."""

    def __init__(self, worst: Knowledge) -> None:
        self.known = worst.known - worst.declared.opaques.keys()
        self.declared = worst.declared
        hidden = rounded(worst)
        self.skipped = {worst.declared.sent[m] for m in hidden}
        self.pending = worst.declared.opaques | {m: (form,) for m, form in hidden.items()}
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

    def take(self, row: int) -> None:
        """Add a relation: it bounds its only vector without a bound, or waits for others."""
        if row in self.skipped:
            return
        for vector, bound in self._follows(self.declared.relations[row].terms):
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
        while k in points and at < len(worst.rows) and worst.rows[at] < worst.declared.before[k]:
            moves.take(worst.rows[at])
            at += 1
        moved: float | None = 0.0
        if k in points:
            moved = moves.of(points[k].terms)
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
            moves.settle(k, same_point[k] + smoothness * moved)  # s = Delta_t + L s(point)
    for row in worst.rows[at:]:
        moves.take(row)
    return moves
