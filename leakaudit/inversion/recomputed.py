"""Whether certified inputs reproduce the messages at the known models: the last condition of all.

The other conditions read the first layer's rows alone, so they believe that these are gradients.
An optimiser that scales every parameter or layer by itself (Adam, Adagrad, LARS), signs of
gradients, and clipping layer by layer all leave rows of rank one that belong to no input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.core.evidence import Evidence, Origin
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.inversion.attack import withdrawn
from leakaudit.inversion.linear import least_squares, positive
from leakaudit.inversion.round_by_round import PROVEN
from leakaudit.inversion.search import local_training, objectives
from leakaudit.tasks import batch_norm

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.tasks.task import Task

SUBJECT = "gradients"

# Part of a tensor's gradient that inputs may leave unexplained: the grid absorbs small errors.
# Programs that are not as declared leave .05 to 1.
CLOSE = 1e-3
# The same if nothing but rounding in float32 leaves it, relative to the whole gradient.
ROUNDING = 1e-5
# Residual that noise explains, in units of this noise.
NOISE = 3.0
# Values within intervals may leave as much as this many half-widths.
WIDTHS = 10.0

# Parameters of a tensor that are compared; more show nothing new.
COLUMNS = 4096
# Numbers that are computed for all equations: about a second.
NUMBERS = 10**9
# Numbers to compare for each one that is fitted, so that a fit says something.
TELLING = 4
# Factor of all kernels in the control of a fit: a choice.
FACTOR = 2.0

COLOURLESS = (
    "black and white pixels do not show that the messages are gradients: signs of gradients look "
    "the same"
)


def confirmed(found: Reconstruction, leak: GradientLeak, task: Task) -> Reconstruction:
    """Withdraw certificates if their inputs, computed again, cannot give the messages.

    The evidence says whether they do, or that this could not be tested.
    """
    proven = len(found.x) if found.certificate in PROVEN else found.certified
    if not proven or task.tokens:
        return found
    close = CLOSE
    if found.interval is not None:
        width = float(found.interval.norm() / found.x.norm())
        close = min(CLOSE, max(ROUNDING, WIDTHS * width))
    tested: set[int] = set()
    for inputs, agrees in _tests(found, proven, leak, task, close):
        if agrees is False:
            why = "computed again from these inputs, they differ from the messages"
            return withdrawn(_with(found, Origin.CONTRADICTED, why), why)
        if agrees:
            tested.update(inputs)
    if tested >= {*range(proven)}:
        return _with(found, Origin.VERIFIED, f"computed again from these inputs, to {close:.0e}")
    why = "not computed again from these inputs"
    if leak.theta is None:
        why += ", at unknown models"
    declared = _with(found, Origin.DECLARED, why)
    if task.spec.levels and _alone(found, proven, leak) and _colourless(found.x[:proven]):
        return withdrawn(declared, COLOURLESS)
    return declared


def _with(found: Reconstruction, origin: Origin, why: str) -> Reconstruction:
    return replace(found, evidence=(*found.evidence, Evidence(SUBJECT, origin, why)))


def _alone(found: Reconstruction, proven: int, leak: GradientLeak) -> bool:
    """Return whether each gradient comes from one input, so that only pixels prove it."""
    if leak.samples == 1 or len(found.x) == 1:
        return True
    rounds = [one for some in found.rounds[:proven] for one in some]
    return bool(rounds) and len(rounds) == len({*rounds})


def _colourless(x: Tensor) -> bool:
    """Return whether some image (b, *shape) consists of black and white pixels only."""
    return bool(((x == 0) | (x == 1)).flatten(1).all(1).any())


def _tests(
    found: Reconstruction, proven: int, leak: GradientLeak, task: Task, close: float
) -> Iterator[tuple[list[int], bool | None]]:
    """Yield certified inputs, and whether they give their gradient; None if nothing shows it."""
    if leak.theta is None or leak.gaps or batch_norm.normalises(task) or task.masked:
        return
    room = NUMBERS
    for k in objectives.clarity(leak).argsort(descending=True).tolist():
        inputs = _behind(found, proven, leak, k)
        if not inputs or room < 0:
            continue
        equation = leak.equation(k)
        columns = _compared(equation, task)
        if not len(columns):
            continue
        x = found.x[inputs]
        y = _labels(found, inputs, task)
        room -= len(equation.rounds) * len(x) * equation.inner * task.layout.size
        agrees = _by_labels(equation, task, columns, x, y, close)
        if not agrees and equation.inner == 1:
            room -= 2 * len(equation.rounds) * len(x) * _outputs(task) * task.layout.size
            fits = None if room < 0 else _by_slopes(equation, task, columns, x, close)
            agrees = agrees if fits is None else fits
        yield inputs, agrees


def _labels(found: Reconstruction, inputs: list[int], task: Task) -> Tensor | None:
    """Return the labels of some inputs; None if one of them was not found."""
    if found.y is None or len(found.y) != len(found.x):
        return None
    y = found.y[inputs]
    if not bool(y.isfinite().all()) or bool((y < 0).any()):
        return None
    return y.long() if task.spec.loss == "cross_entropy" else y


def _behind(found: Reconstruction, proven: int, leak: GradientLeak, k: int) -> list[int]:
    """Return the inputs of equation k; empty if some are not certified or not known."""
    inputs = [*range(len(found.x))]
    if any(found.rounds):
        used = {*leak.equation(k).when}
        inputs = [i for i in inputs if i >= proven or used <= {*found.rounds[i]}]
    several = leak.batch is not None and len(inputs) != leak.batch
    return [] if several or any(i >= proven for i in inputs) else inputs


def _outputs(task: Task) -> int:
    return 1 if task.spec.loss == "binary" else task.spec.classes


def _by_labels(
    leak: GradientLeak, task: Task, columns: Tensor, x: Tensor, y: Tensor | None, close: float
) -> bool | None:
    """Return whether one equation (1, c) is that of some labels, as far as these alone decide it.

    A gradient may be shorter than computed, because of clipping, if its direction depends on the
    label. Of several records, and of several steps or models, each may be clipped by itself, and
    steps may change from round to round: a difference then shows nothing.
    """
    labels = [y] if y is not None else _each_label(leak, task, x)
    value = leak.value[0].double()[columns - leak.columns[0]]
    for label in labels:
        again = _again(leak, task, x.double(), label)
        if again is None:
            return None
        again = again[columns]
        size = float(again @ value / positive(again @ again))
        if _outputs(task) > 2 and 0 < size <= 1:
            again = size * again
        if _largest(leak, task, columns, again - value, value, float(again.norm())) <= close:
            return True
    alone = len(x) == 1 and leak.inner == 1 and len(leak.rounds) == 1
    return False if labels and alone and task.spec.loss != "squared" else None


def _each_label(leak: GradientLeak, task: Task, x: Tensor) -> list[Tensor]:
    if len(x) > 1 or leak.inner > 1 or task.spec.loss == "squared":
        return []
    if task.spec.loss == "binary":
        return [torch.tensor([0.0]).double(), torch.tensor([1.0]).double()]
    return list(torch.arange(task.spec.classes)[:, None])


def _again(leak: GradientLeak, task: Task, x: Tensor, y: Tensor) -> Tensor | None:
    """Compute the gradients (d,) of one equation again; None if the local steps are not known."""
    assert leak.theta is not None
    plain = leak.inner == 1 or (leak.is_plain and leak.inner_weight in (None, leak.inner))
    if not plain or (leak.inner > 1 and local_training.missing(leak, None, len(x))):
        return None
    local = local_training.of(leak, None, leak.records)
    again = torch.zeros(task.layout.size, dtype=torch.float64)
    for weight, theta in zip(leak.combination[0].double(), leak.theta.double(), strict=True):
        if leak.inner == 1:
            again += weight * task.gradient(theta, x, y)
        else:
            again += weight * local_training.update(task, local, theta, x, y, graph=False)
    return again


def _by_slopes(
    leak: GradientLeak, task: Task, columns: Tensor, x: Tensor, close: float
) -> bool | None:
    """Return whether one equation (1, c) fits these inputs, whatever the slopes of the loss are.

    A gradient is sum_k J_k^T q_k / b, with J_k (K, d) the derivatives of the outputs at input k and
    q_k (K,) the slopes of its loss in the outputs, which clipping may scale. The q_k are fitted,
    those of each model by themselves, so labels and loss need not be known. Without a hidden
    layer, or with biases of zero, such a fit finds slopes for larger kernels as well: if it does
    so for kernels that are twice as large, and for inputs twice as large, it shows nothing.
    """
    value = leak.value[0].double()[columns - leak.columns[0]]
    left = _fitted(leak, task, columns, x, value)
    if left is None:
        return None
    if left > close:
        return False
    larger = value.clone()
    assert leak.theta is not None
    for name, tensor in task.layout.split(leak.theta[0]).items():
        piece = task.layout.slices[name]
        if tensor.dim() > 1:
            larger[(columns >= piece.start) & (columns < piece.stop)] *= FACTOR
    control = _fitted(leak, task, columns, task.denormalise(FACTOR * task.normalise(x)), larger)
    return True if control is not None and control > max(close, CLOSE) else None


def _fitted(
    leak: GradientLeak, task: Task, columns: Tensor, x: Tensor, value: Tensor
) -> float | None:
    """Return what is left of the values (n,) of an equation after a fit of the loss's slopes."""
    assert leak.theta is not None
    free = len(leak.theta) * (len(x) * _outputs(task) + bool(task.l2))
    if len(columns) < TELLING * free:
        return None
    rows = []
    for weight, one in zip(leak.combination[0].double(), leak.theta.double(), strict=True):
        theta = one.clone().requires_grad_()
        with torch.enable_grad():
            out = task.logits(theta, x.double()).flatten()
            for k in range(len(out)):
                (slope,) = torch.autograd.grad(out[k], theta, retain_graph=True)
                rows.append(weight * slope[columns])
        if task.l2:
            rows.append(weight * one[columns])
    basis = torch.stack(rows)  # (free, n)
    if not bool(basis.isfinite().all()):
        return None
    fit = least_squares(basis.T, value)
    terms = float((basis * fit[:, None]).norm(dim=1).max())
    return _largest(leak, task, columns, fit @ basis - value, value, terms)


