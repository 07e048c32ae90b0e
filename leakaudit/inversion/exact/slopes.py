"""What known models say of images: the loss's slopes in the first layer's neurons.

A batch X takes the rows apart, W = Delta [X 1], into slopes Delta, one column per sample. If the
models are known, the same column follows from the sample itself: it is J' g, where J is the
derivative of the network's outputs in the first layer's neurons at this sample, and g that of the
loss in the outputs. Cross-entropy leaves one g per label, squared loss any g at all. The true batch
agrees with itself. A mixture of samples, which explains the rows as well, has neurons and slopes of
its own and does not.

This is used twice: to reject a batch that disagrees (`agree`), and to choose among batches of
images that are so alike that activity leaves several of them (`by_slopes`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.inversion.exact import first_layer_rows
from leakaudit.inversion.search import priors

if TYPE_CHECKING:
    from leakaudit.inversion.exact.certify import Heard
    from leakaudit.inversion.exact.pixel_grid import Grid
    from leakaudit.leak import GradientLeak
    from leakaudit.tasks.task import Task

# Most batches whose slopes are compared, ...
TRIALS = 20_000
# ... and gradients of single images that this may take: some seconds.
GRADIENTS = 5_000

# Part of an input's slopes that errors of the known models may make; those of another image differ
# by 1e-2 and more.
ALLOWED = 1e-3

# Distance of the right batch's slopes, in units of the leak's own errors: 5 standard deviations.
FITS = 5.0

# Times as much that every other batch must leave.
WORSE = 10.0

# Neurons per direction of slopes, so that it means something if slopes are a combination of them.
TELLING = 2

# Neurons at which the slopes of another image are not those of a label by accident.
WIDE = 16

# Part of their length by which slopes may exceed what the model gives.
LONGER = 0.01

# Relative size below which a direction of slopes is rounding: float64 slopes are right to 1e-15
# times the condition number of the layers behind.
LEVEL = 1e-9


def agree(leak: GradientLeak, task: Task, basis: Tensor, rows: Tensor, grid: Grid) -> bool | None:
    """Whether the rows hold the slopes that known models give the inputs.

    A sample's slopes have the direction that its label gives them, and at most the length that a
    mean over the batch leaves them; clipping may make them shorter. Labels may be soft, too, and
    squared loss has any targets, so a direction that the outputs allow in some other way is not
    False.

    Args:
        leak: Gradients. If nobody can compute them again sample by sample, nothing is known.
        task: What is trained.
        basis: (b, p + 1) orthonormal rows that span the leak's rows.
        rows: (b, p + 1) all inputs as the first layer sees them, and a 1.
        grid: Of the data.

    Returns:
        True if direction and length agree for every input, in a layer wide enough to tell; False if
        the slopes of some input are those of no target; None if it is not known.
    """
    plain = (leak.combination.count_nonzero(dim=1) == 1).nonzero().flatten()
    if not _reproducible(leak, task) or not len(plain) or len(rows) * _targets(task) > GRADIENTS:
        return None
    row = int(plain[leak.value.double()[plain].norm(dim=1).argmax()])
    duals = torch.linalg.inv(rows @ basis.T)
    found = (first_layer_rows.rows(leak, task)[row] @ basis.T) @ duals  # (H, b)
    noise = float(leak.std[row]) * duals.norm(dim=0) * math.sqrt(len(found))
    images = rows[:, :-1] / rows[:, -1:] * grid.std + grid.mean
    # In a last layer all samples of one label may have the same slopes, whatever they are.
    hidden = len(task.layout.names) > 2
    sure = leak.batch is not None and hidden and len(found) >= WIDE
    for k, image in enumerate(images):
        expected = _slopes(leak, task, row, image) / (leak.batch or 1)
        if not bool(expected.isfinite().all()):
            return None
        mine = found[:, k]
        allowed = FITS * float(noise[k]) + ALLOWED * float(mine.norm())
        fits = _fits(mine, expected, allowed, task.spec.loss)
        if not fits and not _spanned(mine, expected, allowed, task.spec.loss):
            return False
        sure &= fits
    return True if sure else None


def _fits(mine: Tensor, expected: Tensor, allowed: float, loss: str) -> bool:
    """Whether slopes have the direction of one label's and no more than their length.

    Args:
        mine: (H,) slopes in the rows.
        expected: (targets, H) slopes that the model gives.
        allowed: Distance that errors may make.
        loss: Name of the loss. Squared loss has no labels.
    """
    if loss == "squared":
        return False
    size = expected.norm(dim=1)
    length = (expected @ mine) / size.square().clamp_min(torch.finfo(mine.dtype).tiny)
    off = (mine - length[:, None] * expected).norm(dim=1)
    # An input whose slopes are another's as well leaves none to that one, and has twice its own.
    there = (length * size > allowed) | (size <= allowed)
    short = (length - 1) * size <= allowed + LONGER * size
    return bool(((off <= allowed) & there & short).any())


def _spanned(mine: Tensor, expected: Tensor, allowed: float, loss: str) -> bool:
    """Whether slopes (H,) are a combination of all targets' (targets, H), as of soft labels."""
    _, size, right = torch.linalg.svd(expected, full_matrices=False)
    directions = right[size > LEVEL * size[0]]
    telling = len(mine) >= TELLING * len(directions) or loss == "squared"
    return telling and float((mine - directions.T @ (directions @ mine)).norm()) <= allowed


