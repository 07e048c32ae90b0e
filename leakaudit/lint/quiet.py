"""How quiet some numbers are, against the noise that is declared for them.

What a trace determines is a gradient plus noise. An unknown shift makes a coordinate of symmetric noise larger more often, never
smaller (Anderson 1955): P[|shift + e| > x] >= P[|e| > x]. So too few coordinates beyond a level prove that the noise is quieter than
declared, whatever the gradients are. Noise that the truth holds is judged by the chi-square law of its energy; noise of other laws by a
bound on it, for independent X >= 0 with mean 1: P[sum X <= n - t] <= exp(-t^2 / (2 n E X^2)) (Maurer 2003).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom, chi2

from leakaudit.bounds.empirical import upper
from leakaudit.lint.samples import Floats, Sample

BEYOND = 1.0  # standard deviations
KURTOSIS = 6.0  # E X^2 of the squared coordinates of Laplace noise, the heaviest that is declared
NOTHING = 1e-9  # share of the largest variance that is rounding


@dataclass(frozen=True)
class Quiet:
    """How quiet some numbers are: chance under the declared noise, at most; size relative to it, and that size's upper limit."""

    chance: float
    size: float
    limit: float
    numbers: int


def quietness(samples: Sequence[Sample], level: float, least: float = 0.0) -> Quiet:
    """Judge all rows of samples that are independent of each other and of one kind.

    level: confidence 1 - level of the limit. least: variance below which a combination of rows counts as without noise.
    """
    white = [_white(s, least) for s in samples]
    numbers = np.concatenate([w.ravel() for w in white])
    n, one = len(numbers), samples[0]
    if n == 0:
        return Quiet(1.0, 1.0, math.inf, 0)
    if one.gaussian and one.hidden:
        return _counted(numbers, level)
    energy = float((numbers**2).sum())
    size = math.sqrt(energy / n)
    if one.gaussian:
        return Quiet(
            float(chi2.cdf(energy, n)), size, math.sqrt(energy / float(chi2.ppf(level, n))), n
        )
    spread = 2 * KURTOSIS * max(len(w) for w in white)
    chance = math.exp(-(max(0.0, n - energy) ** 2) / (spread * n))
    return Quiet(
        chance, size, size / math.sqrt(max(1e-12, 1 - math.sqrt(spread * -math.log(level) / n))), n
    )


def _white(sample: Sample, least: float) -> Floats:
    """Return combinations of the rows that are independent by the declared noise, of variance 1; those without noise are left out."""
    variance, basis = np.linalg.eigh(sample.factor @ sample.factor.T)
    keep = variance > max(NOTHING * float(variance.max(initial=0.0)), least)
    return np.asarray((basis[:, keep] / np.sqrt(variance[keep])).T @ sample.value)


def _counted(numbers: Floats, level: float) -> Quiet:
    beyond, n = int((np.abs(numbers) > BEYOND).sum()), len(numbers)
    most = upper(beyond, n, level)
    chance = float(binom.cdf(beyond, n, 2 * ndtr(-BEYOND)))
    return Quiet(chance, _scale(max(beyond, 0.5) / n), _scale(most), n)


def _scale(share: float) -> float:
    """Return the standard deviation at which this share of normal numbers lies beyond BEYOND."""
    return float(BEYOND / -ndtri(share / 2)) if share < 1 else math.inf


def tiny(chance: float) -> str:
    """Return a chance for a sentence."""
    return f"{chance:.1g}" if chance > 1e-300 else "below 1e-300"
