"""Test whether numbers have a lower variance than the noise that is declared for them.

What a trace determines is a gradient plus noise. An unknown shift makes a coordinate of symmetric,
unimodal noise large more often, never less often (Anderson 1955): P[|shift + e| > x] >= P[|e| > x].
If there are too few coordinates beyond a level, the noise is therefore smaller than declared,
whatever the gradients are. Normal noise from the truth is tested by the chi-square distribution of
its energy. Noise of other distributions is tested by a bound on its energy, for independent X >= 0
with mean 1 (Maurer 2003): P[sum X <= n - t] <= exp(-t^2 / (2 n E X^2)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, chdtr, gammaincinv, ndtr, ndtri

from leakaudit.theory.bounds.empirical import upper
from leakaudit.views.conformance.samples import Floats, Sample

BEYOND = 1.0  # the level, in standard deviations: a choice
KURTOSIS = 6.0  # E X^2 of the squared coordinates of Laplace noise, the heaviest tails declared
NOTHING = 1e-9  # share of the largest variance; rounding, about 1e-15, is below it: a choice


@dataclass(frozen=True)
class LowVariance:
    """Evidence that noise is smaller than declared."""

    chance: float  # upper bound on the probability of such small numbers under the declared noise
    size: float  # measured standard deviation, relative to the declared one
    limit: float  # upper confidence limit of the size
    numbers: int  # how many numbers were tested


def low_variance(samples: Sequence[Sample], level: float, least: float = 0.0) -> LowVariance:
    """Test all rows of samples together.

    Args:
        level: The limit has confidence 1 - level.
        least: Variance below which a combination of rows counts as free of noise.
    """
    white = [_white(sample, least) for sample in samples]
    numbers = np.concatenate([combined.ravel() for combined in white])
    n = len(numbers)
    if n == 0:
        return LowVariance(1.0, 1.0, math.inf, 0)
    first = samples[0]
    if first.gaussian and first.hidden:
        return _by_counting(numbers, level)
    if first.gaussian:
        return _by_chi_square(numbers, level)
    # The rows of one column are uncorrelated, but not independent, so X is the energy of a column
    # of r rows: E X^2 <= r^2 KURTOSIS, which for n / r columns results in 2 n r KURTOSIS.
    rows = max(len(combined) for combined in white)
    return _by_maurer(numbers, level, moment=2 * KURTOSIS * rows)


def _white(sample: Sample, least: float) -> Floats:
    """Return combinations of the rows whose declared noise is independent, of variance 1.

    Combinations without noise are left out.
    """
    variance, basis = np.linalg.eigh(sample.factor @ sample.factor.T)
    keep = variance > max(NOTHING * float(variance.max(initial=0.0)), least)
    return np.asarray((basis[:, keep] / np.sqrt(variance[keep])).T @ sample.value)


def _by_counting(numbers: Floats, level: float) -> LowVariance:
    """Test normal noise under unknown shifts: count the numbers beyond BEYOND."""
    n = len(numbers)
    beyond = int((np.abs(numbers) > BEYOND).sum())
    chance = float(bdtr(beyond, n, 2 * ndtr(-BEYOND)))
    size = _scale(max(beyond, 0.5) / n)
    limit = _scale(upper(beyond, n, level))
    return LowVariance(chance, size, limit, n)


def _by_chi_square(numbers: Floats, level: float) -> LowVariance:
    """Test normal noise by its energy."""
    n = len(numbers)
    energy = float((numbers**2).sum())
    chance = float(chdtr(n, energy))
    limit = math.sqrt(energy / float(2 * gammaincinv(n / 2, level)))
    return LowVariance(chance, math.sqrt(energy / n), limit, n)


def _by_maurer(numbers: Floats, level: float, moment: float) -> LowVariance:
    """Test noise of any distribution by its energy; moment: 2 r KURTOSIS, for columns of r rows."""
    n = len(numbers)
    energy = float((numbers**2).sum())
    size = math.sqrt(energy / n)
    chance = math.exp(-(max(0.0, n - energy) ** 2) / (moment * n))
    # At the energy n (1 - short), the bound equals `level`.
    short = math.sqrt(moment * -math.log(level) / n)
    limit = size / math.sqrt(max(1e-12, 1 - short))
    return LowVariance(chance, size, limit, n)


def _scale(share: float) -> float:
    """Return the standard deviation at which this share of normal numbers lies beyond BEYOND."""
    if share >= 1:
        return math.inf
    return float(BEYOND / -ndtri(share / 2))
