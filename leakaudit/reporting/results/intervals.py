"""Intervals around measured values, as figures and tables show them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

Interval = tuple[float, float]  # lower and upper end

EVERY: Interval = (-math.inf, math.inf)  # the range of a quantity that can have any value
LEVEL = 0.95  # confidence of the intervals of rates and means
HUGE = 2.0**500  # values above it are scaled before they are squared or added up


def of_rate(hits: int, trials: int) -> Interval | None:
    """Return the two-sided interval of a success rate by Clopper and Pearson."""
    if trials < 1 or not 0 <= hits <= trials:
        return None
    from leakaudit.theory.bounds import empirical  # slow to import

    tail = (1 - LEVEL) / 2
    return empirical.lower(hits, trials, tail), empirical.upper(hits, trials, tail)


def of_seeds(runs: Iterable[Sequence[float]]) -> Interval | None:
    """Return the range of the medians of several runs."""
    medians = [float(median(values)) for values in runs if values]
    if len(medians) < 2:
        return None
    return min(medians), max(medians)


def mean(values: Sequence[float], limits: Interval = EVERY) -> tuple[float, Interval | None]:
    """Return the mean of at least one value and its interval, cut to the quantity's own range.

    The mean cannot lie in the part that is cut off, so that the interval contains it as often. If
    a value is infinite, the interval is the range of all; the mean is NaN unless all are equal.
    """
    if all(map(math.isfinite, values)):
        scale = _scale(values)
        middle = scale * (math.fsum(value / scale for value in values) / len(values))
        return middle, _cut(of_mean(values), limits)
    middle = values[0] if len({*values}) == 1 else math.nan
    return middle, (min(values), max(values))


def _cut(interval: Interval | None, limits: Interval) -> Interval | None:
    if interval is None:
        return None
    low, high = interval
    return max(low, limits[0]), min(high, limits[1])


def of_mean(values: Sequence[float]) -> Interval | None:
    """Return the interval of the mean of normal values by Student's t; None for a single one.

    An end is infinite if it exceeds all numbers.
    """
    count = len(values)
    if count < 2:
        return None
    from scipy.special import stdtrit  # slow to import

    scale = _scale(values)
    scaled = [value / scale for value in values]
    middle = math.fsum(scaled) / count
    spread = math.sqrt(math.fsum((value - middle) ** 2 for value in scaled) / (count - 1))
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2)) * spread / math.sqrt(count)
    return scale * (middle - half), scale * (middle + half)


def _scale(values: Sequence[float]) -> float:
    """Return a power of two by which values are divided, so that their squares do not overflow."""
    largest = max(map(abs, values))
    return 1.0 if largest < HUGE else 2.0 ** (math.frexp(largest)[1] - 1)
