"""Find the model behind a vector that should be a gradient of one record, and prove it."""

# The gradient of a fully connected layer for one record is delta x^T for the weights and delta for
# the bias. If such a layer comes first, the block of its weights therefore has rank one, which
# reveals its widths. x follows from the block for any step size. The gradient recomputed at x must
# then equal the whole vector up to one factor, the step size: this is the proof.

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from leakaudit.capture.fitting.sketch import FactorDeviation, RecordedPart, deviation
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import TaskSpec
from leakaudit.protocols.optimiser import Optimiser
from leakaudit.tasks.models import ACTIVATIONS
from leakaudit.tasks.task import Task

# Widths to try if only the number of parameters is known: choices that bound the search.
WIDEST = 8192  # of a hidden layer
CLASSES = 1000
NARROWEST = 4  # inputs

# Measured on examples/tap/dpsgd_ring.py with float32 messages: at the correct widths the miss is
# 1e-6 to 3e-6, at every wrong width .3 or more, and .09 for the sum of two gradients. This chooses
# what is tried, also if weight decay or a short number format adds to it; that there is one record
# is proved by what is recomputed (`factors`, `local`, `duals`) and counted (`records`), within the
# rounding of the messages.
RANK_ONE = 0.02  # relative miss of the rank-one test
COLUMNS = 64  # inputs in which two rows are compared before the whole block is: a choice

# In the same run, 255 x is within 1e-4 of integers; other data would be .45 away.
LEVELS = 0.05  # distance of 255 x from integers, in QUANTILE of the inputs
QUANTILE = 0.9
# Means and standard deviations that tutorials use: [-1, 1], MNIST, Fashion-MNIST, CIFAR-10 (twice)
# and ImageNet. Records that are k/255 only after one of them prove it.
NORMALISED = (
    ((0.5,), (0.5,)),
    ((0.1307,), (0.3081,)),
    ((0.2860,), (0.3530,)),
    ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
)
NUMBERS = 16  # of a parameter, from which on all its digits show its format: a choice
FORMATS = ((16, 2.0**-7), (13, 2.0**-10))  # low bits of float32 that bfloat16 and float16 lack
OUTSIDE = 0.01  # distance by which noise may move an input out of [0, 1]


PLAIN = Optimiser()


@dataclass(frozen=True)
class GradientSample:
    """A vector that should be a gradient up to a factor: step * g(theta) = value."""

    value: Tensor  # (d,) the vector
    thetas: dict[str, Tensor]  # models (d,) at which it may have been computed, by name
    # model (d,) from which it was subtracted; None if it was sent itself
    base: Tensor | None = None
    rank: int = 0
    index: int = 0  # its position among the samples of the rank
    rounding: float = 0.0  # distance from 1 to the next number in the number format of the messages
    part: RecordedPart | None = None  # what is recorded of the vector; None if all of it is

    @property
    def point(self) -> str:
        """Name of the model, if there is only one."""
        return next(iter(self.thetas))

    @property
    def theta(self) -> Tensor:
        """The model (d,), if there is only one."""
        return self.thetas[self.point]

    def at(self, point: str) -> GradientSample:
        """Return the sample with one of its models."""
        return replace(self, thetas={point: self.thetas[point]})


@dataclass(frozen=True)
class ModelFit:
    """A model, and steps with its gradients, that explain the samples."""

    task: Task
    point: str  # name of the theta at which the gradients were computed
    step: float  # the factor, median over the better half of the samples; or the step size
    spread: float  # largest relative distance of a sample's factor from it
    miss: float  # relative residual of the samples: median, or largest of those that prove it
    steps: int = 1  # number of steps between two messages
    optimiser: Optimiser = PLAIN


def layers(value: Tensor, sizes: Sequence[int] = ()) -> Iterator[tuple[int, ...]]:
    """Yield the widths of fully connected networks whose first block in a vector has rank one."""
    flat = value.double().numpy()
    for found in widths(len(flat), sizes):
        inputs = found[0]
        rows = found[1]
        block = flat[: inputs * rows].reshape(rows, inputs)
        bias = flat[inputs * rows : (inputs + 1) * rows]
        if _is_rank_one(block, bias):
            yield found


def _is_rank_one(block: np.ndarray, bias: np.ndarray) -> bool:
    """Return whether a block (rows, inputs) equals bias x^T for some x."""
    if len(bias) == 1:
        return bool(bias[0] != 0)  # one row has rank one
    # Most widths are wrong, which two rows show quickly: block_k bias_m = block_m bias_k.
    k, m = np.argsort(-np.abs(bias))[:2]
    some = slice(0, min(COLUMNS, block.shape[1]))
    left = block[k, some] * bias[m]
    right = block[m, some] * bias[k]
    largest = max(np.abs(left).max(), np.abs(right).max())
    if bias[m] == 0 or np.abs(left - right).max() > RANK_ONE * largest:
        return False
    x = bias @ block / (bias @ bias)  # least squares
    miss = np.linalg.norm(block - np.outer(bias, x))
    return bool(miss < RANK_ONE * np.linalg.norm(block))


