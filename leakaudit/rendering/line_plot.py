"""Line charts over the rounds: one panel for each quantity, one line for each run."""

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
# Pixels of a panel's field and of the margins around it. These and the next two are choices.
WIDE = 400
HIGH = 190
LEFT = 66
RIGHT = 18
TOP = 34
FOOT = 40
MARGIN = 16  # around the whole picture
LINE = 20  # height of an entry of the legend
SPAN = 100.0  # largest over smallest value from which a panel is logarithmic
TICKS = 5  # about how many numbers stand beside an axis

Point = tuple[float, float]
Points = Sequence[Point]


def chart(runs: Mapping[str, Run]) -> Image.Image:
    """Draw runs over each other, in as many panels as there are quantities, two panels in a row.

    A panel whose values are positive and span `SPAN` is logarithmic; zeros and values that are not
    finite leave a gap there.

    Args:
        runs: Curves by label, at most as many as there are `COLOURS`.

    Returns:
        The picture.

    Raises:
        LeakauditError: There are more runs than colours.
    """
    if len(runs) > len(COLOURS):
        raise LeakauditError(
            f"curves: expected at most {len(COLOURS)} runs in one picture, "
            f"got {len(runs)}; draw several"
        )
    shown = names(runs)
    across = min(2, len(shown))
    width = LEFT + WIDE + RIGHT
    height = TOP + HIGH + FOOT
    head = MARGIN + LINE * math.ceil(len(runs) / across)
    page_width = across * width + MARGIN
    page_height = head + math.ceil(len(shown) / across) * height + MARGIN
    page = Image.new("RGB", (FINE * page_width, FINE * page_height), PAPER)
    pen = Pen(ImageDraw.Draw(page))
    for k, label in enumerate(runs):
        x = MARGIN + k % across * width
        y = MARGIN + k // across * LINE
        pen.line([(x, y + 7), (x + 24, y + 7)], COLOURS[k], 2)
        pen.text((x + 32, y), _shortened(label), 12, INK, "lt")
    for k, name in enumerate(shown):
        corner = (k % across * width + LEFT, head + k // across * height + TOP)
        lines = [_curve(run, name) for run in runs.values()]
        _panel(pen, corner, title(name), lines)
    return page.resize((page.width // FINE, page.height // FINE), Image.Resampling.LANCZOS)


@dataclass(frozen=True)
class Axis:
    """The range of values that an axis covers.

    Attributes:
        low: Value at the low end; of a logarithmic axis its power of ten.
        high: The same at the high end.
        log: Whether the axis is logarithmic.
    """

    low: float
    high: float
    log: bool = False

    @classmethod
    def of(cls, values: Sequence[float], log: bool = False) -> Axis:
        """Return the axis that holds the values; a single one lies in its middle.

        Args:
            values: At least one; positive if the axis is logarithmic.
            log: Whether the axis is logarithmic.

        Returns:
            The axis.
        """
        seen = list(values)
        if log:
            seen = list(map(math.log10, values))
        low = min(seen)
        high = max(seen)
        if high > low:
            return cls(low, high, log)
        # All values are equal: half a power of ten, or a tenth of the value, on either side.
        room = 0.5
        if not log:
            room = abs(low) / 10 or 1.0
        return cls(low - room, high + room, log)

    def place(self, value: float) -> float:
        """Return where a value lies, 0 at the low end and 1 at the high one.

        Args:
            value: Positive if the axis is logarithmic.

        Returns:
            Its share of the axis.
        """
        if self.log:
            value = math.log10(value)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return places and labels of about `TICKS` round numbers; powers of ten if logarithmic."""
        step = _round((self.high - self.low) / TICKS)
        if self.log:
            step = max(1.0, math.ceil(step))
        # Rounding must not drop a tick at an end of the axis.
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        found = []
        for k in range(first, last + 1):
            value = k * step
            label = f"{value:.6g}"
            if self.log:
                label = f"1e{value:.0f}"
            found.append(((value - self.low) / (self.high - self.low), label))
        return found


def title(name: str) -> str:
    """Return the words for a quantity.

    Args:
        name: As in `leakaudit.protocols.training_curves`.

    Returns:
        The title of its panel.
    """
    if name.startswith("norm_"):
        return f"norm of {name[5:]}"
    known = {"consensus": "consensus error", "seconds": "seconds a round"}
    return known.get(name, name.replace("_", " "))


def logarithmic(values: Sequence[float]) -> bool:
    """Return whether only a logarithmic axis can show the range of some values.

    Args:
        values: At least one.

    Returns:
        True if none is negative and the positive ones span a factor of `SPAN`.
    """
    positive = [v for v in values if v > 0]
    return bool(positive) and min(values) >= 0 and max(positive) >= SPAN * min(positive)


def _shortened(label: str) -> str:
    """A label that fits beside its line; the end tells runs apart."""
    if len(label) < 60:
        return label
    return f"…{label[-58:]}"


def _round(step: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return power * next(k for k in (1, 2, 5, 10) if k * power >= step * (1 - 1e-9))


def _curve(run: Run, name: str) -> list[Point]:
    """Return (round, value), a value that is not finite as NaN, which interrupts the line."""
    points: list[Point] = []
    if name not in run:
        return points
    for t, value in enumerate(run[name].tolist()):
        finite = math.isfinite(value)
        points.append((float(t), value if finite else math.nan))
    return points


def _panel(pen: Pen, at: Point, name: str, lines: Sequence[Points]) -> None:
    """Draw axes and lines; `at` is the upper left corner of the field."""
    left, top = at
    right = left + WIDE
    bottom = top + HIGH
    rounds: list[float] = []
    values: list[float] = []
    for line in lines:
        for t, v in line:
            if not math.isnan(v):
                rounds.append(t)
                values.append(v)
    pen.text((left, top - 10), name, 13, INK, "lb")
    if not values:
        pen.text((left + WIDE / 2, top + HIGH / 2), "no finite value", 12, QUIET, "mm")
        return
    log = logarithmic(values)
    if log and min(values) == 0:
        pen.text((right, top - 10), "zeros are left out", 11, QUIET, "rb")
    y = Axis.of([v for v in values if v > 0 or not log], log)
    x = Axis.of(rounds)
    for share, label in y.ticks():
        height = top + (1 - share) * HIGH
        pen.line([(left, height), (right, height)], EDGE, 1)
        pen.text((left - 8, height), label, 11, QUIET, "rm")
    for share, label in x.ticks():
        # A round is a whole number.
        if "." not in label:
            across = left + share * WIDE
            pen.line([(across, bottom), (across, bottom + 4)], QUIET, 1)
            pen.text((across, bottom + 7), label, 11, QUIET, "mt")
    pen.line([(left, top), (left, bottom), (right, bottom)], QUIET, 1)
    pen.text((right, bottom + 22), "round", 11, QUIET, "rt")
    for colour, line in zip(COLOURS, lines, strict=False):
        for part in _unbroken(line, log):
            drawn = [(left + x.place(t) * WIDE, top + (1 - y.place(v)) * HIGH) for t, v in part]
            if len(drawn) > 1:
                pen.line(drawn, colour, 2)
            else:
                pen.dot(drawn[0], colour)


def _unbroken(line: Points, log: bool) -> list[list[Point]]:
    """Cut a line where a value cannot be drawn."""
    parts: list[list[Point]] = [[]]
    for t, v in line:
        if math.isnan(v) or (log and v <= 0):
            parts.append([])
        else:
            parts[-1].append((t, v))
    return [part for part in parts if part]


class Pen:
    """Draws in pixels of the finished picture.

    Args:
        draw: Draws on the picture that is `FINE` times larger.
    """

    def __init__(self, draw: ImageDraw.ImageDraw) -> None:
        self.draw = draw

    def line(self, points: Points, colour: str, width: int) -> None:
        """Join points.

        Args:
            points: In order.
            colour: As ``#rrggbb``.
            width: Of the line.
        """
        fine = [(FINE * x, FINE * y) for x, y in points]
        self.draw.line(fine, fill=colour, width=FINE * width, joint="curve")

    def dot(self, at: Point, colour: str) -> None:
        """Draw a disc.

        Args:
            at: Its centre.
            colour: As ``#rrggbb``.
        """
        x, y = at
        box = [FINE * (x - 3), FINE * (y - 3), FINE * (x + 3), FINE * (y + 3)]
        self.draw.ellipse(box, fill=colour)

    def text(self, at: Point, text: str, size: int, colour: str, anchor: str) -> None:
        """Write one line.

        Args:
            at: Place of the anchor.
            text: What is written.
            size: Of the font.
            colour: As ``#rrggbb``.
            anchor: As in PIL: horizontal, then vertical.
        """
        say(self.draw, (FINE * at[0], FINE * at[1]), text, FINE * size, colour, anchor)
