"""Prove what an equation leaves: gradients that are recomputed at the records that they reveal.

The first layer's block of what is left is sum_k delta_k [x_k 1] for the records x_k. All rounds
together reveal them: one record as the direction of all rows, several by the attack `exact`. With
them, the block yields every delta_k, and the label is the one whose recomputed delta_k is nearest.
The whole gradient of these records and labels, in all parameters and all rounds, equals what is
left, or nothing is proved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import torch
from torch import Generator, Tensor

from leakaudit.capture.equations.linear import FITTED, HELD, Equation, Form, block
from leakaudit.capture.equations.streams import Term
from leakaudit.capture.fitting import min_rank
from leakaudit.capture.fitting.fit import recomputed
from leakaudit.core import registry
from leakaudit.core.leak import GradientLeak
from leakaudit.inversion.exact.pixel_grid import PixelGrid
from leakaudit.tasks.task import Task

FORMS: tuple[Form, ...] = ("single", "momentum", "difference")
LABELS = 100  # classes that are tried, at most: a choice that bounds the time
# The record is read from the same rounded numbers as the step, so that the recomputed gradient is a
# few times less accurate than the step. A gradient computed in the number format of the messages
# has errors of some units in the last place. Both factors are choices with a margin.
ROUNDINGS = 10.0
LAST_PLACES = 100.0
# Another model as the argument of the gradient counts as excluded if it misses by so much more.
APART = 3.0
# Below this rounding, messages show whether a program rounded its pixels k/255 to single precision.
SINGLE = 1e-10
COARSE = 0.01  # miss above which nothing is proved, however coarse the rounding


@dataclass(frozen=True)
class _EquationRemainder:
    """What an equation leaves of the messages of one node."""

    values: Mapping[int, Tensor]  # round -> (d,) float64
    noise: Mapping[int, float]  # round -> size of its rounding errors, relative to it
    # the records (b, *shape) that it reveals, in each way in which a program may have stored them
    inputs: tuple[Tensor, ...] = ()


def _left(equation: Equation, node: int) -> _EquationRemainder:
    """Return what an equation leaves."""
    streams = equation.streams
    values: dict[int, Tensor] = {}
    noise: dict[int, float] = {}
    for t in equation.rounds:
        message = streams.sent[equation.kind, node].get(t)
        combined = equation.of(node, t)
        if message is None or combined is None:
            continue
        rest = message - combined
        size = float(rest.norm())
        if size == 0:
            continue
        values[t] = rest
        noise[t] = streams.eps * float(message.norm() + combined.norm()) / size
    return _EquationRemainder(values, noise)


def prove(equation: Equation, task: Task) -> Equation | None:
    """Return an equation with the step that recomputed gradients prove, at one point only."""
    if not equation.rank or task.spec.loss not in ("cross_entropy", "binary"):
        return None
    rests: dict[int, _EquationRemainder] = {}
    for node in equation.senders:
        rest = _left(equation, node)
        inputs = _inputs(task, rest, equation.rank, equation.streams.eps)
        if not inputs:
            return None
        rests[node] = replace(rest, inputs=inputs)
    if _shared(rests):
        return None
    for form in FORMS:
        found: list[Equation] = []
        for point in _points(equation):
            step = _at(equation, task, rests, form, point)
            if step is not None:
                found.append(step)
        found.sort(key=lambda one: one.miss)
        if len(found) > 1 and found[1].miss < APART * found[0].miss:
            return None
        if found:
            return found[0]
    return None


def _points(equation: Equation) -> Iterator[Term | None]:
    """Yield the models at which gradients may have been computed."""
    streams = equation.streams
    if len(equation.terms) > 1:
        yield None
    if streams.server is not None:
        for kind in streams.kinds:
            if streams.senders(kind) == (streams.server,):
                yield Term(kind, 0, "server")
        return
    for kind in streams.kinds:
        yield Term(kind, 1, "own")
        if kind != equation.kind:
            yield Term(kind, 0, "own")


def model(equation: Equation, point: Term | None, node: int, t: int) -> Tensor | None:
    """Return the model (d,) at which a gradient may have been computed."""
    if point is None:
        return equation.of(node, t)
    (sender,) = equation.streams.nodes_of(point, node)
    return equation.streams.value(point.kind, sender, t - point.lag)


def _at(
    equation: Equation,
    task: Task,
    rests: Mapping[int, _EquationRemainder],
    form: Form,
    point: Term | None,
) -> Equation | None:
    """Return an equation whose step holds for all nodes with equal factors."""
    eps = equation.streams.eps
    records: dict[int, tuple[Tensor, Tensor]] = {}
    rows: dict[int, list[_Row]] = {}
    for node, rest in rests.items():
        thetas = _models(equation, point, node, rest)
        y = _labels(task, form, rest, thetas, eps)
        best = 1.0  # largest miss in units of what is allowed
        for x in rest.inputs:
            some = _rows(form, rest, _gradients(task, x, y, thetas), eps)
            away = _away(some)
            if len(some) > HELD and away < best:
                best = away
                records[node] = (x, y)
                rows[node] = some
        if node not in records:
            return None
    fitted = [row for some in rows.values() for row in some[:-HELD]]
    exact = _exact(fitted)
    if exact is None or (form == "momentum" and exact[1] == 0):  # the latter is a simpler form
        return None
    used = torch.tensor([float(one) for one in exact], dtype=torch.float64)
    every = [row for some in rows.values() for row in some]
    if not all(row.miss(used) < row.allowed for row in every):
        return None
    other = {"single": Fraction(0), "momentum": exact[-1], "difference": -exact[0]}
    return replace(
        equation,
        form=form,
        point=point,
        rate=exact[0],
        other=other[form],
        records=records,
        miss=max(row.miss(used) for row in every),
    )


def _inputs(task: Task, rest: _EquationRemainder, rank: int, eps: float) -> tuple[Tensor, ...]:
    if not rest.values:
        return ()
    if rank == 1:
        x = _record(task, rest)
    else:
        x = _batch(task, rest, rank)
    if x is None:
        return ()
    grid = PixelGrid.of(task)
    shape = (rank, *task.spec.shape)
    if not bool(grid.holds(x).all()):
        return (x.reshape(shape),) if rank == 1 else ()
    x = grid.snapped(x).reshape(shape)
    if eps > SINGLE:
        return (x,)
    return (x, x.float().double())


def _record(task: Task, rest: _EquationRemainder) -> Tensor | None:
    scaled = [block(task, value) / float(value.norm()) for value in rest.values.values()]
    _, sizes, vh = np.linalg.svd(np.concatenate(scaled), full_matrices=False)
    row = torch.from_numpy(vh[:1])
    if (len(sizes) > 1 and sizes[1] > COARSE * sizes[0]) or float(row[0, -1]) == 0:
        return None
    return PixelGrid.of(task).pixels(row)


def _batch(task: Task, rest: _EquationRemainder, rank: int) -> Tensor | None:
    rounds = sorted(rest.values)
    values = torch.stack([rest.values[t] / rest.values[t].norm() for t in rounds])
    errors = torch.tensor([rest.noise[t] for t in rounds], dtype=torch.float64)
    leak = GradientLeak(
        node=0,
        rounds=torch.tensor(rounds),
        combination=torch.eye(len(rounds), dtype=torch.float64),
        value=values,
        std=errors / values.shape[1] ** 0.5,
        columns=(0, values.shape[1]),
        batch=rank,
    )
    found = registry.get("attacks", "exact")()(leak, task, Generator().manual_seed(0))
    if len(found.x) != rank:
        return None
    x: Tensor = found.x.double().flatten(1)
    return x


def _shared(rests: Mapping[int, _EquationRemainder]) -> bool:
    """Return whether two nodes reveal the same record; one may pass on the average of all."""
    rows = torch.cat([rest.inputs[0].flatten(1) for rest in rests.values()]).double()
    if len(rows) < 2:
        return False
    return float(torch.pdist(rows).min()) < COARSE * float(rows.norm(dim=1).max())


def _models(
    equation: Equation, point: Term | None, node: int, rest: _EquationRemainder
) -> dict[int, Tensor]:
    found: dict[int, Tensor] = {}
    for t in sorted({*rest.values, *(t - 1 for t in rest.values)}):
        theta = model(equation, point, node, t)
        if theta is not None:
            found[t] = theta
    return found


def _labels(
    task: Task, form: Form, rest: _EquationRemainder, thetas: Mapping[int, Tensor], eps: float
) -> Tensor:
    """Return the label of each record (b,) whose first layer is nearest to what is left."""
    x = rest.inputs[0]
    inverse = torch.linalg.pinv(PixelGrid.of(task).rows(x.flatten(1).double()))
    deltas = {t: torch.from_numpy(block(task, v)) @ inverse for t, v in rest.values.items()}
    rounds = [t for t in rest.values if _parts(form, t, deltas, thetas) is not None][:FITTED]
    needed = {t: thetas[t] for t in {*rounds, *(t - 1 for t in rounds)} if t in thetas}
    labels: list[int] = []
    for k in range(len(x)):
        mine = replace(rest, values={t: delta[:, k] for t, delta in deltas.items()})
        away: list[float] = []
        for y in range(min(LABELS, max(2, task.spec.classes))):
            gradients = _gradients(task, x[k : k + 1], torch.tensor([y]), needed)
            first = {t: torch.from_numpy(block(task, g))[:, -1] for t, g in gradients.items()}
            away.append(_away(_rows(form, mine, first, eps)))
        labels.append(min(range(len(away)), key=lambda y: away[y]))
    return torch.tensor(labels)


def _gradients(task: Task, x: Tensor, y: Tensor, thetas: Mapping[int, Tensor]) -> dict[int, Tensor]:
    found: dict[int, Tensor] = {}
    for t, theta in thetas.items():
        g = recomputed(task, x, y, theta)
        if g is not None:
            found[t] = g
    return found


def _parts(
    form: Form, t: int, values: Mapping[int, Tensor], gradients: Mapping[int, Tensor]
) -> list[Tensor] | None:
    """Return what a form adds up in a round; None if a part of it is not known."""
    before = {"single": gradients, "momentum": values, "difference": gradients}[form]
    if t not in gradients or (form != "single" and t - 1 not in before):
        return None
    if form == "single":
        return [gradients[t]]
    if form == "difference":
        return [gradients[t] - gradients[t - 1]]
    return [gradients[t], before[t - 1]]


def allowed(noise: float, eps: float) -> float:
    """Return how far a recomputed gradient may be from what is left, relative to it."""
    return min(COARSE, ROUNDINGS * noise + LAST_PLACES * eps)


@dataclass(frozen=True)
class _Row:
    """What is left in one round, and the parts that should add up to it."""

    parts: Tensor  # (m, k), rotated into the few directions that occur
    value: Tensor  # (m,) of norm 1, likewise
    allowed: float  # how far from each other they may be

    def miss(self, factors: Tensor) -> float:
        return float((self.value - self.parts @ factors).norm())


def _rows(
    form: Form, rest: _EquationRemainder, gradients: Mapping[int, Tensor], eps: float
) -> list[_Row]:
    found: list[_Row] = []
    for t, value in rest.values.items():
        some = _parts(form, t, rest.values, gradients)
        size = value.norm()
        if some is None or not float(size):
            continue
        noise = rest.noise[t]
        if form == "momentum":
            noise = max(noise, rest.noise[t - 1])
        columns = torch.stack([*some, value], dim=1) / size
        rotated = torch.linalg.qr(columns, mode="r").R
        found.append(_Row(rotated[:, :-1], rotated[:, -1], allowed(noise, eps)))
    return found


def _solved(rows: Sequence[_Row]) -> tuple[Tensor, Tensor]:
    """Return factors (k,) and how far the exact ones may be from them (k,)."""
    matrix = torch.cat([row.parts / row.allowed for row in rows])
    target = torch.cat([row.value / row.allowed for row in rows])
    factors = torch.linalg.lstsq(matrix, target[:, None], driver="gelsd").solution[:, 0]
    # An error as large as what is missed that lies in the space of the gradients, where it is not
    # seen, moves a factor by no more than this.
    missed = (target - matrix @ factors).norm()
    return factors, torch.linalg.pinv(matrix).norm(dim=1) * missed


def _away(rows: Sequence[_Row]) -> float:
    """Return the largest miss with the best factors, in units of what is allowed."""
    if not rows:
        return math.inf
    factors, _ = _solved(rows)
    return max(row.miss(factors) / row.allowed for row in rows)


def _exact(rows: Sequence[_Row]) -> list[Fraction] | None:
    exact: list[Fraction] = []
    for value, width in zip(*(one.tolist() for one in _solved(rows)), strict=True):
        simple = min_rank.simplest(value, width)
        if simple is None:
            return None
        exact.append(simple)
    return exact
