"""Whether a measure grew over the baseline: one-sided permutation tests with a tolerance, shared by Holm over all comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np

EXACT = 1 << 17  # arrangements that are listed; above it as many are drawn, with a fixed seed
_SLACK = 1e-12  # of sums that are equal but for rounding


def paired(new: Sequence[float], old: Sequence[float], tolerance: float) -> float:
    """Return the p-value of "the samples of the same seeds did not grow by more than `tolerance`".

    The signs of new - old - tolerance are flipped in all 2^k ways (Fisher 1935), so the least p-value is 2^-k. Valid where these
    differences are symmetric about their centre under the null hypothesis.
    """
    d = np.asarray(new, float) - np.asarray(old, float) - tolerance
    if 2 ** len(d) <= EXACT:
        signs = 1.0 - 2.0 * ((np.arange(2 ** len(d))[:, None] >> np.arange(len(d))) & 1)
        return _share(signs @ d, float(d.sum()), drawn=False)
    signs = 1.0 - 2.0 * np.random.default_rng(0).integers(0, 2, (EXACT, len(d)))
    return _share(signs @ d, float(d.sum()), drawn=True)


def unpaired(new: Sequence[float], old: Sequence[float], tolerance: float) -> float:
    """Return the p-value of the same where the seeds differ: samples change sides in all ways (Pitman 1937)."""
    pool = np.concatenate([np.asarray(new, float) - tolerance, np.asarray(old, float)])
    n, size = len(new), len(pool)
    observed = float(pool[:n].sum())
    if math.comb(size, n) <= EXACT:
        return _share(
            np.array([pool[list(c)].sum() for c in combinations(range(size), n)]),
            observed,
            drawn=False,
        )
    drawn = np.random.default_rng(0).permuted(np.tile(pool, (EXACT // 8, 1)), axis=1)[:, :n].sum(1)
    return _share(drawn, observed, drawn=True)


def least(new: int, old: int, same: bool) -> float:
    """Return the smallest p-value that so many samples can give."""
    ways = 2**new if same else math.comb(new + old, new)
    return 1 / ways if ways <= EXACT else 1 / (1 + (EXACT if same else EXACT // 8))


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values adjusted for all of them together (Holm 1979): reject where one is at most alpha."""
    order = sorted(range(len(p)), key=p.__getitem__)
    out, top = [0.0] * len(p), 0.0
    for rank, k in enumerate(order):
        top = max(top, min(1.0, p[k] * (len(p) - rank)))
        out[k] = top
    return out


def seeds_for(alpha: float, comparisons: int) -> int:
    """Return how many paired samples let the first of so many comparisons be significant."""
    return math.ceil(math.log2(max(1, comparisons) / alpha))


def _share(sums: np.ndarray, observed: float, *, drawn: bool) -> float:
    reached = int((sums >= observed - _SLACK * (1 + abs(observed))).sum())
    return (reached + drawn) / (len(sums) + drawn)
