"""Intervals around measured values, as figures and tables show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

Interval = tuple[float, float]  # lower and upper end

LEVEL = 0.95  # confidence of the intervals of rates


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