def _compared(leak: GradientLeak, task: Task) -> Tensor:
    """Return the columns (n,) of the model to compare: some of each tensor that is not frozen."""
    start, stop = leak.columns
    generator = torch.Generator().manual_seed(0)
    parts = []
    for piece in task.layout.slices.values():
        columns = torch.arange(max(piece.start, start), min(piece.stop, stop))
        size = leak.value[0, columns - start].norm()
        if len(columns) and float(size) > ROUNDING * float(leak.value.norm()):
            chosen = torch.randperm(len(columns), generator=generator)[:COLUMNS]
            parts.append(columns[chosen.sort().values])
    return torch.cat(parts) if parts else torch.arange(0)


def _largest(
    leak: GradientLeak, task: Task, columns: Tensor, off: Tensor, value: Tensor, terms: float
) -> float:
    """Return the largest part of a tensor's values that is off by more than errors explain."""
    noise = NOISE * float(leak.std[0])
    rounding = ROUNDING * max(float(value.norm()), terms)
    worst = 0.0
    for piece in task.layout.slices.values():
        here = (columns >= piece.start) & (columns < piece.stop)
        size = float(value[here].norm())
        if size:
            left = float(off[here].norm()) - noise * math.sqrt(int(here.sum())) - rounding
            worst = max(worst, left / size)
    return worst
