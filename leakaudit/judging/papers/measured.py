"""What was measured for an item: lines over places and seeds, with intervals over the seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from leakaudit.core.quantities import is_value, range_of
from leakaudit.judging.papers.items import BEST, FIRST, LAST, Place
from leakaudit.reporting.results import intervals
from leakaudit.reporting.results.intervals import Interval

# One value for each seed: None if it is missing, NaN if the run diverged.
Values = Mapping[int, float | None]
DIVERGED = "a run diverged"


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
    legend: str = ""  # its name in the legend if lines of several panels share it
    stand_in: str = ""  # data that it ran on in place of the paper's; empty for the paper's

    @property
    def shown(self) -> str:
        """Its name as readers see it, which says what it ran on."""
        return with_stand_in(self.name, self.stand_in)

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

    def _largest(self, values: Sequence[float | None]) -> float | None:
        """Return the largest value; None if one is missing or diverged, and may have been larger.

        A round that was not evaluated is left out, but the last one always is.
        """
        known = numbers(values)
        wanted = [value for value in values if value is not None or self.planned]
        if not known or values[-1] is None or len(known) < len(wanted):
            return None
        return max(known)


@dataclass(frozen=True)
class MeasuredPanel:
    """One pair of axes with our lines."""

    y: str
    title: str  # name of the vertical axis
    axis: str  # what varies along the horizontal axis, `round` or an axis of sweeps
    lines: Sequence[MeasuredLine]
    logarithmic: bool = False
    at: str = ""  # what tells it from the other panels
    across: str = ""  # name of the horizontal axis, `axis` if empty

    def __post_init__(self) -> None:
        """Count numbers that the quantity cannot have as missing."""
        object.__setattr__(self, "lines", tuple(_checked(line, self.y) for line in self.lines))

    @property
    def name(self) -> str:
        """Its quantity, and what tells it from the other panels."""
        return ", ".join(filter(None, (self.title, self.at)))

    def estimate(self, line: MeasuredLine, k: int) -> SeedMean | None:
        """Return the estimate of a line at an index, None if a seed has no value."""
        return estimate(line.column(k), line.exact, self.y)

    def estimates(self, line: MeasuredLine) -> Iterator[tuple[Place | None, SeedMean | None]]:
        """Yield the estimate of each place; None is the place of a level."""
        if not line.x:
            yield None, self.estimate(line, 0)
        for k, place in enumerate(line.x):
            yield place, self.estimate(line, k)


def _checked(line: MeasuredLine, y: str) -> MeasuredLine:
    runs: dict[int, tuple[float | None, ...]] = {}
    for seed, values in line.runs.items():
        checked = [v if v is None or is_value(y, v) else math.nan for v in values]
        runs[seed] = tuple(checked)
    diverged = any(v is not None and math.isnan(v) for values in runs.values() for v in values)
    return replace(line, runs=runs, why=line.why or DIVERGED * diverged)


def with_stand_in(name: str, stand_in: str) -> str:
    """Return the name of a line or of a panel, and the data that replace the paper's."""
    return f"{name} (stand-in: {stand_in})" if stand_in else name


def estimate(values: Values, exact: bool, y: str = "") -> SeedMean | None:
    """Return the mean of a quantity over all seeds, None if one is missing.

    A value about which nothing is random is its own interval.
    """
    known = numbers(values.values())
    if not known or len(known) < len(values):
        return None
    if exact:
        return SeedMean(known[0], (known[0], known[0]))
    return SeedMean(*intervals.mean(known, range_of(y)))


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
