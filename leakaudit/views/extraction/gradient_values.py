"""Values of determined combinations: formulas of least variance applied to recorded messages."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from leakaudit.core import mapping
from leakaudit.core.adversary import CHUNK, View
from leakaudit.core.leak import GradientLeak
from leakaudit.theory.relations import Expression, Knowledge, Vector, determined, estimate, explain
from leakaudit.theory.relations.estimate import Estimate
from leakaudit.views.extraction import batch_statistics
from leakaudit.views.extraction.deduction import ChosenRelations, Deduction
from leakaudit.views.extraction.sums import mean

SAMPLES = 6  # messages of a kind whose size is examined
LARGEST = 1e150  # largest size of a message, whose square is finite
SHORT = 12  # most terms of a formula that is written in full
# Rounding of a message relative to the number format's: 1 / sqrt(12), and what the sender's own
# arithmetic adds.
UNIT = 0.5
EQUAL = "assumes that all of these nodes hold equally many records and count equally"


@dataclass(frozen=True)
class _GradientColumns:
    """Gradients of a node as columns of a leak.

    A column is a single gradient, or the weighted sum of a round if all rows hold the same sum.
    """

    # vectors of each column, in the order in which they were evaluated
    places: tuple[tuple[int, ...], ...]
    combination: Tensor  # (m, T) Weights in units of the last vector of each column

    @property
    def first(self) -> list[int]:
        return [places[0] for places in self.places]


def leak(deduction: Deduction, found: ChosenRelations) -> GradientLeak:
    """Return the values of what is determined about a node, with their noise and the models.

    The models are those at which the gradients were evaluated, if they are determined. If there are
    single gradients, only these are returned, because attacks compare gradients one by one;
    otherwise, every combination is returned.
    """
    rows = _single(found) or found.rows
    text = formula(found, rows[len(rows) // 2])
    return _leak(deduction, found, rows, rows, text)


def partial_leak(deduction: Deduction, node: int, gradients: int) -> GradientLeak | None:
    """Return the same where messages hold only some coordinates; None if none is determined."""
    found, parts = deduction.partial(node, gradients)
    if not parts:
        return None
    rows, forms, masks = zip(*parts, strict=True)
    middle = len(parts) // 2
    exact = explain(found.knowledge, forms[middle])
    text = f"{rows[middle]} = {exact}, on the coordinates that these messages hold"
    if exact is None or len(exact.terms) > SHORT:
        text = f"{rows[middle]}, on the coordinates that the messages hold"
    whole = _leak(deduction, found, rows, forms, text)
    seen = torch.stack(masks)
    return replace(whole, value=whole.value * seen, theta=None, seen=seen)


def sum_leak(deduction: Deduction, node: int, gradients: int) -> GradientLeak | None:
    """Return the mean gradients of several nodes, as gradients of one large batch.

    Returns:
        None if no sum with gradients of this node is determined.
    """
    found, sums = deduction.sums(node, gradients)
    if not sums:
        return None
    rows = [one[node] for one in sums]
    means = [mean(one) for one in sums]
    text = formula(found, means[len(means) // 2])
    leaked = _leak(deduction, found, rows, means, text)
    nodes = len(sums[0])
    return replace(
        leaked,
        scope="; ".join(filter(None, (leaked.scope, EQUAL))),
        others=tuple(other for other in sums[0] if other != node),
        batch=None if leaked.batch is None else nodes * leaked.batch,
        records=None if leaked.records is None else nodes * leaked.records,
        statistics={},  # those of one node are not those of the large batch
    )


def _leak(
    deduction: Deduction,
    found: ChosenRelations,
    rows: Sequence[Expression],
    forms: Sequence[Expression],
    text: str,
) -> GradientLeak:
    """Return the values of combinations of gradients (rows), computed as forms."""
    view = deduction.view
    declared = found.knowledge.declared
    columns = _gradients(rows)
    points = None
    if view.columns == (0, view.layout.size) and not deduction.scaled:
        points = _points(found.knowledge, columns.first)
    # One formula of least variance for each combination, then for each model that is not known.
    unknown = _unknown(found.knowledge, points or ())
    estimated = minimum_variance(deduction, found.knowledge, [*forms, *unknown])
    values = estimated.apply(deduction.fetch)
    m = len(rows)
    theta = None
    if points is not None:
        solved = dict(zip(unknown, values[m:], strict=True))
        theta = models(deduction, points, solved)
    rounds = [declared.vectors[g].round for g in columns.first]
    disclosed = batch_statistics.disclosed(view, found.node, rounds)
    computed, mixed = batch_statistics.computed(deduction, found.knowledge, found.node, rounds)
    model_rounds = [max(declared.points[g].rounds) for g in columns.first]
    return GradientLeak(
        node=found.node,
        rounds=torch.tensor(rounds),
        combination=columns.combination,
        value=values[:m],
        std=torch.from_numpy(estimated.std[:m]),
        columns=view.columns,
        noise=torch.from_numpy(estimated.noise[:m]),
        theta=theta,
        theta_std=float(estimated.std[m:].max(initial=0.0)),
        batch=_count(view, "batch", "samples"),
        records=_count(view, "samples"),
        wire=torch.finfo(view.dtype).eps,
        inner=max(map(len, columns.places)),
        inner_weight=_weight(rows, columns.places[0]),
        step=_step(found.knowledge, columns.places[0]),
        adversary=str(view.adversary),
        formula=text,
        scope="; ".join(filter(None, (found.scope, deduction.rests_on, mixed))),
        theta_rounds=torch.tensor(model_rounds),
        statistics={**disclosed, **computed},
    )


def minimum_variance(
    deduction: Deduction, knowledge: Knowledge, combinations: Sequence[Expression]
) -> Estimate:
    """Return the formula of least variance of every combination.

    Its noise includes the rounding of the messages and of applying the formula.
    """
    sizes = _sizes(deduction, knowledge)
    wire = UNIT * torch.finfo(deduction.view.dtype).eps
    rounding = {name: wire * size for name, size in sizes.items()}
    found = estimate(knowledge, combinations, rounding=rounding)
    # Applying a formula in float64 rounds each of its terms, and leaves what is missed.
    size_of_each = np.array([sizes.get(vector.name, 0.0) for vector in found.vectors])
    ours = torch.finfo(torch.float64).eps
    rounded = ours * np.linalg.norm(found.weights * size_of_each, axis=1)
    missed = found.miss * max(sizes.values(), default=0.0)
    applied = np.hypot(rounded, missed)
    inexact = 0.0  # errors of computed constants act as further rounding of each term
    if deduction.constants is not None:
        inexact = deduction.constants.error / wire
    return replace(
        found,
        std=np.hypot(found.std, applied) * math.hypot(1, inexact),
        noise=np.hstack([found.noise, np.diag(applied)]) * math.hypot(1, inexact),
    )


def formula(found: ChosenRelations, row: Expression) -> str:
    """Return ``row = messages`` in exact rationals, abbreviated if it is long."""
    exact = found.formula(row)
    ends = sorted(exact.terms)
    if len(ends) <= SHORT:
        return f"{row} = {exact}"
    some = Expression(exact.home, {k: exact.terms[k] for k in ends[:SHORT]})
    return f"{row} = {some} + … ({len(ends)} terms)"


def _single(found: ChosenRelations) -> tuple[Expression, ...]:
    return tuple(row for row in found.rows if len(row.rounds) == 1)


def _gradients(rows: Sequence[Expression]) -> _GradientColumns:
    """Combine the gradients of a round if every row contains the same multiple of all."""
    vectors = rows[0].home
    occurring: set[int] = set()
    for row in rows:
        occurring.update(row.terms)
    by_round = defaultdict[int, list[int]](list)
    for k in sorted(occurring):
        by_round[vectors[k].round].append(k)
    places: list[tuple[int, ...]] = []
    for of_round in by_round.values():
        if not _alike(rows, of_round):
            places = [(k,) for some in by_round.values() for k in some]
            break
        places.append(tuple(of_round))
    combination = torch.zeros(len(rows), len(places), dtype=torch.float64)
    for i, row in enumerate(rows):
        for j, column in enumerate(places):
            combination[i, j] = float(row.terms.get(column[-1], 0))
    return _GradientColumns(tuple(places), combination)


def _alike(rows: Sequence[Expression], places: Sequence[int]) -> bool:
    """Return whether all rows contain multiples of one combination of these vectors.

    The combination must include the last vector.
    """
    shapes = set[tuple[Fraction, ...]]()
    for row in rows:
        held = [row.terms[k] for k in places if k in row.terms]
        if not held:
            continue
        if places[-1] not in row.terms or len(held) < len(places):
            return len(places) == 1
        shapes.add(tuple(coefficient / held[-1] for coefficient in held))
    return len(shapes) == 1


def _weight(rows: Sequence[Expression], column: Sequence[int]) -> float:
    """Return the sum of a column's coefficients, in units of the last one.

    It is the number of steps unless momentum or weight decay weights them unequally.
    """
    for row in rows:
        if column[-1] in row.terms:
            total = sum((row.terms[k] for k in column), start=Fraction(0))
            return float(total / row.terms[column[-1]])
    return float(len(column))


def _points(knowledge: Knowledge, gradients: Sequence[int]) -> list[Expression] | None:
    """Return the models at which gradients were evaluated; None if one is not determined."""
    points = [knowledge.declared.points[g] for g in gradients]
    unknown = _unknown(knowledge, points)
    for point in unknown:
        if len(point.terms) != 1 or not point.terms.keys() <= knowledge.used:
            return None
    if unknown:
        given = determined(knowledge, unknown, up_to_noise=True, form="echelon")
        single = {row.vector for row in given if len(row.terms) == 1}
        if not single.issuperset(point.vector for point in unknown):
            return None
    return points


def _unknown(knowledge: Knowledge, points: Sequence[Expression]) -> list[Expression]:
    unknown = [point for point in points if not point.terms.keys() <= knowledge.known]
    return list(dict.fromkeys(unknown))


def _count(view: View, *names: str) -> int | None:
    """Return the first of the given numbers of records that the protocol declares.

    Such a number is the size of a mini-batch, otherwise of the node's data.
    """
    for name in names:
        if view.knows(name) and view.constant(name):
            return int(view.number(name))
    return None


def _step(knowledge: Knowledge, places: Sequence[int]) -> float | None:
    """Return the step size between two gradients of one round: -dw/dg.

    w is the model at which the second one is taken.
    """
    points = knowledge.declared.points
    if len(places) < 2 or len(points[places[1]].terms) != 1:
        return None
    after = points[places[1]].vector
    for relation in knowledge.relations:
        if places[0] in relation.terms and after in relation.terms:
            return float(relation.terms[places[0]] / relation.terms[after])
    return None


def models(
    deduction: Deduction, points: Sequence[Expression], solved: Mapping[Expression, Tensor]
) -> Tensor:
    """Return models (T, d), from known values and from solved ones."""
    vectors = points[0].home
    found: Tensor | None = None
    for at, point in enumerate(points):
        if point in solved:
            model = solved[point]
        else:
            # One model at a time is in memory beside the result.
            parts = []
            for k, coefficient in point.terms.items():
                value = deduction.fetch(vectors[k])
                parts.append(float(coefficient) * value.double())
                mapping.release(value)
            model = torch.stack(parts).sum(0)
        if found is None:
            found = model.new_empty(len(points), len(model))
        found[at] = model
    assert found is not None
    return found


def _size(value: Tensor, *, omits: bool) -> float:
    """Return the root mean square of a message (c,); omitted coordinates do not count."""
    total = 0.0
    count = 0
    for part in value.split(CHUNK):
        numbers = part.double()
        mapping.release(part)
        if omits:
            numbers = numbers[numbers != 0]  # omitted coordinates are not rounded
        if len(numbers) and len(part) == len(value):
            return float(numbers.square().mean().sqrt())
        total += float(numbers.square().sum())
        count += len(numbers)
    return math.sqrt(total / max(1, count))


def _sizes(deduction: Deduction, knowledge: Knowledge) -> dict[str, float]:
    by_kind = defaultdict[str, list[Vector]](list)
    for k in sorted(knowledge.used & knowledge.known):
        vector = knowledge.declared.vectors[k]
        if vector.kind == "message":
            by_kind[vector.name].append(vector)
    sizes = dict[str, float]()
    for name, messages in by_kind.items():
        largest = 0.0
        for message in messages[:: max(1, len(messages) // SAMPLES)]:
            value = deduction.fetch(message)
            largest = max(largest, _size(value, omits=bool(knowledge.declared.omits)))
        sizes[name] = min(largest, LARGEST)
    return sizes
