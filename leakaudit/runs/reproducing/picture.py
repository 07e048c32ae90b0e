"""The figure of an item: the published axes with our lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from leakaudit.core.quantities import ACCURACIES, QUANTITIES, range_of
from leakaudit.judging.papers.items import ROUND, Place
from leakaudit.judging.papers.measured import MeasuredLine, MeasuredPanel, with_stand_in
from leakaudit.reporting.figures import plots
from leakaudit.reporting.figures.curves import CurveFigure
from leakaudit.reporting.results.intervals import Interval

NAMED = 12  # most places that are named one by one; more of them lie on an axis of numbers
BARS = 6  # approximate number of intervals on a long line
ROWS = 3  # panels side by side
NOTE = "bars: 95 % interval of the mean over {} seeds (Student's t)"
SINGLE = "one seed: no intervals"
SMALL = "small scale: the page says how it differs from the paper"


def content(panels: Sequence[MeasuredPanel], seeds: int, *, own_size: bool) -> CurveFigure:
    """Return the figure of some panels."""
    drawn = [_panel(panel) for panel in panels]
    rows = [("", drawn[k : k + ROWS]) for k in range(0, len(drawn), ROWS)]
    names = dict.fromkeys(_legend(line) for panel in panels for line in panel.lines)
    random = any(not line.exact for panel in panels for line in panel.lines)
    notes = [] if own_size else [SMALL]
    if random:
        notes.append(NOTE.format(seeds) if seeds > 1 else SINGLE)
    return CurveFigure(rows, {name: name for name in names}, {}, note="; ".join(notes))


def _legend(line: MeasuredLine) -> str:
    return line.legend or line.shown


def _title(panel: MeasuredPanel) -> str:
    """Return the name of the vertical axis, with stand-ins that the legend does not name."""
    found = dict.fromkeys(line.stand_in for line in panel.lines if line.legend and line.stand_in)
    return with_stand_in(panel.title, ", ".join(found))


def _panel(panel: MeasuredPanel) -> plots.Panel:
    places = _places(panel.lines)
    numbers = _numbers(places)
    named = panel.axis != ROUND and len(places) <= NAMED
    style = "seeds" if named else "run"
    quantity = QUANTITIES.get(panel.y)
    share = range_of(panel.y)[1] == 1.0 and panel.y not in ACCURACIES
    cap = None if quantity is None else plots.cap(quantity.unit)
    lines = tuple(_line(panel, k, places, style, cap) for k in range(len(panel.lines)))
    points: tuple[str, ...] = ()
    at: tuple[float, ...] = ()
    if named:
        points = tuple(f"{place:g}" if isinstance(place, float) else str(place) for place in places)
    elif numbers:
        at = tuple(numbers)
    return plots.Panel(
        _title(panel),
        lines,
        panel.across or panel.axis,
        points or (("",) if not places else ()),
        numeric=bool(numbers),
        at=at,
        low=0.0 if share or cap is not None else None,
        high=1.0 if share else None,
        log=panel.logarithmic,
        cap=cap,
        heading=panel.at,
    )


def _places(lines: Sequence[MeasuredLine]) -> list[Place]:
    """Return the places of all lines, numbers in their order; of rounds, those with a value."""
    found: dict[Place, None] = {}
    for line in lines:
        for k in line.known() if line.x else ():
            found[line.x[k]] = None
    places = list(found)
    numbers = _numbers(places)
    if not numbers:
        return places
    return [places[k] for k in sorted(range(len(places)), key=numbers.__getitem__)]


def _numbers(places: Sequence[Place]) -> list[float]:
    """Return places as numbers; none if one of them is a word."""
    found = []
    for place in places:
        try:
            found.append(float(place))
        except ValueError:
            return []
    return found


def _line(
    panel: MeasuredPanel, number: int, places: Sequence[Place], style: str, cap: float | None
) -> plots.PlotLine:
    line = panel.lines[number]
    top = math.inf if cap is None else cap
    if not line.x:
        found = panel.estimate(line, 0)
        level = None if found is None else min(found.mean, top)
        return plots.PlotLine(_legend(line), "level", [level] * max(1, len(places)))
    where = {place: k for k, place in enumerate(line.x)}
    values: list[float | None] = []
    intervals: list[Interval | None] = []
    every = max(1, len(places) // BARS)
    first = 0
    if style == "run":  # lines have their bars at different places, as they are not set apart
        every = max(every, min(len(panel.lines), len(places) // 2))
        first = number * every // len(panel.lines)
    for n, place in enumerate(places):
        k = where.get(place)
        found = None if k is None else panel.estimate(line, k)
        values.append(None if found is None else min(found.mean, top))
        shown = found is not None and not line.exact and (len(places) - 1 - n - first) % every == 0
        between = found.interval if shown and found is not None else None
        intervals.append(plots.capped(between, top))
    return plots.PlotLine(_legend(line), style, values, intervals)


def rows(
    panels: Sequence[MeasuredPanel],
) -> Iterator[tuple[str, str, Place | None, list[float | None]]]:
    """Yield quantity, line, place, and mean and both ends of its interval, for CSV."""
    for panel in panels:
        for line in panel.lines:
            for place, found in panel.estimates(line):
                if found is None:
                    yield panel.y, line.shown, place, [None, None, None]
                    continue
                low, high = found.interval or (math.nan, math.nan)
                yield panel.y, line.shown, place, [found.mean, low, high]
