"""The figure of an audit: PSNR and SSIM against epsilon, and beside them how often the record was identified, under its ceiling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

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

WIDE, DASH = 250, 5  # pixels of a panel's field, and of a dash
STYLES = {
    "best": (1, False),
    "median": (2, False),
    "mean": (1, True),
    "rate": (2, False),
    "ceiling": (2, True),
    "blind": (1, True),
}

SAYS = "median thick, best thin, mean dashed; thick dashes: the ceiling on success (reconstruction robustness)"

Column = Sequence[float | None]


@dataclass(frozen=True)
class Line:
    """Values at every point of the grid, None for a gap. name: of the colour's entry in the legend; style: of `STYLES`."""

    name: str
    style: str
    values: Column


@dataclass(frozen=True)
class Panel:
    """One field. low, high: of its axis, from the values where None."""

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
    """Draw one row of panels an adversary; points: the grid in words, left to right. legend: name -> meaning, in the order of colours.

    axis: what the points are of; says: how lines differ.
    """
    wide = max(len(panels) for _, panels in rows)
    size, head = (LEFT + WIDE + RIGHT, TOP + HIGH + FOOT), MARGIN + LINE * (len(legend) + 2)
    page = Image.new(
        "RGB",
        (FINE * (wide * size[0] + MARGIN), FINE * (head + len(rows) * (size[1] + LINE) + MARGIN)),
        PAPER,
    )
    pen, colours = (
        Pen(ImageDraw.Draw(page)),
        dict(zip(legend, COLOURS * (1 + len(legend) // len(COLOURS)), strict=False)),
    )
    for k, (name, meaning) in enumerate(legend.items()):
        pen.line(
            [(MARGIN, MARGIN + k * LINE + 7), (MARGIN + 24, MARGIN + k * LINE + 7)],
            colours[name],
            3,
        )
        pen.text((MARGIN + 32, MARGIN + k * LINE), meaning, 12, INK, "lt")
    pen.text((MARGIN, MARGIN + len(legend) * LINE), says, 12, QUIET, "lt")
    for r, (title, panels) in enumerate(rows):
        top = head + r * (size[1] + LINE)
        pen.text((MARGIN, top), title, 13, INK, "lt")
        for c, panel in enumerate(panels):
            _panel(pen, (c * size[0] + LEFT, top + LINE + TOP), panel, points, colours, axis)
    return page.resize((page.width // FINE, page.height // FINE), Image.Resampling.LANCZOS)


def _panel(
    pen: Pen,
    at: tuple[float, float],
    panel: Panel,
    points: Sequence[str],
    colours: Mapping[str, str],
    axis: str,
) -> None:
    left, top = at
    pen.text((left, top - 10), panel.title, 12, INK, "lb")
    values = [v for line in panel.lines for v in line.values if v is not None and math.isfinite(v)]
    if not values:
        pen.text((left + WIDE / 2, top + HIGH / 2), "not measured", 12, QUIET, "mm")
        return
    y = Axis.of([*values, *(v for v in (panel.low, panel.high) if v is not None)])
    for share, label in y.ticks():
        height = top + (1 - share) * HIGH
        pen.line([(left, height), (left + WIDE, height)], EDGE, 1)
        pen.text((left - 8, height), label, 11, QUIET, "rm")
    across = [left + WIDE * (k + 0.5) / len(points) for k in range(len(points))]
    for x, label in zip(across, points, strict=True):
        pen.line([(x, top + HIGH), (x, top + HIGH + 4)], QUIET, 1)
        pen.text((x, top + HIGH + 7), label, 11, QUIET, "mt")
    pen.line([(left, top), (left, top + HIGH), (left + WIDE, top + HIGH)], QUIET, 1)
    pen.text((left + WIDE, top + HIGH + 22), axis, 11, QUIET, "rt")
    for line in panel.lines:
        width, dashed = STYLES[line.style]
        places = [
            None if v is None or not math.isfinite(v) else (x, top + (1 - y.place(v)) * HIGH)
            for x, v in zip(across, line.values, strict=True)
        ]
        _line(
            pen,
            places,
            colours.get(line.name, QUIET),
            width,
            dashed,
            dots=line.style in ("median", "rate"),
        )


def _line(
    pen: Pen,
    places: Sequence[tuple[float, float] | None],
    colour: str,
    width: int,
    dashed: bool,
    dots: bool,
) -> None:
    for a, b in pairwise(places):
        if a is not None and b is not None:
            _stroke(pen, a, b, colour, width, dashed)
    for k, place in enumerate(places):
        near = [
            p for p in [*(places[k - 1 : k] if k else ()), *places[k + 1 : k + 2]] if p is not None
        ]
        if place is not None and (dots or not near):
            if dashed:
                _stroke(
                    pen, (place[0] - 12, place[1]), (place[0] + 12, place[1]), colour, width, True
                )
            else:
                pen.dot(place, colour)


def _stroke(
    pen: Pen, a: tuple[float, float], b: tuple[float, float], colour: str, width: int, dashed: bool
) -> None:
    if not dashed:
        pen.line([a, b], colour, width)
        return
    count = max(1, int(math.dist(a, b) // DASH))
    for k in range(0, count, 2):
        ends = [
            tuple(p + (q - p) * min(1.0, (k + s) / count) for p, q in zip(a, b, strict=True))
            for s in (0, 1)
        ]
        pen.line([(ends[0][0], ends[0][1]), (ends[1][0], ends[1][1])], colour, width)
