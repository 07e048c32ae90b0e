"""How near a reconstruction comes to the truth: pure functions over pairs of batches (b, *shape), computed in float64.

x is the reconstruction and y the truth throughout; `data_range` is the width of the data's scale (1 for images in [0, 1]).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from leakaudit.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.scoring.lpips_weights import Weights

PSNR_CAP = 200.0  # dB; equal images have infinite PSNR, which JSON cannot hold
SSIM_WINDOW = 7
_CHUNK = 4096  # records compared at a time


def mse(x: Tensor, y: Tensor) -> Tensor:
    """Mean squared error of each pair, (b,), in squared data units."""
    return _difference(x, y).square().mean(1)


def psnr(x: Tensor, y: Tensor, *, data_range: float) -> Tensor:
    """Peak signal-to-noise ratio of each pair, (b,), in dB: ``10 log10(data_range^2 / mse)``, at most `PSNR_CAP`."""
    return (10 * torch.log10(data_range**2 / mse(x, y))).clamp(max=PSNR_CAP)


def ssim_window(shape: tuple[int, ...]) -> int | None:
    """Side of the SSIM window for one image (c, h, w): 7, or the largest odd number from 3 that fits; None where none does."""
    side = min(shape[-2:])
    return None if side < 3 else min(SSIM_WINDOW, side - 1 + side % 2)


def ssim(x: Tensor, y: Tensor, *, data_range: float) -> Tensor | None:
    """Structural similarity of each pair of images (b, c, h, w), (b,), by scikit-image with a uniform window of `ssim_window`.

    None where a side is under 3 pixels. Source: Wang et al. 2004, equation 13, averaged over windows and channels.
    """
    from skimage.metrics import structural_similarity

    _difference(x, y)
    window = ssim_window(tuple(x.shape[1:]))
    if window is None:
        return None
    similarity: Any = structural_similarity
    pairs = zip(x.double().cpu().numpy(), y.double().cpu().numpy(), strict=True)
    values = [
        float(similarity(a, b, win_size=window, data_range=data_range, channel_axis=0))
        for a, b in pairs
    ]
    return torch.tensor(values, dtype=torch.float64)


def lpips_distance(x: Tensor, y: Tensor, weights: Weights, *, data_range: float) -> Tensor:
    """Perceptual distance of each pair of images (b, 1 or 3, h, w) in [0, data_range], (b,); gray counts as three equal channels.

    Raises LeakauditError for sides that the network cannot take. Source: Zhang et al. 2018, equation 1, with weights v0.1.
    """
    _difference(x, y)
    if x.ndim != 4 or x.shape[1] not in (1, 3) or min(x.shape[2:]) < weights.side:
        raise LeakauditError(
            f"lpips with {weights.net}: expected 1 or 3 channels and sides from {weights.side} px, got {tuple(x.shape[1:])}"
        )
    out = []
    with torch.no_grad():
        for a, b in zip(x.split(16), y.split(16), strict=True):
            scaled = [
                (2 * t.detach().to("cpu", torch.float32) / data_range - 1).expand(-1, 3, -1, -1)
                for t in (a, b)
            ]
            out.append(weights.module(*scaled).double().flatten())
    return torch.cat(out) if out else torch.zeros(0, dtype=torch.float64)


def exact(x: Tensor, y: Tensor, *, levels: int) -> Tensor | None:
    """Whether each pair is identical once both are rounded to the grid k/levels, (b,) bool; None where the data has no grid (levels 0)."""
    _difference(x, y)
    if levels == 0:
        return None
    a, b = ((t.double() * levels).round().flatten(1) for t in (x, y))
    return torch.all(a == b, dim=1)


def relative_error(x: Tensor, y: Tensor) -> Tensor:
    """``|x - y| / |y|`` of each pair, (b,), Euclidean; the plain error where y is 0."""
    error, size = (t.square().sum(1).sqrt() for t in (_difference(x, y), y.double().flatten(1)))
    return error / size.where(size > 0, 1.0)


def labels_correct(found: Tensor, true: Tensor) -> Tensor:
    """Whether each label is right, (b,) bool: classes must be equal, real targets within 1e-3 relative."""
    if found.shape != true.shape:
        raise LeakauditError(
            f"labels: expected two columns of the same length, got {tuple(found.shape)} and {tuple(true.shape)}"
        )
    if true.is_floating_point():
        return torch.isclose(found.double(), true.double(), rtol=1e-3, atol=1e-6)
    return found.eq(true)


def identification(x: Tensor, y: Tensor, records: Tensor) -> tuple[Tensor, Tensor]:
    """Rank of the true record among all records by distance to the reconstruction, and the number of candidates, both (b,) int64.

    records: (s, *shape), the data set; those equal to y stand for y. Rank 1 means nearer than every other record
    (a tie counts against); guessing has rank 1 with chance 1 / candidates. Computed in the records' dtype.
    """
    _difference(x, y)
    x, y = (t.to(records).flatten(1) for t in (x, y))
    near = (x - y).square().sum(1, keepdim=True).sqrt()
    rank = torch.ones(len(x), dtype=torch.int64)
    candidates = torch.ones(len(x), dtype=torch.int64)
    for part in records.flatten(1).split(_CHUNK):
        other = _distances(y, part) > 0
        candidates += other.sum(1).cpu()
        rank += (other & (_distances(x, part) <= near)).sum(1).cpu()
    return rank, candidates


def _distances(x: Tensor, y: Tensor) -> Tensor:
    """Euclidean distances (b, s) of rows, without the cancellation of the matrix-product form."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")


def _difference(x: Tensor, y: Tensor) -> Tensor:
    if x.shape != y.shape or x.ndim < 2:
        raise LeakauditError(
            f"metrics: expected two batches (b, *shape) of one shape, got {tuple(x.shape)} and {tuple(y.shape)}"
        )
    return x.double().flatten(1) - y.double().flatten(1)
