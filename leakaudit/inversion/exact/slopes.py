"""What known models reveal about images: the loss's slopes in the first layer's neurons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from leakaudit.inversion.exact import first_layer_rows
from leakaudit.inversion.linear import positive, singular_values
from leakaudit.tasks import batch_norm, losses

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.inversion.exact.first_layer_rows import BatchObservations
    from leakaudit.inversion.exact.pixel_grid import PixelGrid
    from leakaudit.tasks.task import Task

# A batch X decomposes the rows, W = Delta [X 1], into slopes Delta, one column per sample. If the
# models are known, the same column follows from the sample itself: it is J' g, where J is the
# derivative of the network's outputs in the first layer's neurons at this sample, and g that of the
# loss in the outputs. Cross-entropy permits one g per label, squared loss any g. The true batch is
# consistent with itself. A mixture of samples, which explains the rows equally well, has neurons
# and slopes of its own and is not consistent.
#
# This is used in two ways: to reject an inconsistent batch (`agree`), and to choose among batches
# of images that are so similar that activity leaves several possibilities (`by_slopes`).

# Maximum number of batches whose slopes are compared, ...
TRIALS = 20_000
# ... and of numbers to compare: slopes of single neurons, for one target and for each image and
# model, or each batch. This takes a minute.
NUMBERS = 250_000_000
# Number of batches that are compared at once, which bounds the memory.
CHUNK = 1_000

# Maximum part of an input's slopes that errors of the known models may explain; those of another
# image differ by 1e-2 and more.
ALLOWED = 1e-3

# Maximum distance of the correct batch's slopes, in units of the leak's own errors: 5 standard
# deviations.
FITS = 5.0

# Minimum ratio of the distance of every other batch to that of the correct one.
WORSE = 10.0

# Minimum number of neurons per direction of slopes for a fit by combinations to be meaningful.
TELLING = 2

# Minimum number of neurons at which the slopes of another image do not match a label by
# coincidence.
WIDE = 16

# Maximum relative amount by which slopes may exceed those of the model.
LONGER = 0.01

# Relative size below which a direction of slopes is rounding: float64 slopes have errors of 1e-15
# times the condition number of the following layers.
LEVEL = 1e-9


def agree(
    leak: GradientLeak, task: Task, basis: Tensor, rows: Tensor, grid: PixelGrid
) -> bool | None:
    """Check whether the slopes in the rows are those of the inputs at the known models.

    A sample's slopes have the direction that its label determines, the same label in all
    rounds, and at most the length that remains in a mean over the batch; clipping may make them
    shorter. Labels may also be soft, and squared loss has arbitrary targets, so a direction
    that the outputs permit in another way does not give False.

    A round says nothing about an input whose loss has no slope there, and slopes that depend on
    each other fit other inputs as well. The result is therefore True only if all rounds agree,
    in a layer wide enough to decide, and if they would show every mixture of the inputs
    (`_tells_apart`). `basis` and `rows` are (b, p + 1). None if this cannot be determined, as
    when gradients cannot be computed again sample by sample.
    """
    plain = leak.single.nonzero().flatten()
    if not _reproducible(leak, task) or not len(plain):
        return None
    duals = torch.linalg.inv(rows @ basis.T)
    found = (first_layer_rows.rows(leak, task)[plain] @ basis.T) @ duals  # (m, H, b)
    if found.numel() * _targets(task) > NUMBERS:
        return None
    noise = leak.std[plain].double()[:, None] * duals.norm(dim=0) * math.sqrt(found.shape[1])
    allowed = FITS * noise + ALLOWED * found.norm(dim=1)  # (m, b)
    images = rows[:, :-1] / rows[:, -1:] * grid.std + grid.mean
    labels = torch.ones(len(rows), _targets(task), dtype=torch.bool)  # those that fit so far
    for t, row in enumerate(plain.tolist()):
        expected, rounded = (some / (leak.batch or 1) for some in _slopes(leak, task, row, images))
        if not bool(expected.isfinite().all()):
            return None
        allowed[t] += FITS * rounded
        for k, mine in enumerate(found[t].T):
            fits = _fits(mine, expected[k], float(allowed[t, k]), task.spec.loss)
            labels[k] &= fits
            if not _possible(mine, expected[k], float(allowed[t, k]), task.spec.loss, fits):
                return False
    # In a last layer, all samples of one label may have the same slopes, whatever they are.
    hidden = len(task.layout.names) > 2
    wide = hidden and found.shape[1] >= WIDE and len(plain) == len(leak.combination)
    if leak.batch is None or not wide or not bool(labels.any(1).all()):
        return None
    return True if _tells_apart(found, allowed) else None


def _tells_apart(found: Tensor, allowed: Tensor) -> bool:
    """Check whether every mixture of the inputs would show in their slopes (m, H, b).

    If the rows contain X = (1 + E) X' instead of X', the slopes of input j in X' lack the sum
    over k of E_kj times those of k. An E that changes no round by more than errors explain
    (`allowed`, (m, b)) stays unnoticed; slopes that are small, equal or proportional leave such
    an E, however large it is. True if no input can contain a tenth of another one, or more,
    unnoticed.
    """
    rounds, _, b = found.shape
    if b == 1:
        return bool((found[:, :, 0].norm(dim=1) > allowed[:, 0]).any())
    for j in range(b):
        others = torch.arange(b) != j
        seen = found[:, :, others] / positive(allowed[:, j, None, None])
        least = singular_values(seen.flatten(0, 1))[-1]
        if not float(least) > WORSE * math.sqrt(rounds):
            return False
    return True


def _fits(mine: Tensor, expected: Tensor, allowed: float, loss: str) -> Tensor:
    """Decide for which labels (targets,) slopes have their direction and at most their length."""
    size = expected.norm(dim=1)
    if loss == "squared":
        return torch.zeros_like(size, dtype=torch.bool)
    length = (expected @ mine) / positive(size.square())
    off = (mine - length[:, None] * expected).norm(dim=1)
    # If an input has another's slopes as well, the other has none left and it has twice its own.
    there = (length * size > allowed) | (size <= allowed)
    short = (length - 1) * size <= allowed + LONGER * size
    fits: Tensor = (off <= allowed) & there & short
    return fits


def _possible(mine: Tensor, expected: Tensor, allowed: float, loss: str, fits: Tensor) -> bool:
    """Check whether slopes (H,) fit a label, or combine all targets' as those of soft labels do."""
    return bool(fits.any()) or _spanned(mine, expected, allowed, loss)


