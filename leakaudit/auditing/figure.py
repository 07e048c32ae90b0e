"""Draws rows of panels with lines over a grid of points.

In an audit: PSNR and SSIM against epsilon, and beside them how often the record was identified,
under its ceiling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from PIL import Image, ImageDraw

from leakaudit.rendering.line_plot import (
    COLOURS,
    FINE,
    FOOT,
    HIGH,
    LEFT,
    LINE,
    MARGIN,
    RIGHT,
    TOP,
    Axis,
    Pen,
)
from leakaudit.rendering.pictures import EDGE, INK, PAPER, QUIET

WIDE = 250  # pixels of a panel's field
DASH = 5  # pixels of a dash
SAMPLE = 24  # pixels of a line in the legend
STUB = 12  # pixels to each side of a point that a dashed line has by itself


class Style(NamedTuple):
    """How a line is drawn.

    Attributes:
        width: In pixels.
        dashed: Whether it is dashed.
        dots: Whether its points are marked; points without neighbours always are.
    """

    width: int
    dashed: bool
    dots: bool = False


STYLES = {
    "best": Style(1, dashed=False),
    "median": Style(2, dashed=False, dots=True),
    "mean": Style(1, dashed=True),
    "rate": Style(2, dashed=False, dots=True),
    "ceiling": Style(2, dashed=True),
    "blind": Style(1, dashed=True),
}

SAYS = (
    "median thick, best thin, mean dashed; "
    "thick dashes: the ceiling on success (reconstruction robustness)"
)

Column = Sequence[float | None]
Place = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """Values at every point of the grid.

    Attributes:
        name: Of the entry in the legend that has its colour.
        style: Of `STYLES`.
        values: One for each point, None for a gap.
    """

    name: str
    style: str
    values: Column


@dataclass(frozen=True)
class Panel:
    """One field.

    Attributes:
        title: Above it.
        lines: In it.
        low: Value that its axis reaches at least; None leaves that to the values.
        high: As low.
    """

    title: str
    lines: tuple[Line, ...]
    low: float | None = None
    high: float | None = None


def draw(
    rows: Sequence[tuple[str, Sequence[Panel]]],
    points: Sequence[str],
    legend: Mapping[str, str],
    axis: str = "epsilon",
    says: str = SAYS,
) -> Image.Image:
    """Draw rows of panels under one legend.

    Args:
        rows: Title and panels of each.
        points: The grid in words, left to right.
        legend: Name -> meaning, in the order of colours.
        axis: What the points are of.
        says: How lines differ, in words.
    """
    columns = max(len(panels) for _, panels in rows)
    width = LEFT + WIDE + RIGHT
    height = LINE + TOP + HIGH + FOOT
    head = MARGIN + LINE * (len(legend) + 2)
    size = (columns * width + MARGIN, head + len(rows) * height + MARGIN)
    page = Image.new("RGB", (FINE * size[0], FINE * size[1]), PAPER)
    pen = Pen(ImageDraw.Draw(page))
    repeats = 1 + len(legend) // len(COLOURS)
    colours = dict(zip(legend, COLOURS * repeats, strict=False))
    for k, (name, meaning) in enumerate(legend.items()):
        y = MARGIN + k * LINE
        pen.line([(MARGIN, y + 7), (MARGIN + SAMPLE, y + 7)], colours[name], 3)
        pen.text((MARGIN + SAMPLE + 8, y), meaning, 12, INK, "lt")
    pen.text((MARGIN, MARGIN + len(legend) * LINE), says, 12, QUIET, "lt")
    for r, (title, panels) in enumerate(rows):
        top = head + r * height
        pen.text((MARGIN, top), title, 13, INK, "lt")
        for c, panel in enumerate(panels):
            corner = (c * width + LEFT, top + LINE + TOP)
            _panel(pen, corner, panel, points, colours, axis)
    # Drawn at FINE times the size, so that shrinking smooths the lines.
    return page.resize((page.width // FINE, page.height // FINE), Image.Resampling.LANCZOS)


def _panel(
    pen: Pen,
    at: Place,
    panel: Panel,
    points: Sequence[str],
    colours: Mapping[str, str],
    axis: str,
) -> None:
    """Draw one field with its upper left corner at `at`."""
    left, top = at
    bottom = top + HIGH
    right = left + WIDE
    pen.text((left, top - 10), panel.title, 12, INK, "lb")
    values = [v for line in panel.lines for v in line.values if v is not None and math.isfinite(v)]
    if not values:
        pen.text((left + WIDE / 2, top + HIGH / 2), "not measured", 12, QUIET, "mm")
        return
    y = Axis.of([*values, *(v for v in (panel.low, panel.high) if v is not None)])
    for share, label in y.ticks():
        height = top + (1 - share) * HIGH
        pen.line([(left, height), (right, height)], EDGE, 1)
        pen.text((left - 8, height), label, 11, QUIET, "rm")
    across = [left + WIDE * (k + 0.5) / len(points) for k in range(len(points))]
    for x, label in zip(across, points, strict=True):
        pen.line([(x, bottom), (x, bottom + 4)], QUIET, 1)
        pen.text((x, bottom + 7), label, 11, QUIET, "mt")
    pen.line([(left, top), (left, bottom), (right, bottom)], QUIET, 1)
    pen.text((right, bottom + 22), axis, 11, QUIET, "rt")
    for line in panel.lines:
        places: list[Place | None] = []
        for x, v in zip(across, line.values, strict=True):
            place = None
            if v is not None and math.isfinite(v):
                place = (x, top + (1 - y.place(v)) * HIGH)
            places.append(place)
        _line(pen, places, colours.get(line.name, QUIET), STYLES[line.style])


def _line(pen: Pen, places: Sequence[Place | None], colour: str, style: Style) -> None:
    """Draw one line with gaps."""
    for a, b in pairwise(places):
        if a is not None and b is not None:
            _stroke(pen, a, b, colour, style)
    for k, place in enumerate(places):
        if place is None:
            continue
        before = places[k - 1] if k else None
        after = places[k + 1] if k + 1 < len(places) else None
        single = before is None and after is None
        if not (style.dots or single):
            continue
        if style.dashed:
            x, y = place
            _stroke(pen, (x - STUB, y), (x + STUB, y), colour, style)
        else:
            pen.dot(place, colour)


def _stroke(pen: Pen, a: Place, b: Place, colour: str, style: Style) -> None:
    """Draw from a to b, in dashes and gaps of equal length if the style is dashed."""
    if not style.dashed:
        pen.line([a, b], colour, style.width)
        return
    count = max(1, int(math.dist(a, b) // DASH))
    for k in range(0, count, 2):
        start = _between(a, b, min(1.0, k / count))
        stop = _between(a, b, min(1.0, (k + 1) / count))
        pen.line([start, stop], colour, style.width)


def _between(a: Place, b: Place, share: float) -> Place:
    return (a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share)
