"""Mean and median of numbers near the largest float, of which a sum is beyond all floats."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one number."""
    try:
        return statistics.fmean(values)
    except OverflowError:
        largest = max(map(abs, values))
        return statistics.fmean(value / largest for value in values) * largest


def median(values: Sequence[float]) -> float:
    """Return the median of at least one number."""
    ordered = sorted(values)
    low = ordered[(len(ordered) - 1) // 2]
    high = ordered[len(ordered) // 2]
    return low if low == high else low / 2 + high / 2