def widths(d: int, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield (inputs, outputs) and (inputs, hidden, outputs) of fully connected networks."""
    if len(sizes) in (2, 4):
        rows = sizes[1]
        fits = len(sizes) == 2 or sizes[2] == rows * sizes[3]
        if min(sizes) and sizes[0] % rows == 0 and fits:
            yield (sizes[0] // rows, rows, *sizes[3:])
        return
    if len(sizes) > 1:
        return
    # No hidden layer: d = (n + 1) c, with n inputs and c outputs.
    for c in range(2, CLASSES + 1):
        if d % c == 0 and d // c > NARROWEST:
            yield d // c - 1, c
    # One hidden layer of width h: d = (n + 1) h + (h + 1) c, so c = d modulo h.
    for h in range(2, min(WIDEST, d)):
        for c in range(d % h or h, CLASSES + 1, h):
            n = (d - (h + 1) * c) // h - 1
            if c > 1 and n >= NARROWEST:
                yield n, h, c


def candidates(found: tuple[int, ...]) -> Iterator[Task]:
    """Yield the models of some widths, one per activation."""
    # One output is interpreted as the logit of loss ``binary``; ``squared`` would have equal
    # widths.
    inputs = found[0]
    spec = TaskSpec("logistic", shape=image(inputs), classes=found[-1])
    if found[-1] == 1:
        spec = replace(spec, loss="binary", classes=2)
    if len(found) == 2:
        yield Task.build(spec)
    if len(found) == 3:
        hidden = str(found[1])
        for act in ACTIVATIONS:
            yield Task.build(replace(spec, model="mlp", args={"hidden": hidden, "act": act}))


def image(inputs: int) -> tuple[int, ...]:
    """Return the shape of a grey or coloured square picture with so many values, or (inputs,)."""
    for channels in (1, 3):
        side = math.isqrt(inputs // channels)
        if side > 1 and channels * side * side == inputs:
            return channels, side, side
    return (inputs,)


def fit(tasks: Iterable[Task], samples: Sequence[GradientSample]) -> ModelFit | None:
    """Return the model and the point that explain the samples best; None if none was tried."""
    points: set[str] = set()
    if samples:
        points = set.intersection(*(set(sample.thetas) for sample in samples))
    best: ModelFit | None = None
    for task in tasks:
        for point in sorted(points):
            found = _at(task, point, samples)
            if found is not None and (best is None or found.miss < best.miss):
                best = found
    return best


def _at(task: Task, point: str, samples: Sequence[GradientSample]) -> ModelFit | None:
    tried: list[FactorDeviation] = []
    for sample in samples:
        found = explained(task, sample.at(point))
        if found is not None:
            tried.append(found)
    if not tried:
        return None
    # No model explains a node with several records, or none, so the better half decides.
    tried.sort(key=lambda one: one.miss)
    half = len(tried) // 2
    steps = np.array([one.step for one in tried[: 1 + half]])
    step = float(np.median(steps))
    spread = math.inf
    if step:
        spread = float(np.abs(steps - step).max() / abs(step))
    return ModelFit(task, point, step, spread, miss=tried[half].miss)


def first_layer(task: Task, value: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the block (rows, inputs) and the bias (rows,) of a gradient's first layer, in float64.

    None if the model does not begin with a fully connected layer that has a bias.
    """
    if task.first_linear is None or task.first_linear[1] is None:
        return None
    weight, bias = (task.layout.slices[n] for n in task.first_linear if n)
    b = value[bias].double()
    return value[weight].double().reshape(len(b), -1), b


def record(task: Task, value: Tensor) -> Tensor | None:
    """Return the record (1, *shape) that the first layer's rows reveal, in the data's units.

    value: (d,) a gradient up to a factor.
    """
    layer = first_layer(task, value)
    if layer is None or not bool(layer[1].any()):
        return None
    block, b = layer
    return task.denormalise((b @ block / (b @ b)).reshape(1, *task.spec.shape))


def rank_one_miss(task: Task, value: Tensor, x: Tensor) -> tuple[float, float] | None:
    """Return how far the first layer's block is from that of one record, and the block's length.

    value: (d,) a gradient up to a factor; x: (1, *shape) the record, in the data's units.
    """
    layer = first_layer(task, value)
    if layer is None:
        return None
    block, b = layer
    apart = block - b[:, None] * task.normalise(x).double().reshape(1, -1)
    return float(apart.norm()), float(block.norm())


def levels(task: Task, samples: Sequence[GradientSample]) -> int:
    """Return the number of quantisation steps of the records that the samples reveal."""
    shown = 0
    near: list[float] = []
    for sample in samples:
        x = record(task, sample.value)
        if x is None:
            continue
        shown += 1
        if x.min() > -OUTSIDE and x.max() < 1 + OUTSIDE:
            distance = (255 * x - (255 * x).round()).abs()
            near.append(float(distance.quantile(QUANTILE)))
    if not shown or len(near) * 2 <= shown:
        return 0
    near.sort()
    return 255 if near[len(near) // 2] < LEVELS else 0


def normalised(task: Task, samples: Sequence[GradientSample]) -> tuple[Task, int]:
    """Return the model with the normalisation that makes its records k/255, and 255."""
    found = levels(task, samples)
    if found or task.spec.mean != (0.0,) or task.spec.std != (1.0,):
        return task, found
    channels = 1
    if task.spec.is_image:
        channels = task.spec.shape[0]
    for mean, std in NORMALISED:
        if len(mean) not in (1, channels):
            continue
        other = Task.build(replace(task.spec, mean=mean, std=std), trusted=task.trusted)
        found = levels(other, samples)
        if found:
            return other, found
    return task, 0


def explained(task: Task, sample: GradientSample) -> FactorDeviation | None:
    """Compare a vector with the gradient recomputed at the record that it reveals, if it can be.

    The factor between them is negative if a program sends its steps.
    """
    tried: list[FactorDeviation] = []
    for _, _, found in recovered(task, sample):
        # A search over constants compares misses, so the other sign counts only if it fits.
        if found.miss < RANK_ONE:
            return found
        tried.append(found)
    return tried[0] if tried else None


def recovered(
    task: Task, sample: GradientSample
) -> Iterator[tuple[tuple[Tensor, Tensor], Tensor, FactorDeviation]]:
    """Yield the record and label that a vector reveals, the gradient (d,) there, and its deviation.

    First of the vector as it is, and then of its negative.
    """
    for sign in (1, -1):
        shown = labelled(task, sign * sample.value)
        if shown is None or not _shows(sample.part, task):
            return
        g = recomputed(task, *shown, sample.theta)
        if g is None:
            return
        yield shown, g, deviation(sample.value, g, sample.part)


def misses(task: Task, sample: GradientSample) -> FactorDeviation | None:
    """Compare a partly recorded vector with the gradient at the record that it reveals, if any."""
    if sample.part is None or not sample.thetas:
        return None
    return min(
        (found for _, _, found in recovered(task, sample)), key=lambda one: one.kept, default=None
    )


def _shows(part: RecordedPart | None, task: Task) -> bool:
    if part is None:
        return True
    needed = [*(task.first_linear or ()), (task.last_linear or (None, None))[1]]
    return all(name is None or bool(part.kept[task.layout.slices[name]].all()) for name in needed)


def labelled(task: Task, value: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the record (1, *shape) that a vector reveals, and its label (1,), or None.

    The label is the class with the most negative bias gradient of the last layer: for cross-entropy
    that gradient is softmax minus the one-hot label.

    value: (d,) a gradient up to a positive factor.
    """
    x = record(task, value)
    bias = last_bias(task, value)
    if x is None or bias is None or task.spec.loss != "cross_entropy":
        return None
    return x, bias.argmin().reshape(1)


def last_bias(task: Task, value: Tensor) -> Tensor | None:
    """Return the bias (classes,) of a gradient's last fully connected layer, if it has one."""
    if task.last_linear is None or task.last_linear[1] is None:
        return None
    return value[task.layout.slices[task.last_linear[1]]]


def recomputed(task: Task, x: Tensor, y: Tensor, theta: Tensor) -> Tensor | None:
    """Return the gradient (d,) of a record in float64; None if the model rejects the record.

    x: (1, *shape) in the data's units; y: (1,) its label; theta: (d,) the parameters.
    """
    try:
        return task.gradient(theta.double(), x, y)
    except (RuntimeError, LeakauditError):
        return None


def precision(task: Task, sample: GradientSample) -> float:
    """Return the distance from 1 to the next number in the shortest format of a gradient."""
    return max(sample.rounding, _digits(task, sample.value))


def _digits(task: Task, value: Tensor) -> float:
    """Return the distance from 1 to the next number of a vector's shortest format, 0 for float32.

    Under autocast, numbers are computed in a short format and travel in float32.
    """
    bits = value.float().contiguous().view(torch.int32)
    for low, rounding in FORMATS:
        for place in task.layout.slices.values():
            some = bits[place][value[place] != 0]
            if len(some) >= NUMBERS and not bool((some & ((1 << low) - 1)).any()):
                return rounding
    return 0.0