def by_slopes(heard: Heard, x: Tensor, choices: Mapping[int, Tensor]) -> Tensor | None:
    """Return the one batch, of all that the choices allow, whose slopes the known models confirm.

    Only the true batch agrees with itself: in any other, the columns of samples that are alike are
    mixed with large factors.

    Args:
        heard: Gradients of a known batch size, one step each, of a network with cross-entropy.
        x: (b, p) images.
        choices: For some of them, others (k, p) that may stand in their place.

    Returns:
        (b, p), or None if no batch or more than one fits, or they are too many.
    """
    leak = heard.leak
    task = heard.task
    basis = heard.span.basis
    images = [torch.cat([x[k : k + 1], choices.get(k, x[:0])]) for k in range(len(x))]
    number = math.prod(len(some) for some in images)
    single = task.spec.loss == "cross_entropy" and _reproducible(leak, task)
    if not single or leak.batch != len(x) or number > TRIALS:
        return None
    # The row that is clearest above its own noise.
    size = leak.value.double().norm(dim=1)
    row = int((size / leak.std.clamp_min(torch.finfo(torch.float64).tiny)).argmax())
    models = int(leak.combination[row].count_nonzero())
    if sum(map(len, images)) * task.spec.classes * models > GRADIENTS:
        return None
    rows = first_layer_rows.rows(leak, task)[row]
    rounding = torch.finfo(leak.value.dtype).eps * float(rows.square().mean().sqrt())
    noise = max(float(leak.std[row]), rounding)
    # For each place, (1 + k, classes, H)
    expected = []
    for some in images:
        expected.append(torch.stack([_slopes(leak, task, row, one) for one in some]))
    places = torch.cartesian_prod(*[torch.arange(len(some)) for some in images])
    places = places.reshape(-1, len(x))
    inside = [heard.stored(some) @ basis.T for some in images]
    batches = torch.stack([inside[k][places[:, k]] for k in range(len(x))], dim=1)  # (trials, b, b)
    duals, failed = torch.linalg.inv_ex(batches)
    found = (rows @ basis.T) @ duals  # (trials, H, b)
    worst = torch.zeros(len(places), dtype=torch.float64)
    for k in range(len(x)):
        wrong = found[:, None, :, k] - expected[k][places[:, k]] / len(x)
        off = wrong.square().mean(2).amin(1).sqrt() / (noise * duals[:, :, k].norm(dim=1))
        worst = torch.maximum(worst, off.nan_to_num(torch.inf))
    worst[failed != 0] = torch.inf
    best = int(worst.argmin())
    chosen = torch.stack([images[k][places[best, k]] for k in range(len(x))])
    # Exchanging two images makes the same batch, so only different sets count as others.
    others = worst[~_same_sets(images, places, best)]
    if float(worst[best]) > FITS:
        return None
    if len(others) and float(others.min()) < WORSE * max(1.0, float(worst[best])):
        return None
    return chosen


def _reproducible(leak: GradientLeak, task: Task) -> bool:
    """Whether gradients at the leak's models can be computed again sample by sample."""
    return leak.theta is not None and leak.inner == 1 and not priors.normalises(task)


def _targets(task: Task) -> int:
    """Number of targets whose slopes span those of all targets."""
    if task.spec.loss == "squared":
        return task.spec.classes + 1
    if task.spec.loss == "cross_entropy":
        return task.spec.classes
    return 2


def _slopes(leak: GradientLeak, task: Task, row: int, image: Tensor) -> Tensor:
    """Slopes of one image's loss in the first layer's neurons, in one row of the leak.

    The slope in a neuron is the gradient of its bias.

    Args:
        leak: Gradients at known models.
        task: What is trained.
        row: Of the leak.
        image: (p,) in the data's units.

    Returns:
        (targets, H) for all labels of cross-entropy or binary loss, and for zero and all unit
        vectors of squared loss, whose slopes are affine in the target.
    """
    if leak.theta is None or task.first_linear is None or task.first_linear[1] is None:
        raise ValueError("slopes need known models and a first layer with a bias")
    bias = task.layout.slices[task.first_linear[1]]
    used = leak.combination[row].nonzero().flatten()
    weights = leak.combination[row, used].double()
    thetas = leak.theta[used].double()
    x = image.reshape(1, *task.spec.shape)
    if task.spec.loss == "cross_entropy":
        targets = torch.arange(task.spec.classes)[:, None]
    elif task.spec.loss == "binary":
        targets = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    else:
        outputs = task.logits(thetas[0], x).shape[1]
        targets = torch.cat([torch.zeros(1, outputs), torch.eye(outputs)]).double()[:, None]
    out = []
    for y in targets:
        slopes = torch.stack([task.gradient(w, x, y)[bias] - task.l2 * w[bias] for w in thetas])
        out.append(weights @ slopes)
    return torch.stack(out)


def _same_sets(images: Sequence[Tensor], places: Tensor, best: int) -> Tensor:
    """Decide which trials hold the same images as one of them, in any order.

    Args:
        images: For each place of the batch, (k, p) images that may stand there.
        places: (n, b) which of them each trial takes.
        best: The trial to compare with.

    Returns:
        (n,) bool.
    """
    every = torch.unique(torch.cat(list(images)), dim=0, return_inverse=True)[1]
    starts = torch.tensor([0, *[len(some) for some in images]]).cumsum(0)[:-1]
    names = every[places + starts].sort(dim=1).values
    same: Tensor = (names == names[best]).all(1)
    return same
