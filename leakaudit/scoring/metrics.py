"""Reconstruction quality metrics."""

from __future__ import annotations

import importlib.util
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.scoring.lpips_weights import Weights

# Pure functions over pairs of batches (b, *shape), computed in float64; one with the name of a
# number in `leakaudit.core.quantities` measures it on the data of that row. Throughout, x is the
# reconstruction, y is the truth, and `data_range` is the width of the data's scale (1 for images in
# [0, 1]).

PSNR_CAP = 200.0  # dB; equal images have infinite PSNR, which JSON cannot represent
SSIM_WINDOW = 7  # pixels; the default of scikit-image
_SMALLEST_WINDOW = 3  # pixels; scikit-image rejects smaller windows
_CHUNK = 4096  # records compared at a time; a choice that limits memory
_LPIPS_BATCH = 16  # pairs passed to the network at a time; a choice that limits memory


def mse(x: Tensor, y: Tensor) -> Tensor:
    """Mean squared error (b,) of each pair, in squared data units."""
    return _difference(x, y).square().mean(1)


def psnr(x: Tensor, y: Tensor, *, data_range: float) -> Tensor:
    """Peak signal-to-noise ratio (b,) in dB, ``10 log10(data_range^2 / mse)``."""
    ratio = data_range**2 / mse(x, y)
    decibels = 10 * torch.log10(ratio)
    return decibels.clamp(max=PSNR_CAP)


def ssim_window(shape: tuple[int, ...]) -> int | None:
    """Return `SSIM_WINDOW`, or the largest odd side >= 3 that fits (c, h, w); None if none does."""
    side = min(shape[-2:])
    if side < _SMALLEST_WINDOW:
        return None
    largest_odd = side - 1 + side % 2
    return min(SSIM_WINDOW, largest_odd)


def ssim(x: Tensor, y: Tensor, *, data_range: float) -> Tensor | None:
    """Structural similarity (b,) of each pair of images, by scikit-image with a uniform window.

    Source: Wang et al. 2004, equation 13, averaged over windows and channels. None if a side is
    under 3 pixels.
    """
    from skimage.metrics import structural_similarity

    _difference(x, y)
    window = ssim_window(tuple(x.shape[1:]))
    if window is None:
        return None
    similarity: Any = structural_similarity  # scikit-image has no types
    found = x.double().cpu().numpy()
    true = y.double().cpu().numpy()
    values = []
    with np.errstate(all="ignore"):  # reconstructions may hold any numbers; the result says so
        for a, b in zip(found, true, strict=True):
            value = similarity(a, b, win_size=window, data_range=data_range, channel_axis=0)
            values.append(float(value))
    return torch.tensor(values, dtype=torch.float64)


def structural_distances(x: Tensor, *, data_range: float = 1.0) -> Tensor | None:
    """Distances (m, m) between images (m, c, h, w) in [0, data_range] that bound their SSIM.

    The root mean square, over windows and channels, of sqrt(2 - S1 - S2), in which SSIM = S1 S2 has
    the means in S1 and the variances in S2. It is a metric (Brunet, Vrscay and Wang 2012, section
    III). As S1 >= 0 for such images, 2 - S1 - S2 <= 3 (1 - S1 S2), so an image whose SSIM with two
    others is s or more is within sqrt(3 (1 - s)) of both. None if a side is under 3 pixels.
    """
    _difference(x, x)
    window = ssim_window(tuple(x.shape[1:]))
    if window is None:
        return None
    images = x.double().cpu()
    mean = _windows(images, window)
    sample = window**2 / (window**2 - 1)  # scikit-image's variances are those of samples
    variance = sample * (_windows(images.square(), window) - mean.square())
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    found = torch.zeros(len(x), len(x), dtype=torch.float64)
    for i in range(len(x) - 1):
        rest = slice(i + 1, None)
        product = mean[i] * mean[rest]
        shared = sample * (_windows(images[i] * images[rest], window) - product)
        squares = mean[i].square() + mean[rest].square()
        of_means = (squares - 2 * product) / (squares + c1)
        of_structure = (variance[i] + variance[rest] - 2 * shared) / (
            variance[i] + variance[rest] + c2
        )
        squared = (of_means + of_structure).flatten(1).mean(1)
        found[i, rest] = squared.clamp(min=0.0).sqrt()
    return found + found.T


def ssim_at(distance: float) -> float:
    """Return the SSIM that two images at a `structural_distances` may have at most."""
    return 1 - distance**2 / 3


def _windows(images: Tensor, side: int) -> Tensor:
    """Return the means of all windows inside images."""
    rows = torch.nn.functional.avg_pool2d(images, (side, 1), stride=1)
    return torch.nn.functional.avg_pool2d(rows, (1, side), stride=1)


def lpips_distance(x: Tensor, y: Tensor, weights: Weights, *, data_range: float) -> Tensor:
    """Perceptual distance (b,) of each pair of images (b, 1 or 3, h, w) in [0, data_range].

    A grey image counts as three equal channels. Source: Zhang et al. 2018, equation 1, with
    weights v0.1.
    """
    _difference(x, y)
    if x.ndim != 4 or x.shape[1] not in (1, 3) or min(x.shape[2:]) < weights.side:
        raise LeakauditError(
            f"lpips with {weights.net}: expected 1 or 3 channels and sides of at least "
            f"{weights.side} px, got {tuple(x.shape[1:])}"
        )
    if not len(x):
        return torch.zeros(0, dtype=torch.float64)
    distances = []
    batches = zip(x.split(_LPIPS_BATCH), y.split(_LPIPS_BATCH), strict=True)
    with torch.no_grad():
        for found, true in batches:
            found = _lpips_input(found, data_range)
            true = _lpips_input(true, data_range)
            distance = weights.module(found, true)
            distances.append(distance.double().flatten())
    return torch.cat(distances)


