"""Line charts: one panel a quantity, one line a run, over the rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

from leakaudit.errors import LeakauditError
from leakaudit.protocols.training_curves import Run, names
from leakaudit.rendering.pictures import EDGE, INK, PAPER, QUIET, say

COLOURS = ("#1e5aa0", "#b42318", "#2f7d32", "#9a5b00", "#6b3fa0", "#0f7c86", "#c2438f", "#6b7280")
FINE = 2  # drawn so many times larger and shrunk, for smooth lines
WIDE, HIGH, LEFT, RIGHT, TOP, FOOT, MARGIN, LINE = (
    400,
    190,
    66,
    18,
    34,
    40,
    16,
    20,
)  # pixels of a panel's field and around it
SPAN = 100.0  # largest over smallest value from which a panel is logarithmic
TICKS = 5

Points = Sequence[tuple[float, float]]


def chart(runs: Mapping[str, Run]) -> Image.Image:
    """Draw the runs over each other, by label, in as many panels as there are quantities, two beside each other.

    A panel whose values are positive and span `SPAN` is logarithmic; zeros and values that are not finite leave a gap there.
    Raises LeakauditError for more runs than there are colours.
    """
    if len(runs) > len(COLOURS):
        raise LeakauditError(
            f"curves: expected at most {len(COLOURS)} runs in one picture, got {len(runs)}; draw several"
        )
    shown, across = names(runs), min(2, len(names(runs)))
    size = LEFT + WIDE + RIGHT, TOP + HIGH + FOOT
    head = MARGIN + LINE * math.ceil(len(runs) / across)
    page = Image.new(
        "RGB",
        (
            FINE * (across * size[0] + MARGIN),
            FINE * (head + math.ceil(len(shown) / across) * size[1] + MARGIN),
        ),
        PAPER,
    )
    pen = Pen(ImageDraw.Draw(page))
    for k, label in enumerate(runs):
        x, y = MARGIN + k % across * size[0], MARGIN + k // across * LINE
        pen.line([(x, y + 7), (x + 24, y + 7)], COLOURS[k], 2)
        pen.text((x + 32, y), label if len(label) < 60 else f"…{label[-58:]}", 12, INK, "lt")
    for k, name in enumerate(shown):
        lines = [_points(run[name].tolist() if name in run else []) for run in runs.values()]
        _panel(
            pen,
            (k % across * size[0] + LEFT, head + k // across * size[1] + TOP),
            title(name),
            lines,
        )
    return page.resize((page.width // FINE, page.height // FINE), Image.Resampling.LANCZOS)


@dataclass(frozen=True)
class Axis:
    """Values from low to high; a logarithmic one holds them as powers of ten."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def of(cls, values: Sequence[float], log: bool = False) -> Axis:
        """Return the axis that holds the values; a single one lies in its middle."""
        seen = [math.log10(v) for v in values] if log else list(values)
        low, high = min(seen), max(seen)
        room = 0.5 if log else abs(low) / 10 or 1.0
        return cls(low, high, log) if high > low else cls(low - room, high + room, log)

    def place(self, value: float) -> float:
        """Return where a value lies, 0 at the low end and 1 at the high one."""
        return ((math.log10(value) if self.log else value) - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return places and labels of round numbers, about `TICKS`; of a logarithmic axis powers of ten."""
        step = _round((self.high - self.low) / TICKS)
        step = max(1.0, math.ceil(step)) if self.log else step
        at = [
            k * step
            for k in range(
                math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1
            )
        ]
        return [
            ((v - self.low) / (self.high - self.low), f"1e{v:.0f}" if self.log else f"{v:.6g}")
            for v in at
        ]


def title(name: str) -> str:
    """Return the words for a quantity."""
    known = {"consensus": "consensus error", "seconds": "seconds a round"}
    return (
        f"norm of {name[5:]}"
        if name.startswith("norm_")
        else known.get(name, name.replace("_", " "))
    )


def logarithmic(values: Sequence[float]) -> bool:
    """Whether values that are not negative span so much that only a logarithmic axis shows it."""
    some = [v for v in values if v > 0]
    return bool(some) and min(values) >= 0 and max(some) >= SPAN * min(some)


def _round(step: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return power * next(k for k in (1, 2, 5, 10) if k * power >= step * (1 - 1e-9))


def _points(values: Sequence[float]) -> list[tuple[float, float]]:
    """Return (round, value), a value that is not finite as NaN, which interrupts the line."""
    return [(float(t), v if math.isfinite(v) else math.nan) for t, v in enumerate(values)]


def _panel(pen: Pen, at: tuple[float, float], name: str, lines: Sequence[Points]) -> None:
    """Draw axes and lines; `at` is the upper left corner of the field."""
    left, top = at
    values = [v for line in lines for _, v in line if not math.isnan(v)]
    pen.text((left, top - 10), name, 13, INK, "lb")
    if not values:
        pen.text((left + WIDE / 2, top + HIGH / 2), "no finite value", 12, QUIET, "mm")
        return
    log = logarithmic(values)
    if log and min(values) == 0:
        pen.text((left + WIDE, top - 10), "zeros are left out", 11, QUIET, "rb")
    y = Axis.of([v for v in values if v > 0 or not log], log)
    x = Axis.of([t for line in lines for t, v in line if not math.isnan(v)])
    for share, label in y.ticks():
        height = top + (1 - share) * HIGH
        pen.line([(left, height), (left + WIDE, height)], EDGE, 1)
        pen.text((left - 8, height), label, 11, QUIET, "rm")
    for share, label in x.ticks():
        if "." not in label:
            pen.line(
                [(left + share * WIDE, top + HIGH), (left + share * WIDE, top + HIGH + 4)], QUIET, 1
            )
            pen.text((left + share * WIDE, top + HIGH + 7), label, 11, QUIET, "mt")
    pen.line([(left, top), (left, top + HIGH), (left + WIDE, top + HIGH)], QUIET, 1)
    pen.text((left + WIDE, top + HIGH + 22), "round", 11, QUIET, "rt")
    for colour, line in zip(COLOURS, lines, strict=False):
        for part in _unbroken(line, log):
            drawn = [(left + x.place(t) * WIDE, top + (1 - y.place(v)) * HIGH) for t, v in part]
            pen.line(drawn, colour, 2) if len(drawn) > 1 else pen.dot(drawn[0], colour)


def _unbroken(line: Points, log: bool) -> list[list[tuple[float, float]]]:
    """Cut a line where a value cannot be drawn."""
    parts: list[list[tuple[float, float]]] = [[]]
    for t, v in line:
        if math.isnan(v) or (log and v <= 0):
            parts.append([])
        else:
            parts[-1].append((t, v))
    return [p for p in parts if p]


class Pen:
    """Draws in pixels of the finished picture."""

    def __init__(self, draw: ImageDraw.ImageDraw) -> None:
        self.draw = draw

    def line(self, points: Sequence[tuple[float, float]], colour: str, width: int) -> None:
        """Join points."""
        self.draw.line(
            [(FINE * x, FINE * y) for x, y in points],
            fill=colour,
            width=FINE * width,
            joint="curve",
        )

    def dot(self, at: tuple[float, float], colour: str) -> None:
        """Draw a disc."""
        x, y = at
        self.draw.ellipse(
            [FINE * (x - 3), FINE * (y - 3), FINE * (x + 3), FINE * (y + 3)], fill=colour
        )

    def text(self, at: tuple[float, float], text: str, size: int, colour: str, anchor: str) -> None:
        """Write one line; anchor as of PIL."""
        say(self.draw, (FINE * at[0], FINE * at[1]), text, FINE * size, colour, anchor)