def _spanned(mine: Tensor, expected: Tensor, allowed: float, loss: str) -> bool:
    """Check whether slopes (H,) combine all targets' (targets, H), as those of soft labels do."""
    _, size, right = torch.linalg.svd(expected, full_matrices=False)
    directions = right[size > LEVEL * size[0]]
    telling = len(mine) >= TELLING * len(directions) or loss == "squared"
    return telling and float((mine - directions.T @ (directions @ mine)).norm()) <= allowed


def by_slopes(heard: BatchObservations, x: Tensor, choices: Mapping[int, Tensor]) -> Tensor | None:
    """Return the only batch, among those that the choices allow, that the known models confirm.

    Only the true batch is consistent: in any other, the columns of similar samples are mixed
    with large factors. None if no batch or more than one fits, or there are too many.
    """
    leak = heard.leak
    task = heard.task
    basis = heard.span.basis
    images = [torch.cat([x[k : k + 1], choices.get(k, x[:0])]) for k in range(len(x))]
    number = math.prod(len(some) for some in images)
    single = task.spec.loss == "cross_entropy" and _reproducible(leak, task)
    if not single or leak.batch != len(x) or number > TRIALS:
        return None
    # The row with the largest ratio to its own noise.
    size = leak.value.double().norm(dim=1)
    row = int((size / leak.std.clamp_min(torch.finfo(torch.float64).tiny)).argmax())
    models = int(leak.combination[row].count_nonzero())
    rows = first_layer_rows.rows(leak, task)[row]
    if max(sum(map(len, images)) * models, number) * _targets(task) * len(rows) > NUMBERS:
        return None
    rounding = torch.finfo(leak.value.dtype).eps * float(rows.square().mean().sqrt())
    noise = max(float(leak.std[row]), rounding)
    # For each position, (1 + k, classes, H)
    expected = [_slopes(leak, task, row, some)[0] for some in images]
    places = torch.cartesian_prod(*[torch.arange(len(some)) for some in images])
    places = places.reshape(-1, len(x))
    inside = [heard.grid.stored(some, basis)[0] @ basis.T for some in images]
    batches = torch.stack([inside[k][places[:, k]] for k in range(len(x))], dim=1)  # (trials, b, b)
    duals, failed = torch.linalg.inv_ex(batches)
    found = (rows @ basis.T) @ duals  # (trials, H, b)
    worst = torch.zeros(len(places), dtype=torch.float64)
    for some in torch.arange(number).split(CHUNK):
        for k in range(len(x)):
            wrong = found[some, None, :, k] - expected[k][places[some, k]] / len(x)
            off = wrong.square().mean(2).amin(1).sqrt() / (noise * duals[some, :, k].norm(dim=1))
            worst[some] = torch.maximum(worst[some], off.nan_to_num(torch.inf))
    worst[failed != 0] = torch.inf
    best = int(worst.argmin())
    chosen = torch.stack([images[k][places[best, k]] for k in range(len(x))])
    # Exchanging two images gives the same batch, so only different sets count as others.
    others = worst[~_same_sets(images, places, best)]
    if float(worst[best]) > FITS:
        return None
    if len(others) and float(others.min()) < WORSE * max(1.0, float(worst[best])):
        return None
    return chosen


