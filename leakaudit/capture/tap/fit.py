"""Find the model behind a vector that should be a gradient of one record, and prove it: the record gives the gradient back.

The gradient of a fully connected layer for one record is delta x^T for the weights and delta for the bias. So where such a layer comes
first, the block of its weights has rank one, which tells its widths; x follows from it whatever the step size is; and the gradient at x,
computed anew, must be the whole vector, up to one factor, which is the step size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from leakaudit.errors import LeakauditError
from leakaudit.tasks.models import ACTIVATIONS
from leakaudit.tasks.task import Task
from leakaudit.trace import TaskSpec

WIDEST, CLASSES, NARROWEST = 8192, 1000, 4  # hidden width, classes and inputs that are tried
RANK_ONE, LEVELS = 0.02, 0.05  # miss of the rank-one test; distance of 255 x from whole numbers


@dataclass(frozen=True)
class Sample:
    """One would-be gradient: step * g(theta) = value at one of the models `thetas`, by name. value: (d,)."""

    value: Tensor
    thetas: dict[str, Tensor]


@dataclass(frozen=True)
class Fit:
    """A model that explains samples. point: the name of theta. step: the factor. miss: relative, of the worst half of the samples."""

    task: Task
    point: str
    step: float
    spread: float
    miss: float


def layers(value: Tensor, sizes: Sequence[int] = ()) -> Iterator[tuple[int, ...]]:
    """Yield the widths (inputs, hidden, outputs) or (inputs, outputs) of fully connected networks whose first block has rank one.

    value: (d,) as it was sent. sizes: of its parameters, where they were sent one by one.
    """
    flat = value.double().numpy()
    for found in widths(len(flat), sizes):
        inputs, rows = found[0], found[1]
        block, bias = (
            flat[: inputs * rows].reshape(rows, inputs),
            flat[inputs * rows : (inputs + 1) * rows],
        )
        k, m = np.argsort(-np.abs(bias))[:2]
        some = slice(0, min(64, inputs))
        left, right = block[k, some] * bias[m], block[m, some] * bias[k]
        if bias[m] == 0 or np.abs(left - right).max() > RANK_ONE * max(
            np.abs(left).max(), np.abs(right).max()
        ):
            continue
        x = bias @ block / (bias @ bias)
        if np.linalg.norm(block - np.outer(bias, x)) < RANK_ONE * np.linalg.norm(block):
            yield found


def widths(d: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the widths of all fully connected networks of d parameters, of those whose parameters have these sizes where they are known."""
    if len(sizes) in (2, 4):
        rows = sizes[1]
        if sizes[0] % rows == 0 and (len(sizes) == 2 or sizes[2] == rows * sizes[3]):
            yield (sizes[0] // rows, rows, *sizes[3:])
        return
    if len(sizes) > 1:
        return
    for c in range(2, CLASSES + 1):  # no hidden layer
        if d % c == 0 and d // c > NARROWEST:
            yield d // c - 1, c
    for h in range(2, min(WIDEST, d)):
        for c in range(d % h or h, CLASSES + 1, h):  # d = (n + 1) h + (h + 1) c
            if c > 1 and (n := (d - (h + 1) * c) // h - 1) >= NARROWEST:
                yield n, h, c


def candidates(found: tuple[int, ...]) -> Iterator[Task]:
    """Yield the models of these widths, one an activation."""
    inputs, classes = found[0], found[-1]
    spec = TaskSpec("logistic", shape=image(inputs), classes=classes)
    if len(found) == 2:
        yield Task.build(spec)
    for act in ACTIVATIONS if len(found) == 3 else ():
        yield Task.build(replace(spec, model="mlp", args={"hidden": str(found[1]), "act": act}))


def image(inputs: int) -> tuple[int, ...]:
    """Return the shape of a square picture of so many values, gray or with three channels, else of a vector."""
    for channels in (1, 3):
        side = math.isqrt(inputs // channels)
        if side > 1 and channels * side * side == inputs:
            return channels, side, side
    return (inputs,)


def fit(tasks: Iterable[Task], samples: Sequence[Sample]) -> Fit | None:
    """Return the model, and the point, that explain the samples best; None where no model could be tried."""
    best: Fit | None = None
    for task in tasks:
        points = set.intersection(*(set(s.thetas) for s in samples)) if samples else set()
        for point in sorted(points):
            found = [explained(task, s.value, s.thetas[point]) for s in samples]
            tried = sorted((f for f in found if f is not None), key=lambda f: f[1])
            if not tried:
                continue
            steps = np.array([f[0] for f in tried[: 1 + len(tried) // 2]])
            step = float(np.median(steps))
            spread = float(np.abs(steps - step).max() / abs(step)) if step else math.inf
            miss = tried[len(tried) // 2][1]
            if best is None or miss < best.miss:
                best = Fit(task, point, step, spread, miss)
    return best


def record(task: Task, value: Tensor) -> Tensor | None:
    """Return the one record (1, *shape) that the first layer's rows show, in the data's units; None where there is no such layer."""
    if task.first_linear is None or task.first_linear[1] is None:
        return None
    weight, bias = (task.layout.slices[n] for n in task.first_linear if n)
    b = value[bias].double()
    if not bool(b.any()):
        return None
    x = (b @ value[weight].double().reshape(len(b), -1) / (b @ b)).reshape(1, *task.spec.shape)
    return task.denormalise(x)


def levels(task: Task, samples: Sequence[Sample]) -> int:
    """Return 255 where the records that the samples show are k/255, else 0."""
    shown = [x for s in samples if (x := record(task, s.value)) is not None]
    near = [
        float((255 * x - (255 * x).round()).abs().quantile(0.9))
        for x in shown
        if x.min() > -0.01 and x.max() < 1.01
    ]
    return (
        255 if shown and len(near) * 2 > len(shown) and sorted(near)[len(near) // 2] < LEVELS else 0
    )


def explained(task: Task, value: Tensor, theta: Tensor) -> tuple[float, float] | None:
    """Return the factor between `value` and the gradient at the record that it shows, and the relative miss; None without a record."""
    x = record(task, value)
    if (
        x is None
        or task.spec.loss != "cross_entropy"
        or task.last_linear is None
        or task.last_linear[1] is None
    ):
        return None
    value = value.double()
    y = value[task.layout.slices[task.last_linear[1]]].argmin().reshape(1)
    try:
        g = task.gradient(theta.double(), x, y)
    except (RuntimeError, LeakauditError):
        return None
    square = float(g @ g)
    step = float(value @ g) / square if square else 0.0
    return step, float((value - step * g).norm() / value.norm())
