"""Curves: panels under one legend, on a horizontal axis of numbers or words.

Numbers that span a wide range have a logarithmic axis, with zero and infinity beside it, not
connected.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias

from leakaudit.reporting.figures import plots
from leakaudit.reporting.figures.plots import LETTER, LINE, NAME, PANEL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# Styles that are drawn without a text in the legend.
ALWAYS = ("ceiling", "level", "rate", "seeds", "blind", "run")
# Sizes in mm; all of them are choices.
SCREEN = 80.0  # width of a panel of a figure for a screen
HIGH = 40.0
TITLE = 5.0  # height of the title of a row
HANDLE = 11.0  # width of a sample in the legend and the space around it
SHORT = 36  # most characters of a text above the panels
AXIS = 13.0  # width of the numbers and the name of a vertical axis
GAP = 0.4  # characters between the names of two points
LOGARITHMIC = 8.0  # ratio of the largest to the smallest number from which an axis is logarithmic
ASIDE = 0.8  # distance of zero and infinity from the scale, relative to that of its points
DODGE = 0.012  # distance between lines with intervals at one place, relative to the axis
SPARSE = 8  # approximate number of markers on a long line
_SUPERSCRIPTS = dict(zip(map(ord, "0123456789-"), map(ord, "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"), strict=True))


@dataclass(frozen=True)
class CurveFigure:
    """Rows of panels under one legend."""

    rows: Sequence[plots.Row]  # title and panels of each row
    legend: Mapping[str, str]  # texts of the lines by name
    # texts of the styles of lines, "" for none; other styles are not drawn, except `ALWAYS`
    styles: Mapping[str, str]
    # look of each line by name; by default `plots.looks_of` the legend
    looks: Mapping[str, plots.LineLook] | None = None
    note: str = ""  # below the panels


Entry: TypeAlias = "tuple[Line2D, str]"  # of a legend: sample and text
Where: TypeAlias = Literal["outside upper left", "outside lower left"]


@dataclass(frozen=True)
class _Band:
    """Panels side by side."""

    title: str  # title above them, "" for none
    panels: Sequence[plots.Panel]
    first: int  # number of the first panel in the whole figure


def on_screen(content: CurveFigure, wide: float = SCREEN) -> Figure:
    """Draw curves in one figure, with panels of a width in mm."""
    across = max(len(panels) for _, panels in content.rows)
    (figure,) = draw(content, across * wide, math.inf)
    return figure


def draw(content: CurveFigure, width: float, highest: float) -> list[Figure]:
    """Draw curves, on pages of at most `highest` mm; infinite for one figure.

    Lines with the same name have the same colour and marker. The artist of the k-th line of a panel
    has the gid ``line<k>``.
    """
    looks = content.looks
    if looks is None:
        looks = plots.looks_of(content.legend)
    across = _across(content, width)
    bands: list[_Band] = []
    count = 0
    for title, panels in content.rows:
        for start in range(0, len(panels), across):
            some = panels[start : start + across]
            bands.append(_Band(title if start == 0 else "", some, count))
            count += len(some)
    figures = []
    with plots.settings():
        names = _names(content, looks)
        # Short names stand above the panels, in few lines; if one is long, all stand below.
        long = any(len(text) > SHORT for _, text in names)
        entries = [] if long else names
        meanings = [*(names if long else ()), *_meanings(content)]
        head = _room(entries, width) + _room(meanings, width)
        for page in plots.paged(bands, lambda _: HIGH + TITLE, highest - head):
            figure = plots.empty(width, head + len(page) * (HIGH + TITLE))
            canvas = _Canvas(content, looks, width / across - AXIS)
            _draw(figure, page, across, canvas, lettered=count > 1)
            _legend(figure, entries, width, "outside upper left")
            _legend(figure, meanings, width, "outside lower left")
            figures.append(figure)
    return figures


def _across(content: CurveFigure, width: float) -> int:
    most = max(len(panels) for _, panels in content.rows)
    fit = max(1, int(width / PANEL))
    return math.ceil(most / math.ceil(most / fit))


def _names(content: CurveFigure, looks: Mapping[str, plots.LineLook]) -> list[Entry]:
    used = plots.used_styles(content.rows)
    entries = []
    for name, text in content.legend.items():
        styles = used.get(name, ["median"])
        # For a name with several styles, the style with markers represents all of them.
        style = "median" if "median" in styles else styles[0]
        entries.append((_sample(style, looks[name]), text))
    return entries


def _meanings(content: CurveFigure) -> list[Entry]:
    used = plots.used_styles(content.rows)
    entries = []
    for style, text in content.styles.items():
        if text and any(style in styles for styles in used.values()):
            entries.append((_sample(style, plots.LineLook(plots.QUIET)), text))
    if content.note:
        entries.append((_sample("best", plots.LineLook("none")), content.note))
    return entries


def _sample(style: str, look: plots.LineLook) -> Line2D:
    return plots.artist(style, look, [0.0], [math.nan])


def _texts(entries: Sequence[Entry], width: float) -> tuple[int, list[str]]:
    letters = int((width - HANDLE) / LETTER)
    texts = [plots.wrapped(text, letters) for _, text in entries]
    longest = 1
    for text in texts:
        longest = max(longest, *(len(line) for line in text.split("\n")))
    columns = int(width / (HANDLE + longest * LETTER))
    return max(1, min(columns, len(texts))), texts


def _room(entries: Sequence[Entry], width: float) -> float:
    if not entries:
        return 0.0
    columns, texts = _texts(entries, width)
    lines = math.ceil(len(texts) / columns) + sum(text.count("\n") for text in texts)
    return LINE * lines + 2


def _legend(figure: Figure, entries: Sequence[Entry], width: float, where: Where) -> None:
    if not entries:
        return
    columns, texts = _texts(entries, width)
    figure.legend(
        [handle for handle, _ in entries],
        texts,
        loc=where,
        ncols=columns,
        handlelength=2.4,
        columnspacing=1.2,
        borderaxespad=0.2,
        labelspacing=0.3,
    )


@dataclass(frozen=True)
class _Canvas:
    """What all panels of a figure share."""

    content: CurveFigure
    looks: Mapping[str, plots.LineLook]  # look of each line by name
    wide: float  # width of a panel without its numbers, about, in mm


def _draw(
    figure: Figure, bands: Sequence[_Band], across: int, canvas: _Canvas, lettered: bool
) -> None:
    cells = figure.add_gridspec(len(bands), across)
    letters = int(canvas.wide / LETTER)
    for row, band in enumerate(bands):
        for column, panel in enumerate(band.panels):
            place = figure.add_subplot(cells[row, column])
            place.patch.set_visible(False)
            title = panel.heading
            most = letters
            if column == 0 and band.title:
                title, most = band.title, across * letters
            if lettered:
                title = f"({_letter(band.first + column)}) {title}"
            place.set_title(plots.said(title, most))
            _panel(place, panel, canvas)


def _letter(place: int) -> str:
    """The letter of a panel: a to z, then aa."""
    if place < 26:
        return chr(ord("a") + place)
    return _letter(place // 26 - 1) + _letter(place % 26)


def _panel(place: Axes, panel: plots.Panel, canvas: _Canvas) -> None:
    title = panel.title.replace(">=", "≥")
    place.set_ylabel(plots.wrapped(title, NAME, most=3))
    shown = {}
    for k, line in enumerate(panel.lines):
        # Styles without a text are left out: a paper's figure needs no thin line for the mean.
        if line.style in canvas.content.styles or line.style in ALWAYS:
            shown[f"line{k}"] = line
    values = plots.values_of(shown.values())
    log = panel.log
    if log is None:
        log = bool(values) and plots.logarithmic(values)
    drawable = [value for value in values if plots.is_drawn(value, log)]
    if not drawable:
        plots.say_instead(place, ": ".join(filter(None, (title, panel.empty))))
        return
    zero = _below(drawable) if log and 0 in values else None
    if zero is not None:
        shown = {gid: _at_zero(line, zero) for gid, line in shown.items()}
    count = max(len(line.values) for line in shown.values())
    scale = _Scale.of(panel.points, panel.at or range(count), panel.numeric)
    # A line on an axis of numbers without names, such as rounds, stays where its numbers are.
    dodged = [line.name for line in shown.values() if any(line.intervals) and panel.points]
    for gid, line in shown.items():
        look = canvas.looks.get(line.name, plots.LineLook(plots.QUIET))
        shift = 0.0
        if line.name in dodged:
            shift = (dodged.index(line.name) - (len(dodged) - 1) / 2) * DODGE * scale.length
        _line(place, line, look, scale, shift, log, gid)
    _vertical(place, panel, drawable, log, zero)
    place.set_xlabel(_axis_name(panel.axis))
    place.set_xlim(*scale.limits)
    _horizontal(place, panel, scale, canvas.wide)


def _below(values: Sequence[float]) -> float:
    """Return a power of ten below some values, where zero stands on a logarithmic axis."""
    return float(10.0 ** (math.floor(math.log10(min(values))) - 1))


def _at_zero(line: plots.PlotLine, zero: float) -> plots.PlotLine:
    """Return a line whose zeros stand at a place of a logarithmic axis."""
    values = tuple(zero if value == 0 else value for value in line.values)
    intervals = tuple(
        None if one is None else (one[0] or zero, one[1] or zero) for one in line.intervals
    )
    return replace(line, values=values, intervals=intervals)


def _vertical(
    place: Axes, panel: plots.Panel, values: Sequence[float], log: bool, zero: float | None
) -> None:
    from matplotlib import ticker

    place.tick_params(axis="y", length=0)
    if log:
        _number_powers(place, values, zero)
        return
    reached = [
        value for value in (*values, panel.low, panel.high) if plots.is_drawn(value, log=False)
    ]
    low = min(reached)
    high = max(reached)
    margin = 0.05 * (high - low or 1.0)
    place.set_ylim(low - margin, high + margin)
    place.yaxis.set_major_locator(ticker.MaxNLocator(plots.TICKS, steps=plots.ROUND))
    place.yaxis.set_major_formatter(lambda v, _: plots.tick(v, panel.cap))


def _number_powers(place: Axes, values: Sequence[float], zero: float | None) -> None:
    """Make the vertical axis logarithmic, and name powers of ten and the place of zero."""
    from matplotlib import ticker

    first = math.floor(math.log10(min(values)))
    last = max(math.ceil(math.log10(max(values))), first + 1)
    place.set_yscale("log")
    low = 10.0**first if zero is None else zero / 2  # so that markers at zero are whole
    place.set_ylim(low, 10.0**last)
    powers = range(first, last + 1, math.ceil((last - first) / plots.TICKS))
    ticks = [10.0**k for k in powers]
    if zero is not None:
        ticks.insert(0, zero)
    place.yaxis.set_major_locator(ticker.FixedLocator(ticks))
    place.yaxis.set_major_formatter(lambda v, _: "0" if v == zero else _power(round(math.log10(v))))
    place.yaxis.set_minor_locator(ticker.NullLocator())


def _axis_name(name: str) -> str:
    if name == "epsilon":
        return "ε"
    return plots.said(name, 60)


def _power(exponent: int) -> str:
    return f"10{str(exponent).translate(_SUPERSCRIPTS)}"


@dataclass(frozen=True)
class _Scale:
    """Where the points of a horizontal axis lie."""

    at: tuple[float, ...]  # position of each point
    names: tuple[str, ...]  # empty for integers
    joined: tuple[bool, ...]  # for each point, whether a line may join it to the next one

    @classmethod
    def of(cls, points: Sequence[str], at: Sequence[float], numeric: bool) -> _Scale:
        """Choose the scale of some points; without names, they lie at some numbers."""
        if not points:
            return cls(tuple(map(float, at)), (), (True,) * len(at))
        numbers = [_parsed(point) if numeric else math.nan for point in points]
        inside = [v for v in numbers if 0 < v < math.inf]
        ordered = all(a < b for a, b in pairwise(numbers))
        names = tuple(map(_point, points, numbers))
        if not ordered or len(inside) < 2:
            evenly = tuple(map(float, range(len(points))))
            return cls(evenly, names, (True,) * len(points))
        log = max(inside) >= LOGARITHMIC * min(inside)
        places: list[float] = []
        for number in numbers:
            places.append(math.log10(number) if log and 0 < number < math.inf else number)
        finite = [p for p, v in zip(places, numbers, strict=True) if v in inside]
        gap = ASIDE * (max(finite) - min(finite)) / (len(finite) - 1)
        apart = [not math.isfinite(v) or (log and v <= 0) for v in numbers]
        for k, number in enumerate(numbers):
            if apart[k]:
                places[k] = max(finite) + gap if number > 0 else min(finite) - gap
        joined = []
        for k in range(len(places)):
            joined.append(not apart[k] and not (k + 1 < len(places) and apart[k + 1]))
        return cls(tuple(places), names, tuple(joined))

    @property
    def length(self) -> float:
        """The distance between the first and the last point."""
        return (max(self.at) - min(self.at)) or 1.0

    @property
    def limits(self) -> tuple[float, float]:
        """The ends of the axis."""
        margin = 0.08 * self.length
        return min(self.at) - margin, max(self.at) + margin


def _parsed(point: str) -> float:
    """The number that a point stands for, NaN for a word; the constants as set come first."""
    if point == "as set":
        return -math.inf
    try:
        return float(point)
    except ValueError:
        return math.nan


def _point(point: str, number: float) -> str:
    if number == math.inf:
        return "∞"
    if 0 < number < math.inf and (number >= 1e4 or number < 1e-3):
        digits, _, exponent = f"{number:.3g}".partition("e")
        if not exponent:
            digits, _, exponent = f"{number:.2e}".partition("e")
            digits = f"{float(digits):g}"
        power = _power(int(exponent))
        return power if digits == "1" else f"{digits}·{power}"
    return plots.said(point, plots.NAMED)


def _horizontal(place: Axes, panel: plots.Panel, scale: _Scale, wide: float) -> None:
    from matplotlib import ticker

    if not panel.points:
        place.xaxis.set_major_locator(
            ticker.MaxNLocator(plots.TICKS, steps=plots.ROUND, integer=not panel.at)
        )
        return
    left, right = scale.limits
    letter = LETTER / wide * (right - left)  # width of a character
    kept: list[int] = []
    # The ends first: zero and infinity matter most.
    for k in sorted(range(len(scale.at)), key=lambda k: k not in (0, len(scale.at) - 1)):
        free = True
        for other in kept:
            room = (_letters(scale.names[k]) + _letters(scale.names[other])) / 2 + GAP
            free = free and abs(scale.at[k] - scale.at[other]) >= room * letter
        if free:
            kept.append(k)
    kept.sort()
    place.set_xticks([scale.at[k] for k in kept], [scale.names[k] for k in kept])
    place.set_xticks(scale.at, minor=True)
    place.tick_params(axis="x", which="minor", length=1.5, width=0.6)


def _letters(name: str) -> float:
    """Width of a name in characters; superscripts are narrow."""
    return sum(0.6 if ord(one) in _SUPERSCRIPTS.values() else 1.0 for one in name)


def _line(
    place: Axes,
    line: plots.PlotLine,
    look: plots.LineLook,
    scale: _Scale,
    shift: float,
    log: bool,
    gid: str,
) -> None:
    """Draw one line with its intervals; it has a gap before zero, infinity and missing values."""
    if line.style == "level":
        levels = [value for value in line.values if plots.is_drawn(value, log)]
        if levels:
            place.add_line(plots.artist("level", look, scale.limits, [levels[0], levels[0]]))
        return
    at: list[float] = []
    heights: list[float] = []
    drawn: list[int] = []
    single: list[int] = []  # points that no line makes visible
    for k, value in enumerate(line.values):
        shown = plots.is_drawn(value, log)
        before = k > 0 and scale.joined[k - 1] and plots.is_drawn(line.values[k - 1], log)
        last = k + 1 == len(line.values)
        after = not last and scale.joined[k] and plots.is_drawn(line.values[k + 1], log)
        if shown:
            drawn.append(len(at))
        if shown and not before and not after:
            single.append(len(at))
        at.append(scale.at[k] + shift)
        heights.append(float(value) if shown and value is not None else math.nan)
        if not scale.joined[k]:
            at.append(scale.at[k] + shift)
            heights.append(math.nan)
    artist = plots.artist(line.style, look, at, heights)
    artist.set_gid(gid)
    style = plots.STYLES[line.style]
    if style.sparse:
        # Runs are marked at different rounds, so that markers do not overlap.
        step = max(1, len(drawn) // SPARSE)
        start = look.place * step // len(plots.COLOURS)
        barred = [k for k in drawn if k < len(line.intervals) and line.intervals[k] is not None]
        artist.set_markevery(sorted({*single, *(barred or drawn[start::step])}))
    elif not style.marked and single:
        artist.set_marker("_")
        artist.set_markevery(single)
        artist.set_markersize(8)
        artist.set_markeredgewidth(artist.get_linewidth())
    place.add_line(artist)
    places = [x + shift for x in scale.at]
    for whisker in plots.whiskers(line, look, places, log):
        place.add_line(whisker)
