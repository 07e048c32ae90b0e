"""Strips of a paper's figure: the values of several things, each in a row of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from leakaudit.reporting.figures import plots
from leakaudit.reporting.figures.plots import LETTER, LINE, MARKER, NAME, PANEL, empty, tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STRIP = 4.4  # mm, height of a row
STRIP_NAME = 34  # most characters of the name of a row


@dataclass(frozen=True)
class StripPanel:
    """Values of several things, each in a row of its own."""

    title: str  # what the values are, with their unit
    values: Sequence[Sequence[float]]  # the values of each row; empty if it has none
    limits: Sequence[float | None] = ()  # the limit of each row, None for none
    cap: float | None = None  # as in `plots.Panel`


@dataclass(frozen=True)
class Strips:
    """Strips that share their rows."""

    names: Sequence[str]
    strips: Sequence[StripPanel]  # the strips, side by side
    note: str = ""  # what the marks mean, below the strips


def draw(content: Strips, width: float, highest: float) -> list[Figure]:
    """Draw strips, on pages of at most `highest` mm; infinite for one figure."""
    from matplotlib import ticker

    across = max(1, min(len(content.strips), int(width / PANEL)))
    down = max(1, math.ceil(len(content.strips) / across))
    frame = 15.0  # mm of a strip without its rows
    note = plots.wrapped(content.note, int(width / LETTER), most=3)
    foot = LINE * (note.count("\n") + 1) if note else 0.0
    most = max(1, len(content.names))
    if math.isfinite(highest):
        most = max(1, int(((highest - foot) / down - frame) / STRIP))
    figures = []
    for start in range(0, max(1, len(content.names)), most):
        names = content.names[start : start + most]
        rows = range(len(names))
        high = down * (frame + STRIP * max(1, len(names))) + foot
        figure = empty(width, high)
        places = figure.subplots(down, across, sharey=True, squeeze=False)
        for k, place in enumerate(places.flat):
            if k >= len(content.strips):
                place.set_axis_off()
                continue
            strip = content.strips[k]
            place.set_xlabel(plots.wrapped(strip.title, NAME + 8))
            place.grid(axis="x", visible=False)
            place.set_yticks(rows, [plots.said(name, STRIP_NAME) for name in names])
            place.set_ylim(max(1, len(names)) - 0.5, -0.5)
            place.tick_params(axis="y", length=0)
            for row in rows:
                _marks(place, strip, start + row, row)
            place.xaxis.set_major_locator(ticker.MaxNLocator(4, steps=plots.ROUND))
            place.xaxis.set_major_formatter(partial(_number, strip.cap))
            if not any(strip.values):
                plots.say_instead(place, strip.title)
                continue
            place.margins(x=0.08)
            place.update_datalim([(0.0, 0.0)], updatey=False)
            place.autoscale_view(scaley=False)
        if note:
            figure.supxlabel(note, x=0.01, ha="left", fontsize=8, color=plots.INK)
        figures.append(figure)
    return figures


def _number(cap: float | None, value: float, _: object) -> str:
    return tick(value, cap)


def _marks(place: Axes, strip: StripPanel, k: int, row: int) -> None:
    top = math.inf if strip.cap is None else strip.cap
    values = [min(value, top) for value in strip.values[k] if plots.is_drawn(value, log=False)]
    place.plot(
        values,
        [row] * len(values),
        color=plots.COLOURS[0],
        marker="o",
        markersize=MARKER,
        markeredgewidth=0,
        alpha=0.7,
        linestyle="",
        clip_on=False,
    )
    limit = strip.limits[k] if k < len(strip.limits) else None
    if plots.is_drawn(limit, log=False):
        place.plot(
            [min(limit, top)],
            [row],
            color=plots.COLOURS[1],
            marker="|",
            markersize=9,
            markeredgewidth=1.2,
            linestyle="",
            clip_on=False,
        )
