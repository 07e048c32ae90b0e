"""What was measured for an item: lines over places and seeds, with intervals over the seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from leakaudit.judging.papers.items import BEST, FIRST, LAST, Place
from leakaudit.reporting.results import intervals
from leakaudit.reporting.results.intervals import Interval

Values = Mapping[int, float | None]  # one value for each seed, None if it is missing


@dataclass(frozen=True)
class SeedMean:
    """A mean over the seeds."""

    mean: float
    # 95 % interval of the mean by Student's t; None for one seed of a random experiment
    interval: Interval | None

    @property
    def ends(self) -> Interval:
        """The interval, or the value itself."""
        return self.interval or (self.mean, self.mean)


@dataclass(frozen=True)
class MeasuredLine:
    """One line of an item."""

    name: str
    x: tuple[Place, ...]  # places in their order; empty for a level, which has one value
    runs: Mapping[int, tuple[float | None, ...]]  # for each seed, a value per place
    exact: bool = False  # whether nothing about it is random
    why: str = ""  # why values are missing
    planned: bool = False  # whether each place should have a value, so that one without is missing

    def index(self, x: Place) -> int | None:
        """Return the index of a place, None if the line has none like it."""
        if not self.x:
            return 0
        known = self.known()
        if x == LAST:
            return len(self.x) - 1
        if x == FIRST and self.planned:
            return 0
        if x == FIRST:
            return known[0] if known else None
        for k, place in enumerate(self.x):
            if same_place(place, x):
                return k
        return None

    def known(self) -> list[int]:
        """Return the indices at which at least one seed has a value."""
        count = max(map(len, self.runs.values()), default=0)
        return [k for k in range(count) if any(v is not None for v in self.column(k).values())]

    def column(self, k: int) -> Values:
        """Return the values of all seeds at an index."""
        found = {}
        for seed, values in self.runs.items():
            found[seed] = values[k] if k < len(values) else None
        return found

    def at(self, x: Place) -> Values:
        """Return the values of all seeds at a place, None for missing ones."""
        if x == BEST:
            return {seed: self._largest(values) for seed, values in self.runs.items()}
        k = self.index(x)
        if k is None:
            return dict.fromkeys(self.runs)
        return self.column(k)

    def estimate(self, k: int) -> SeedMean | None:
        """Return the estimate at an index, None if a seed has no value."""
        return estimate(self.column(k), self.exact)

    def _largest(self, values: Sequence[float | None]) -> float | None:
        """Return the largest value; None if one is missing, which may have been larger."""
        known = numbers(values)
        if not known or (self.planned and len(known) < len(self.x)):
            return None
        return max(known)

    def estimates(self) -> Iterator[tuple[Place | None, SeedMean | None]]:
        """Yield the estimate of each place; None is the place of a level."""
        if not self.x:
            yield None, self.estimate(0)
        for k, place in enumerate(self.x):
            yield place, self.estimate(k)


@dataclass(frozen=True)
class MeasuredPanel:
    """One pair of axes with our lines."""

    y: str
    title: str
    axis: str  # name of the horizontal axis
    lines: Sequence[MeasuredLine]
    logarithmic: bool = False


def estimate(values: Values, exact: bool) -> SeedMean | None:
    """Return the mean of the values of all seeds, None if one is missing.

    A value about which nothing is random is its own interval.
    """
    known = numbers(values.values())
    if not known or len(known) < len(values):
        return None
    if exact:
        return SeedMean(known[0], (known[0], known[0]))
    return SeedMean(*intervals.mean(known))


def numbers(values: Iterable[float | None]) -> list[float]:
    """Return the values that are numbers."""
    return [value for value in values if value is not None and not math.isnan(value)]


def same_place(one: Place, other: Place) -> bool:
    """Return whether two places are equal, as numbers or as words."""
    if isinstance(one, str) and isinstance(other, str):
        return one == other
    try:
        return float(one) == float(other)
    except ValueError:
        return str(one) == str(other)


def lookup(panels: Sequence[MeasuredPanel], y: str) -> dict[str, MeasuredLine]:
    """Return the lines of a quantity by name."""
    found: dict[str, MeasuredLine] = {}
    for panel in panels:
        if panel.y == y:
            found.update({line.name: line for line in panel.lines})
    return found
