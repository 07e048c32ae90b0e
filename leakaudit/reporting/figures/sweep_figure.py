"""The figure of a sweep: PSNR, SSIM and the share of recovered records against one setting.

What does not depend on the setting, such as a protocol without that constant, is a level that names
what is missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from leakaudit.core.quantities import Quantity
from leakaudit.reporting.figures import plots
from leakaudit.reporting.figures.curves import CurveFigure
from leakaudit.reporting.figures.plots import Panel, PlotLine
from leakaudit.reporting.findings import flat
from leakaudit.reporting.findings.wording import axis_value, is_attacked
from leakaudit.reporting.results import intervals
from leakaudit.reporting.results.model import (
    Free,
    SweepPart,
    SweepPoint,
    SweptCell,
    curves_of,
    decoded,
    given,
    statistics,
    swept,
    trained_of,
)

ROWS = 12  # most rows of the figure; results.json has all rows
ACROSS = 3  # panels side by side
STYLES = {  # styles and their legend texts
    "median": "median of all records and seeds",
    "best": "best",
    "mean": "mean",
    "seeds": "after the last round, with the 95 % interval of the mean over seeds (Student's t)",
}
MEDIANS = "median of all records, with the range of the medians of the seeds"
RATES = "share, with its 95 % Clopper-Pearson interval (records counted as independent)"


def content(sweep: SweepPart) -> CurveFigure:
    """Return a row of panels per adversary and point on the axes that are not horizontal."""
    view = _View.of(sweep)
    rows = _rows(sweep.points, view)
    names = list(dict.fromkeys(view.line(point) for point in sweep.points))
    drawn: list[plots.Row] = []
    for title, group in list(rows.items())[:ROWS]:
        panels = _panels(group, view, names, float(sweep.psnr))
        for start in range(0, len(panels), ACROSS):
            drawn.append((title if start == 0 else "", panels[start : start + ACROSS]))
    if not drawn:
        drawn.append(("no cell has a result", [Panel("PSNR", ())]))
    legend = {name: name for name in names[: len(plots.COLOURS)]}
    every = [panel for _, some in drawn for panel in some]
    styles = plots.with_intervals(STYLES, every, MEDIANS, RATES)
    note = f"{len(rows) - ROWS} more rows are in results.json" if len(rows) > ROWS else ""
    return CurveFigure(drawn, legend, styles, note=note)


@dataclass(frozen=True)
class _View:
    """How points are drawn."""

    axis: str | None  # the setting that is drawn horizontally, None for none
    values: list[Free]  # values of that axis, in their order
    # by attack or victim, the names of its own axes and of the settings on them
    own: Mapping[str, Mapping[str, str]]
    # axes that only some points have, because of their attack or victim, by the name of the
    # setting; and the victim itself, if the horizontal axis is a constant of one victim
    apart: Mapping[str, str]
    # the cells of a point by `leakaudit.reporting.findings.flat.place`
    runs: Mapping[str, Sequence[SweptCell]]

    @classmethod
    def of(cls, sweep: SweepPart) -> _View:
        """Return the view of a sweep."""
        axis = sweep.across
        values: Iterable[Free] = [None]
        if axis is not None:
            values = sweep.axes.get(axis, values)
        own = _own_names(sweep.plan)
        apart: dict[str, str] = {}
        for of, axes in own.items():
            apart.update(axes)
            if axis in axes and of in sweep.axes.get("victim", ()):
                apart["victim"] = ""
        return cls(axis, _sorted(values), own, apart, flat.runs_of(sweep))

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the points of the horizontal axis."""
        # Two values with the same text are one place of the figure.
        return tuple(dict.fromkeys("all" if v is None else axis_value(v) for v in self.values))

    def varies(self, point: SweepPoint) -> bool:
        """Return whether a point has a place on the horizontal axis."""
        return self.axis is None or self.axis in point.at

    def line(self, point: SweepPoint) -> str:
        """Return the name of a point's line.

        It is the attack, and its hyper-parameters that vary. A point without the horizontal axis
        also names its settings that its row does not name, and what it lacks.
        """
        own = self.own.get(point.attack, {})
        settings = []
        others = []
        for name, value in point.at.items():
            if name == self.axis:
                continue
            if name in own:
                settings.append(f"{own[name]}={axis_value(value)}")
            elif self.apart.get(name):
                others.append(f"{self.apart[name]}={axis_value(value)}")
            elif name in self.apart:
                others.append(axis_value(value))
        line = " ".join([point.attack, *settings])
        if self.varies(point):
            return line
        lacking = self.apart.get(str(self.axis), self.axis)
        return f"{', '.join([line, *others])} (has no {lacking})"

    def row(self, point: SweepPoint) -> str:
        """Return the name of a point's row: its values on the other axes, and the adversary."""
        own = self.own.get(point.attack, {})
        rest = []
        for name, value in point.at.items():
            if name not in own and name != self.axis:
                rest.append(f"{name}={axis_value(value)}")
        return ", ".join([*rest, f"adversary {point.adversary}"])

    def context(self, point: SweepPoint) -> str:
        """Return what a point shares with points of another attack or victim, as a key."""
        shared = {}
        for name, value in point.at.items():
            if name != self.axis and name not in self.apart:
                shared[name] = value
        return json.dumps([point.adversary, shared])

    def cells(self, point: SweepPoint) -> Sequence[SweptCell]:
        """Return the runs of a point, one per seed."""
        return self.runs.get(flat.place(point.adversary, point.attack, point.at), ())


