"""The figure of a sweep, from its record.

It shows PSNR, SSIM and the share of recovered records against one setting, with one line per
attack.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec import UnsetType

from leakaudit.rendering.plots import COLOURS, Line, Panel, curves
from leakaudit.results.model import Free, SweepPart, SweepPoint, SweepStatistics
from leakaudit.results.wording import axis_value
from leakaudit.sweeping import tables
from leakaudit.sweeping.plan import OwnAxis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 50.0  # dB; the eye cannot distinguish larger values
ROWS = 12  # most rows of the figure; results.json has all rows
STYLES = {  # styles and their legend texts
    "median": "median of all records and seeds",
    "best": "best",
    "mean": "mean",
}
TITLES = {"psnr": f"PSNR, dB, up to {SHOWN:g}", "ssim": "SSIM", "relative_error": "relative error"}


@dataclass(frozen=True)
class _Drawing:
    """How points are drawn.

    Attributes:
        axis: The setting that is drawn horizontally, None for none.
        values: Values of that axis, in their order.
        own: By attack, the names of its own axes and of their hyper-parameters.
    """

    axis: str | None
    values: list[Free]
    own: Mapping[str, Mapping[str, str]]

    def line(self, point: SweepPoint) -> str:
        """Return the name of a point's line: the attack, and its hyper-parameters that vary."""
        own = self.own.get(point.attack, {})
        settings = []
        for name, value in point.at.items():
            if name in own and name != self.axis:
                settings.append(f"{own[name]}={axis_value(value)}")
        return " ".join([point.attack, *settings])

    def row(self, point: SweepPoint) -> str:
        """Return the name of a point's row: its values on the other axes, and the adversary."""
        own = self.own.get(point.attack, {})
        rest = []
        for name, value in point.at.items():
            if name not in own and name != self.axis:
                rest.append(f"{name}={axis_value(value)}")
        return ", ".join([*rest, f"adversary {point.adversary}"])


def figure(sweep: SweepPart) -> Figure:
    """Draw one row of panels per adversary and point on the axes that are not drawn horizontally.

    Args:
        sweep: The sweep part of the record.

    Returns:
        The figure, with the first `ROWS` rows.
    """
    axis = sweep.across
    values: Iterable[Free] = [None]
    if axis is not None:
        values = sweep.axes.get(axis, values)
    view = _Drawing(axis, _sorted(values), _own_names(tables.of_json(sweep.plan).own_axes))
    lines = list(dict.fromkeys(map(view.line, sweep.points)))
    rows: dict[str, list[SweepPoint]] = {}
    for point in sweep.points:
        rows.setdefault(view.row(point), []).append(point)
    labels = tuple("all" if v is None else axis_value(v) for v in view.values)
    drawn = []
    for title, group in list(rows.items())[:ROWS]:
        panels = _panels(group, view, lines, float(sweep.psnr))
        placed = [replace(panel, axis=axis or "", points=labels) for panel in panels]
        drawn.append((title, placed))
    if not drawn:
        drawn.append(("no cell has a result", [Panel("PSNR", ())]))
    more = ""
    if len(rows) > ROWS:
        more = f"{len(rows) - ROWS} more rows are in results.json"
    legend = {name: name for name in lines[: len(COLOURS)]}
    return curves(drawn, legend, STYLES, more)


def _own_names(own: Iterable[OwnAxis]) -> dict[str, dict[str, str]]:
    """Return, by attack or victim, the names of its own axes and of the settings on them."""
    found: dict[str, dict[str, str]] = {}
    for axis in own:
        found.setdefault(axis.of, {})[axis.name] = axis.key
    return found


def _panels(
    group: Sequence[SweepPoint], view: _Drawing, lines: Sequence[str], psnr: float
) -> list[Panel]:
    """Return the panels of one row: every metric, and the share of recovered records."""
    images = any(not isinstance(point.psnr, UnsetType) for point in group)
    panels = []
    for metric in ("psnr", "ssim") if images else ("relative_error",):
        made = []
        for name in lines:
            for style in STYLES:
                made.append(Line(name, style, _column(group, view, name, metric, style)))
        high = 1.0 if metric == "ssim" else None
        panels.append(Panel(TITLES[metric], tuple(made), low=0.0, high=high))
    shares = []
    for name in lines:
        shares.append(Line(name, "rate", _column(group, view, name, "recovered", "")))
    return [*panels, Panel(f"recovered: {psnr:g} dB or more", tuple(shares), low=0.0, high=1.0)]


def _column(
    group: Sequence[SweepPoint], view: _Drawing, name: str, metric: str, style: str
) -> list[float | None]:
    """Return one line's values; a line without this axis has the same value at every point."""
    mine = [p for p in group if view.line(p) == name]
    # Two values with the same text are one point of the figure.
    at: dict[str, float | None] = {}
    for wanted in map(axis_value, view.values):
        at[wanted] = None
        for point in mine:
            if view.axis is None or view.axis not in point.at:
                on_it = True
            else:
                on_it = axis_value(point.at[view.axis]) == wanted
            if on_it:
                at[wanted] = _value(point, metric, style)
                break
    return list(at.values())


def _value(point: SweepPoint, metric: str, style: str) -> float | None:
    """Return the value that is drawn for a point, None for a gap."""
    if metric == "recovered":
        return point.recovered / point.records if point.records else None
    values: SweepStatistics | UnsetType = getattr(point, metric)
    if isinstance(values, UnsetType):
        return None
    value = float(getattr(values, style))
    return min(value, SHOWN) if metric == "psnr" else value


def _sorted(values: Iterable[Free]) -> list[Free]:
    """Return numbers in ascending order, or words in their given order."""
    kept = list(values)
    numbers = []
    for value in kept:
        if isinstance(value, int | float):
            numbers.append(float(value))
        elif value == "inf":
            numbers.append(math.inf)
        else:
            return kept
    ordered = sorted(range(len(kept)), key=lambda place: numbers[place])
    return [kept[place] for place in ordered]
