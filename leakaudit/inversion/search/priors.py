"""Prior knowledge about images.

Smoothness, the range of pixel values, batch statistics, agreement between several searches, and the
starts of searches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import torch
from torch import Generator, Tensor

from leakaudit._util.assignment import assign
from leakaudit.inversion.linear import positive
from leakaudit.tasks import batch_norm

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

Start = Literal["gray", "uniform", "normal"]

# Layer of batch normalisation -> mean and variance of the input of each of its channels.
Statistics = Mapping[str, tuple[Tensor, Tensor]]

# Weight of the first layer of batch normalisation, relative to the others.
FIRST = 10.0

# Cost of assigning samples of different classes to each other, relative to the largest distance of
# any two, so that this never happens.
FORBIDDEN = 1e3


def total_variation(x: Tensor, rounding: float = 0.0) -> Tensor:
    """Return the mean absolute difference of horizontal plus that of vertical neighbours.

    Anisotropic, as in Geiping et al. 2020; 0 unless x is (b, c, h, w). With `rounding` e,
    sqrt(d^2 + e^2) makes the absolute value smooth for L-BFGS.
    """
    if x.dim() != 4:
        return x.new_zeros(())
    parts: list[Tensor] = []
    for side in (-1, -2):
        gaps = x.diff(dim=side)
        if gaps.numel():
            size = (gaps.square() + rounding**2).sqrt() if rounding else gaps.abs()
            parts.append(size.mean())
    return torch.stack(parts).sum() if parts else x.new_zeros(())


def boxed(task: Task, x: Tensor) -> Tensor:
    """Clamp images to [0, 1], the range of pixels in the data's units."""
    return x.clamp(0, 1) if task.spec.is_image else x


def start(task: Task, batch: int, generator: Generator, kind: Start, dtype: torch.dtype) -> Tensor:
    """Draw the inputs (batch, *shape) that a search starts from, in the data's units.

    ``gray`` is between 0.45 and 0.55, ``uniform`` in [0, 1], ``normal`` as in Zhu et al. 2019.
    """
    draw = torch.randn if kind == "normal" else torch.rand
    x = draw(batch, *task.spec.shape, generator=generator, dtype=dtype, device=generator.device)
    x = x.to(task.device)
    return 0.45 + 0.1 * x if kind == "gray" else x


def running_statistics(task: Task) -> Statistics | None:
    """Return the model's own statistics (``bn=eval``), by layer.

    None if there are none, or if they are those of a fresh model, which are not informative.
    """
    found: dict[str, tuple[Tensor, Tensor]] = {}
    fresh = True
    for name, module in batch_norm.layers(task):
        if module.running_mean is None or f"{name}.running_mean" not in task.buffers:
            continue
        mean = task.buffers[f"{name}.running_mean"]
        var = task.buffers[f"{name}.running_var"]
        found[name] = (mean, var)
        fresh &= not bool((mean != 0).any() or (var != 1).any())
    return None if fresh else found


def apart(found: Statistics, known: Statistics) -> Tensor:
    """Measure how far statistics are from known ones (Yin et al. 2021, R_BN).

    A weighted mean over the layers of both: the squared error of means divided by the known
    variance, plus the squared error of variances divided by its square.
    """
    gaps: list[Tensor] = []
    weights: list[float] = []
    for k, (name, statistics) in enumerate(known.items()):
        if name not in found:
            continue
        a, b = found[name]
        mean, var = (t.to(a) for t in statistics)
        size = positive(var.mean())
        gap = (a - mean).square().mean() / size + (b - var).square().mean() / size.square()
        weight = FIRST if k == 0 else 1.0
        gaps.append(weight * gap)
        weights.append(weight)
    return torch.stack(gaps).sum() / max(sum(weights), 1.0)


def shift(x: Tensor, reference: Tensor, most: int) -> Tensor:
    """Shift an image (c, h, w) by whole pixels to correlate best; edge pixels are repeated.

    The correlations for all shifts at once are a product of Fourier transforms of the channels,
    each minus its mean.
    """
    sides = x.shape[-2:]
    a, b = (torch.fft.rfft2(t - t.mean((-2, -1), keepdim=True)) for t in (x, reference))
    match = torch.fft.irfft2((a.conj() * b).sum(0), s=sides)
    near = torch.arange(-most, most + 1, device=x.device)
    window = match[near[:, None] % sides[0], near[None] % sides[1]]
    down, right = divmod(int(window.argmax()), 2 * most + 1)
    rows = _moved(sides[0], down - most, x.device)
    columns = _moved(sides[1], right - most, x.device)
    return x[:, rows][:, :, columns]


def _moved(n: int, by: int, device: torch.device) -> Tensor:
    """Return the indices (n,) of the rows that a shift moves to each of n rows."""
    return (torch.arange(n, device=device) - by).clamp(0, n - 1)


def consensus(candidates: Tensor, y: Tensor, best: int, most: int) -> Tensor:
    """Average several candidates (s, b, *shape), each in its own order (Yin et al. 2021, R_group).

    Samples of one class have no order, so those of each candidate are paired with those of
    candidate `best` by distance; images are then shifted to align with theirs.
    """
    order: list[Tensor] = []
    moved: list[Tensor] = []
    reference = candidates[best]
    for one in candidates:
        gap = torch.cdist(one.flatten(1).double(), reference.flatten(1).double()).square()
        forbidden = FORBIDDEN * (gap.max().cpu() + 1) * (y[:, None] != y).cpu()
        chosen = assign(gap.cpu() + forbidden).found.to(y.device)
        order.append(chosen)
        images: list[Tensor] = []
        for a, b in zip(one[chosen], reference, strict=True):
            images.append(shift(a, b, most) if a.dim() == 3 else a)
        moved.append(torch.stack(images))
    middle = torch.stack(moved).mean(0)
    return torch.stack([middle[o.argsort()] for o in order])