def _own_names(plan: Mapping[str, Free]) -> dict[str, dict[str, str]]:
    """Return, by attack or victim, the names of its own axes and of the settings on them."""
    found: dict[str, dict[str, str]] = {}
    own = plan.get("own")
    if not isinstance(own, Mapping):
        return found
    for of, axes in own.items():
        if isinstance(axes, Mapping):
            found[str(of)] = {f"{of}.{key}": str(key) for key in axes}
    return found


def _rows(points: Sequence[SweepPoint], view: _View) -> dict[str, list[SweepPoint]]:
    """Return the points of every row.

    A point without the horizontal axis belongs to the rows whose other settings it shares; if there
    is none, it has a row of its own.
    """
    rows: dict[str, list[SweepPoint]] = {}
    contexts: dict[str, str] = {}
    for point in points:
        if view.varies(point):
            rows.setdefault(view.row(point), []).append(point)
            contexts[view.row(point)] = view.context(point)
    for point in points:
        if view.varies(point):
            continue
        wanted = view.context(point)
        shared = [title for title, context in contexts.items() if context == wanted]
        for title in shared or [view.row(point)]:
            rows.setdefault(title, []).append(point)
    return rows


def _panels(
    group: Sequence[SweepPoint], view: _View, names: Sequence[str], psnr: float
) -> list[Panel]:
    own: dict[str, list[SweepPoint]] = {name: [] for name in names}
    for point in group:
        own[view.line(point)].append(point)
    found = []
    attacked = any(map(is_attacked, group))
    for one in curves_of(group) if attacked else ():
        lines = []
        for name, mine in own.items():
            lines += _quality(mine, view, name, one)
        found.append(_panel(one.drawn, lines, view, one.high, plots.cap(one.unit)))
    shares = []
    for name, mine in own.items():
        shares += _shares(mine, view, name)
    if attacked:
        found.append(_panel(f"recovered: {psnr:g} dB or more", shares, view, 1.0))
    for quantity in trained_of(group):
        lines = []
        for name, mine in own.items():
            lines += _training(mine, view, name, quantity)
        panel = _panel(quantity.replace("_", " "), lines, view, None)
        found.append(replace(panel, low=None, log=None))
    return found


def _training(mine: Sequence[SweepPoint], view: _View, name: str, quantity: str) -> list[PlotLine]:
    """Return the line of a quantity after the last round, with the intervals of its means."""
    means: list[float | None] = []
    bars: list[intervals.Interval | None] = []
    for point in _places(mine, view):
        values = None if point is None else given(point.trained, {}).get(quantity)
        means.append(None if values is None else decoded(values.mean))
        low = None if values is None else decoded(values.low)
        high = None if values is None else decoded(values.high)
        bars.append(None if low is None or high is None else (low, high))
    if mine and not view.varies(mine[0]):
        return _level(name, len(means), means)
    return [PlotLine(name, "seeds", means, bars)]


def _panel(
    title: str, lines: Sequence[PlotLine], view: _View, high: float | None, cap: float | None = None
) -> Panel:
    axis = view.axis or ""
    numeric = bool(_numbers(view.values))
    return Panel(title, tuple(lines), axis, view.labels, numeric, low=0.0, high=high, cap=cap)


def _quality(mine: Sequence[SweepPoint], view: _View, name: str, one: Quantity) -> list[PlotLine]:
    at = _places(mine, view)
    if not mine or not view.varies(mine[0]):
        median, *_ = plots.quality(name, [statistics(point, one) for point in mine], one)
        return _level(name, len(at), median.values)
    found = []
    bars = []
    for point in at:
        found.append(None if point is None else statistics(point, one))
        cells = [] if point is None else view.cells(point)
        bars.append(intervals.of_seeds(swept(cell.columns, one) for cell in cells))
    return plots.quality(name, found, one, bars)


def _shares(mine: Sequence[SweepPoint], view: _View, name: str) -> list[PlotLine]:
    at = _places(mine, view)
    if not mine or not view.varies(mine[0]):
        return _level(name, len(at), [_share(point) for point in mine])
    column = []
    bars: list[intervals.Interval | None] = []
    for point in at:
        share = None
        between = None
        if point is not None:
            share = _share(point)
            if point.cells > 1 and point.records:
                between = intervals.of_rate(point.recovered, point.records)
        column.append(share)
        bars.append(between)
    return [PlotLine(name, "rate", column, bars)]


def _level(name: str, places: int, values: Sequence[float | None]) -> list[PlotLine]:
    return [PlotLine(name, "level", [value] * places) for value in values if value is not None]


def _places(mine: Sequence[SweepPoint], view: _View) -> list[SweepPoint | None]:
    at: dict[str, SweepPoint | None] = {}
    for wanted in map(axis_value, view.values):
        at[wanted] = None
        for point in mine:
            if view.axis is None or axis_value(point.at.get(view.axis)) == wanted:
                at[wanted] = point
                break
    return list(at.values())


def _share(point: SweepPoint) -> float | None:
    return point.recovered / point.records if point.records else None


def _sorted(values: Iterable[Free]) -> list[Free]:
    kept = list(values)
    numbers = _numbers(kept)
    if not numbers:
        return kept
    ordered = sorted(range(len(kept)), key=lambda place: numbers[place])
    return [kept[place] for place in ordered]


def _numbers(values: Iterable[Free]) -> list[float]:
    """Return the numbers of an axis; none if one of its values is a word."""
    numbers = []
    for value in values:
        if isinstance(value, int | float):
            numbers.append(float(value))
        elif value == "inf":
            numbers.append(math.inf)
        else:
            return []
    return numbers