def _reproducible(leak: GradientLeak, task: Task) -> bool:
    """Check whether gradients at the leak's models can be computed again sample by sample."""
    return leak.theta is not None and leak.inner == 1 and not batch_norm.normalises(task)


def _targets(task: Task) -> int:
    """Return the number of targets whose slopes span those of all targets."""
    if task.spec.loss == "squared":
        return task.spec.classes + 1
    if task.spec.loss == "cross_entropy":
        return task.spec.classes
    return 2


def _slopes(leak: GradientLeak, task: Task, row: int, images: Tensor) -> tuple[Tensor, Tensor]:
    """Compute slopes (b, targets, H) of images' losses in the first layer, for a row of the leak.

    The slope in a neuron is the derivative in its bias: that of the loss in the outputs, times
    that of the outputs in the bias. There is one target per label for cross-entropy and binary
    loss; for squared loss, whose slopes are affine in the target, zero and all unit vectors.
    Also returns the error (b,) that rounding in the program causes: a probability near 1 minus
    1 has no relative precision.
    """
    assert leak.theta is not None
    assert task.first_linear is not None
    x = images.reshape(-1, *task.spec.shape)
    parts: list[Tensor] = []
    errors = torch.zeros(len(x), dtype=torch.float64)
    precision = max(leak.wire, torch.finfo(leak.value.dtype).eps)
    for model in leak.combination[row].nonzero().flatten().tolist():
        out, inside = _outputs(task, task.first_linear[0], leak.theta[model].double(), x)
        weight = leak.combination[row, model].double()
        parts.append(weight * _output_slopes(task, out) @ inside)
        terms = out.abs().clamp_min(1.0) if task.spec.loss == "squared" else torch.ones_like(out)
        errors += precision * (weight * terms[:, :, None] * inside).flatten(1).norm(dim=1)
    return sum(parts[1:], start=parts[0]), errors


def _outputs(task: Task, weight: str, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs (b, k) and their derivatives (b, k, H) in the neurons of a weight's layer.

    Images do not influence each other's outputs, so one backward pass per output serves them
    all.
    """
    layer = task.module.get_submodule(weight.rpartition(".")[0])
    shift = x.new_zeros(len(x), task.layout.split(theta)[weight].shape[0], requires_grad=True)

    def shifted(layer: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
        return out + shift.reshape(out.shape)

    with torch.enable_grad(), layer.register_forward_hook(shifted):
        out = task.logits(theta, x)
        inside = [
            torch.autograd.grad(one.sum(), shift, retain_graph=True, materialize_grads=True)[0]
            for one in out.T
        ]
    return out.detach(), torch.stack(inside, dim=1)


def _output_slopes(task: Task, out: Tensor) -> Tensor:
    """Return the slopes (b, targets, outputs) of all targets in outputs (b, outputs)."""
    loss = task.spec.loss
    if loss == "cross_entropy":
        targets = torch.arange(task.spec.classes)[:, None]
    elif loss == "binary":
        targets = torch.tensor([[0.0], [1.0]], dtype=out.dtype)
    else:
        one = torch.eye(out.shape[1], dtype=out.dtype)
        targets = torch.cat([torch.zeros_like(one[:1]), one])[:, None]
    every = [losses.output_slope(loss, out[:, None], y.expand(len(out), *y.shape)) for y in targets]
    return torch.cat(every, dim=1)


def _same_sets(images: Sequence[Tensor], places: Tensor, best: int) -> Tensor:
    """Decide which trials (n, b) contain the same images as the best one, in any order."""
    every = torch.unique(torch.cat(list(images)), dim=0, return_inverse=True)[1]
    starts = torch.tensor([0, *[len(some) for some in images]]).cumsum(0)[:-1]
    names = every[places + starts].sort(dim=1).values
    same: Tensor = (names == names[best]).all(1)
    return same