def _lpips_input(images: Tensor, data_range: float) -> Tensor:
    values = images.detach().to("cpu", torch.float32)
    scaled = 2 * values / data_range - 1
    return scaled.expand(-1, 3, -1, -1)


def exact(x: Tensor, y: Tensor, *, levels: int) -> Tensor | None:
    """Compare each pair after both are rounded to the grid k/levels; None without a grid."""
    _difference(x, y)
    if levels == 0:
        return None
    found = _on_grid(x, levels)
    true = _on_grid(y, levels)
    return torch.all(found == true, dim=1)


def _on_grid(values: Tensor, levels: int) -> Tensor:
    return (values.double() * levels).round().flatten(1)


def relative_error(x: Tensor, y: Tensor) -> Tensor:
    """Euclidean error (b,) of each pair, divided by the norm of the true record if not 0."""
    error = _length(_difference(x, y))
    size = _length(y.double().flatten(1))
    return error / size.where(size > 0, 1.0)


def _length(rows: Tensor) -> Tensor:
    return rows.square().sum(1).sqrt()


def labels_correct(found: Tensor, true: Tensor) -> Tensor:
    """Compare labels one by one: classes must be equal, real targets within 1e-3 relative."""
    if found.shape != true.shape:
        raise LeakauditError(
            "labels: expected two columns of the same length, "
            f"got {tuple(found.shape)} and {tuple(true.shape)}"
        )
    if true.is_floating_point():
        # Both tolerances are choices; the absolute one is for targets near 0.
        return torch.isclose(found.double(), true.double(), rtol=1e-3, atol=1e-6)
    return found.eq(true)


def identification(
    x: Tensor, y: Tensor, records: Tensor, tokens: bool = False
) -> tuple[Tensor, Tensor]:
    """Rank (b,) the true record among all records (s, *shape) by distance to the reconstruction.

    Rank 1 means closer than every other record (a tie counts as farther). A guess has rank 1
    with probability 1 / candidates, which are returned as well. Records that are equal to y are
    identified with y. Computed in the records' dtype, and at least float32.
    """
    _difference(x, y)
    records = records.to(torch.promote_types(records.dtype, torch.float32))
    found = x.to(records).flatten(1)
    true = y.to(records).flatten(1)
    near = (found - true).square().sum(1, keepdim=True).sqrt()
    if tokens:
        near = found.ne(true).sum(1, keepdim=True).to(near)
    rank = torch.ones(len(found), dtype=torch.int64)
    candidates = torch.ones(len(found), dtype=torch.int64)
    for part in records.flatten(1).split(_CHUNK):
        other = _distances(true, part, tokens) > 0
        nearer = other & (_distances(found, part, tokens) <= near)
        candidates += other.sum(1).cpu()
        rank += nearer.sum(1).cpu()
    return rank, candidates


def tokens_correct(x: Tensor, y: Tensor) -> Tensor:
    """Share (b,) of the positions with the correct token."""
    return x.eq(y).double().mean(1)


def token_f1(x: Tensor, y: Tensor) -> Tensor:
    """F1 (b,) of the tokens of both sequences, regardless of their order (Rajpurkar et al. 2016).

    Sequences of the same length have equal precision and recall: the share of common tokens.
    """
    shares = []
    for found, true in zip(x.tolist(), y.tolist(), strict=True):
        common = Counter(found) & Counter(true)
        shares.append(common.total() / len(true))
    return torch.tensor(shares, dtype=torch.float64)


def can_rouge() -> bool:
    """Return whether the library rouge-score is installed."""
    return importlib.util.find_spec("rouge_score") is not None


def rouge(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """ROUGE-1, ROUGE-2 and ROUGE-L (b,) of the words of both texts, without stemming.

    Source: Lin 2004, by rouge-score; the values are F1. Tokens are bytes of UTF-8; invalid ones
    are replaced.
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer: Any = RougeScorer(["rouge1", "rouge2", "rougeL"])
    found: dict[str, list[float]] = {"rouge1": [], "rouge2": [], "rougel": []}
    for guess, true in zip(x, y, strict=True):
        scored = scorer.score(wording_of(true), wording_of(guess))
        for name, value in scored.items():
            found[name.lower()].append(value.fmeasure)
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}


def wording_of(tokens: Tensor) -> str:
    """Return the text of a sequence of bytes (length,)."""
    numbers = [int(token) for token in tokens]
    if all(0 <= number < 256 for number in numbers):
        return bytes(numbers).decode("utf-8", "replace")
    return " ".join(map(str, numbers))


def _distances(x: Tensor, y: Tensor, tokens: bool = False) -> Tensor:
    """Euclidean distances (b, s) of rows, without the cancellation of the matrix-product form."""
    if tokens:
        return torch.cdist(x, y, p=0)
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")


def _difference(x: Tensor, y: Tensor) -> Tensor:
    """Difference of two batches in float64, one row per record; their shapes must agree."""
    if x.shape != y.shape or x.ndim < 2:
        raise LeakauditError(
            "metrics: expected two batches (b, *shape) of the same shape, "
            f"got {tuple(x.shape)} and {tuple(y.shape)}"
        )
    return x.double().flatten(1) - y.double().flatten(1)
