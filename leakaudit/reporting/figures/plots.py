"""Charts drawn with matplotlib: panels of lines and heat maps, written as SVG, PNG or PDF.

matplotlib, whose import takes half a second, is imported when a chart is drawn. Charts do not
depend on the user's configuration, and the same chart always gives the same bytes. Labels from an
untrusted record are cleaned, and a dollar sign does not start a formula.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeGuard

from leakaudit._util.files import replacing
from leakaudit.core.errors import LeakauditError
from leakaudit.core.quantities import Quantity
from leakaudit.reporting.findings.wording import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.typing import RcKeyType

SUFFIXES = (".png", ".svg", ".pdf")
INK = "#1f2328"
QUIET = "#57606a"
EDGE = "#d0d7de"
# Distinguishable with normal vision and with the three colour deficiencies: the closest two differ
# by 7 (CIEDE2000, simulated after Machado et al. 2009), and each has a contrast against white of at
# least 3.3 : 1. An earlier choice of eight colours had pairs that differed by only 0.5. Markers
# distinguish lines in black-and-white print.
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#a0307a"),
    *("#7a5c00", "#3096d2", "#1f2328", "#7c8590"),
)
MARKERS = "os^DvPX"  # seven markers, so that the ninth line differs from the first
# One PSNR cap for every figure and for tables in LaTeX: at 60 dB, the root mean square error is a
# thousandth of the range, a quarter of a grey level of 8-bit images. Records, CSV and JSON hold the
# measured values, of which equal images have `leakaudit.scoring.metrics.PSNR_CAP`.
PSNR_SHOWN = 60.0
POSITIVE = ("#f2c4b8", "#a3200d")  # colours from the smallest to the largest weight
NEGATIVE = ("#bcd7ea", "#0b5394")
NO_WEIGHT = "#eceef0"

PIXEL = 1 / 72  # inch: the unit of SVG and PDF is a point; all sizes below are in points
DPI = 144  # resolution of a PNG: two pixels per unit
# Sizes in units; all of them are choices.
WIDE = 330
HIGH = 210
ROW_TITLE = 26
MARGIN = 6  # at the edges of the page
LINE = 17  # height of a line of the legend
TITLE_LINE = 14  # height of a line of a panel's title
BELOW = 36  # height below a panel for the names of points and of the axis
AXIS_NAME = 20  # distance from a panel to the name of its axis
BETWEEN = 6  # distance between the numbers of an axis and what is beside them
LETTER = 5.9  # approximate width of a character in the legend
SMALL_LETTER = 5.4  # the same for the labels below an axis
DIGIT = 5.8  # width of the widest character in most numbers beside an axis
CELL = 24
DECADES = 2  # powers of ten that values must span for an automatic axis to become logarithmic
DRAWN = 1e250  # largest size of a number that is drawn; near 1e308, axes overflow
TICKS = 6  # most steps between the numbers of an axis
STUB = 14  # width of a dashed line through a single point
WHISKER = 6  # width of the end of an interval
ROUND = (1, 2, 5, 10)  # times a power of ten: steps between the numbers of an axis
SPARSE = 8  # approximate number of markers on a long line
NAMED = 12  # most characters of the name of a point

_SETTINGS: dict[RcKeyType, object] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign does not start a formula
    "axes.edgecolor": QUIET,
    "axes.labelcolor": QUIET,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid.axis": "y",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": EDGE,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 10,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "figure.constrained_layout.w_pad": 0.09,  # inches
    "figure.constrained_layout.h_pad": 0.07,
    "svg.fonttype": "none",  # text remains text: it can be selected, searched and read aloud
    "pdf.fonttype": 42,  # the same; publishers reject Type 3
}
_METADATA: dict[str, dict[str, None]] = {  # omits the date and the version, which would vary
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "pdf": {"CreationDate": None},
    "png": {"Software": None},
}


class _Style(NamedTuple):
    """How a line is drawn."""

    width: float  # line width in units
    # lengths of dash and gap in line widths, None for a solid line
    dash: tuple[float, float] | None = None
    marked: bool = False
    sparse: bool = False  # whether only some of its points are marked


class LineLook(NamedTuple):
    """How the lines of one name are distinguished from others."""

    colour: str  # as `#rrggbb`
    marker: str = "o"  # name of the marker in matplotlib
    place: int = 0  # index in the legend


# Lines with these meanings have the same colour in every figure.
LIMIT_BY_VIEW = LineLook(COLOURS[2], "^", 2)
LIMIT_BY_CLAIM = LineLook(COLOURS[4], "v", 3)
LIKELIHOOD = LineLook(COLOURS[6], "P", 4)
BLIND_GUESS = LineLook(COLOURS[7], "X", 5)

STYLES = {
    "median": _Style(1.8, marked=True),
    "best": _Style(0.9),
    "mean": _Style(0.9, (4, 3)),
    "rate": _Style(1.8, marked=True),
    "ceiling": _Style(1.8, (3, 3)),
    "blind": _Style(0.9, (1, 2)),
    "run": _Style(1.5, marked=True, sparse=True),
    "level": _Style(1.8, (6, 2)),  # one value that does not depend on the horizontal axis
}


Interval = tuple[float, float]  # lower and upper end
STATISTICS = ("median", "best", "mean")  # styles of the lines of a quantity


@dataclass(frozen=True)
class PlotLine:
    """Values at the positions 0, 1, ... of the horizontal axis."""

    name: str  # name of the legend entry that has its colour
    style: str
    # one value per position; None and values that are not finite leave a gap
    values: Sequence[float | None]
    # for each position, the ends of the interval around the value, None for none; empty if the line
    # has no intervals
    intervals: Sequence[Interval | None] = ()


@dataclass(frozen=True)
class Panel:
    """Lines on two axes."""

    title: str  # title above the panel
    lines: tuple[PlotLine, ...]
    axis: str = ""  # label of the horizontal axis
    # names of the positions on the horizontal axis; empty for integers
    points: tuple[str, ...] = ()
    # value that the vertical axis must include at its lower end; None to fit the values
    low: float | None = None
    high: float | None = None  # the same for the upper end
    # whether the vertical axis is logarithmic; None to decide by `logarithmic`
    log: bool | None = False
    empty: str = "not measured"  # text that is shown if there is no value
    # value to which larger ones are reduced, None for none; `heading` states it
    cap: float | None = None

    @property
    def heading(self) -> str:
        """The title with the cap."""
        if self.cap is None:
            return self.title
        return f"{self.title} (drawn up to {self.cap:g})"


@dataclass(frozen=True)
class HeatMap:
    """Weights by row and column."""

    title: str  # title above the map
    columns: Sequence[str]  # names of the columns
    rows: Sequence[str]
    # a weight in [-1, 1] for each row and column; 0 means no weight
    values: Sequence[Sequence[float]]
    across: str = ""  # what the columns represent
    note: str = ""  # text below the map


Row = tuple[str, Sequence[Panel]]  # title, and panels side by side


def curves(
    rows: Sequence[Row],
    legend: Mapping[str, str],
    styles: Mapping[str, str] | None = None,
    note: str = "",
    wide: float = WIDE,
    looks: Mapping[str, LineLook] | None = None,
) -> Figure:
    """Draw rows of panels under one legend.

    Lines with the same name have the same colour and marker. The artist of the k-th line of a panel
    has the gid ``line<k>``.
    """
    across = max(len(panels) for _, panels in rows)
    page = across * wide
    if looks is None:
        looks = looks_of(legend)
    entries = _entries(rows, legend, styles or {}, looks, note)
    letters = int((page - 50) / LETTER)
    texts = [wrapped(text, letters) for _, text in entries]
    columns = _columns(texts, letters)
    head = math.ceil(len(texts) / columns) * LINE
    head += LINE * sum(text.count("\n") for text in texts)
    heights = [HIGH + ROW_TITLE * bool(title) for title, _ in rows]
    high = head + sum(heights)
    with settings():
        figure = _figure(page, high)
        drawn = []
        for _, panels in rows:
            drawn.append([_panel(figure, panel, looks, _room(panel, wide)) for panel in panels])
        _arrange(figure, drawn, heights, wide)
        top = head
        for (title, _), height in zip(rows, heights, strict=True):
            if title:
                place = (MARGIN / page, 1 - (top + 2 * MARGIN) / high)
                figure.text(*place, said(title, letters), va="top", fontsize=11, weight="bold")
            top += height
        if entries:
            figure.legend(
                [handle for handle, _ in entries],
                texts,
                loc="upper left",
                bbox_to_anchor=(0, 1),
                ncols=columns,
                handlelength=2.6,
                columnspacing=1.6,
                borderaxespad=0.1,
            )
    return figure


def heat(maps: Sequence[HeatMap]) -> Figure:
    """Draw heat maps below each other, with positive weights red and negative ones blue."""
    heights = [len(one.rows) * CELL + 90 for one in maps]
    page = max(480, 150 + CELL * max(len(one.columns) for one in maps))
    with settings():
        figure = _figure(page, sum(heights))
        figure.set_layout_engine("constrained")
        places = figure.subplots(len(maps), 1, height_ratios=heights, squeeze=False)[:, 0]
        for place, one in zip(places, maps, strict=True):
            _heat_map(place, one, letters=int((page - 90) / LETTER))
    return figure


def looks_of(
    names: Iterable[str], known: Mapping[str, LineLook] | None = None
) -> dict[str, LineLook]:
    """Choose a colour and a marker for each name."""
    found = dict(known or {})
    taken = {look.colour for look in found.values()}
    # The colours of the meanings come last, so that the first names have the same colours in
    # figures with and without them.
    meanings = (LIMIT_BY_VIEW, LIMIT_BY_CLAIM, LIKELIHOOD, BLIND_GUESS)
    later = [look.colour for look in meanings]
    first = [colour for colour in COLOURS if colour not in later]
    free = [*first, *(colour for colour in later if not taken)]
    place = 0
    for name in names:
        if name not in found:
            found[name] = LineLook(free[place % len(free)], MARKERS[place % len(MARKERS)], place)
            place += 1
    return found


def with_intervals(
    texts: Mapping[str, str], panels: Iterable[Panel], medians: str, rates: str
) -> dict[str, str]:
    """Return the texts of styles, with other ones for medians and rates that have intervals."""
    lines = [line for panel in panels for line in panel.lines if any(line.intervals)]
    own = {"median": medians, "rate": rates}
    return {**texts, **{line.style: own[line.style] for line in lines if line.style in own}}


def expect_suffix(path: Path, option: str = "--output") -> None:
    """Check that the suffix of a file name is a supported chart format."""
    if path.suffix.lower() not in SUFFIXES:
        raise LeakauditError(
            f"{option}: expected a name that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, "
            f"got {str(path)!r}"
        )


def save(figure: Figure, path: Path) -> None:
    """Write a chart atomically, in the format given by the suffix."""
    expect_suffix(path)
    written = _written(figure, path.suffix.lower()[1:], "leakaudit")
    with replacing(path) as file:
        file.write(written)


def svg(figure: Figure, name: str) -> str:
    """Return a chart as SVG without a background, for use on a page."""
    figure.patch.set_visible(False)
    return _written(figure, "svg", name).decode()


def logarithmic(values: Sequence[float]) -> bool:
    """Return whether only a logarithmic axis can show the range of some values."""
    positive = [v for v in values if v > 0]
    return bool(positive) and min(values) >= 0 and max(positive) >= 10**DECADES * min(positive)


def cap(unit: str) -> float | None:
    """Return the value at which larger ones of a unit are drawn, None for none."""
    return PSNR_SHOWN if unit == "dB" else None


def quality(
    name: str, at: Sequence[object], one: Quantity, bars: Sequence[Interval | None] = ()
) -> list[PlotLine]:
    """Return lines of the median (with bars), best and mean of a quantity; None is a gap."""
    top = cap(one.unit) or math.inf
    lines = []
    for style in STATISTICS:
        values = [None if found is None else min(getattr(found, style), top) for found in at]
        around = [capped(bar, top) for bar in bars] if style == "median" else []
        lines.append(PlotLine(name, style, values, around))
    return lines


def capped(interval: Interval | None, top: float) -> Interval | None:
    """Return an interval as it is drawn below a cap."""
    if interval is None:
        return None
    low, high = interval
    return min(low, top), min(high, top)


def is_drawn(value: float | None, log: bool) -> TypeGuard[float]:
    """Return whether a value can be drawn on an axis; a value that cannot leaves a gap."""
    return value is not None and (1 / DRAWN if log else -DRAWN) <= value <= DRAWN


@contextmanager
def settings(
    name: str = "leakaudit", changed: Mapping[RcKeyType, object] | None = None
) -> Iterator[None]:
    """Use our settings inside the block; afterwards, those of the process are restored."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        # A character that the font lacks is drawn as a box; the text of an SVG keeps it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        # Numbers near the largest float have labels that leave no room for the axes.
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**_SETTINGS, **(changed or {})})
        matplotlib.rcParams["svg.hashsalt"] = name
        yield


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width * PIXEL, height * PIXEL), dpi=DPI, facecolor="white")


def _written(figure: Figure, kind: str, name: str) -> bytes:
    with settings(name), io.BytesIO() as file:
        # `Figure.savefig` would draw the figure twice, the first time to measure it.
        _draw(figure, kind, file)
        return file.getvalue()


def _draw(figure: Figure, kind: str, file: BinaryIO) -> None:
    metadata = _METADATA[kind]
    if kind == "svg":
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        FigureCanvasSVG(figure).print_svg(file, metadata=metadata)
    elif kind == "pdf":
        from matplotlib.backends.backend_pdf import FigureCanvasPdf

        FigureCanvasPdf(figure).print_pdf(file, metadata=metadata)
    else:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        FigureCanvasAgg(figure).print_png(file, metadata=metadata)


def said(text: str, most: int) -> str:
    """Return one printable line of limited length."""
    shown = clean(text)
    if len(shown) <= most:
        return shown
    return f"{shown[: most - 1]}…"


def wrapped(text: str, letters: int, most: int = 2) -> str:
    """Return text on a few lines."""
    lines = textwrap.wrap(clean(text), max(8, letters), max_lines=most, placeholder=" …")
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------
# The legend
# ---------------------------------------------------------------------------------------------


def _entries(
    rows: Sequence[Row],
    legend: Mapping[str, str],
    styles: Mapping[str, str],
    looks: Mapping[str, LineLook],
    note: str,
) -> list[tuple[Line2D, str]]:
    used = used_styles(rows)
    entries = []
    for name, words in legend.items():
        kinds = set(used.get(name, ()))
        # For a name with several styles, the style with markers represents all of them.
        style = "median"
        if len(kinds) == 1:
            (style,) = kinds
        entries.append((_sample(style, looks[name]), words))
    for style, words in styles.items():
        entries.append((_sample(style, LineLook(QUIET)), words))
    if note:
        entries.append((_sample("best", LineLook("none")), note))
    return entries


def artist(
    style: str,
    look: LineLook,
    at: Sequence[float],
    heights: Sequence[float],
    thin: float = 1.0,
    marker: float = 5.5,
) -> Line2D:
    """Return a line, whose style decides where markers are drawn; sizes in points."""
    from matplotlib.lines import Line2D

    chosen = STYLES[style]
    dash: tuple[float, tuple[float, float]] | None = None  # solid
    if chosen.dash:
        # If two dashed lines coincide, the dashes of one fill the gaps of the other.
        dash = (chosen.dash[0] * (look.place % 2), chosen.dash)
    return Line2D(
        at,
        heights,
        color=look.colour,
        linewidth=chosen.width * thin,
        linestyle=dash,
        marker=look.marker if chosen.marked else "",
        markersize=marker,
        markeredgewidth=0,
        clip_on=False,
    )


def _sample(style: str, look: LineLook) -> Line2D:
    return artist(style, look, [0.0], [math.nan])


def _columns(texts: Sequence[str], letters: int) -> int:
    if not texts:
        return 1
    # A sample and the space around it are about as wide as nine characters.
    widest = 9 + max(len(line) for text in texts for line in text.split("\n"))
    return max(1, min(len(texts), letters // widest))


# ---------------------------------------------------------------------------------------------
# Panels
# ---------------------------------------------------------------------------------------------


def _panel(figure: Figure, panel: Panel, looks: Mapping[str, LineLook], letters: int) -> Axes:
    """Draw one panel, whose place on the page is set when the space around it is known."""
    place = figure.add_axes((0, 0, 1, 1))
    place.patch.set_visible(False)
    place.set_title(wrapped(panel.heading, letters))
    values = values_of(panel.lines)
    log = panel.log
    if log is None:
        log = logarithmic(values)
    drawable = [v for v in values if is_drawn(v, log)]
    if not drawable:
        say_instead(place, panel.empty, QUIET)
        return place
    if log and min(values) <= 0:
        place.set_title("zeros are not shown", loc="right", fontsize=9, color=QUIET)
    for k, line in enumerate(panel.lines):
        look = looks.get(line.name, LineLook(QUIET))
        drawn = _line(line, look, log)
        drawn.set_gid(f"line{k}")
        place.add_line(drawn)
        for whisker in whiskers(line, look, range(len(line.values)), log):
            place.add_line(whisker)
    _vertical(place, panel, drawable, log)
    place.autoscale_view()
    _horizontal(place, panel, letters)
    return place


def _arrange(
    figure: Figure, rows: Sequence[Sequence[Axes]], heights: Sequence[float], wide: float
) -> None:
    """Put all panels into their places; matplotlib's own layout takes as long as the drawing."""
    page, high = figure.get_size_inches() / PIXEL
    left = MARGIN + max(_widest_number(place) for row in rows for place in row) + BETWEEN
    width = wide - left - 2 * MARGIN
    bottom = sum(heights)  # of a row, above the bottom of the page
    for row, height in zip(rows, heights, strict=True):
        bottom -= height
        above = BETWEEN + TITLE_LINE * max(map(_title_lines, row))
        tall = HIGH - above - BELOW
        for column, place in enumerate(row):
            start = column * wide + left
            place.set_position((start / page, (bottom + BELOW) / high, width / page, tall / high))
            # Without it, matplotlib measures the names of all places to put this one below them.
            place.xaxis.set_label_coords(1, -AXIS_NAME / tall)


def _widest_number(place: Axes) -> float:
    if not place.axison:
        return 0.0
    bottom, top = place.get_ylim()
    ticks = [tick for tick in place.yaxis.get_majorticklocs() if bottom <= tick <= top]
    shown = place.yaxis.get_major_formatter().format_ticks(ticks)
    return DIGIT * max(map(len, shown), default=0)


def _title_lines(place: Axes) -> int:
    titles = [text for text in (place.get_title("left"), place.get_title("right")) if text]
    return max((text.count("\n") + 1 for text in titles), default=0)


def _line(line: PlotLine, look: LineLook, log: bool) -> Line2D:
    """Draw one line; a point between two gaps is marked, because no line makes it visible."""
    heights = [v if is_drawn(v, log) else math.nan for v in line.values]
    drawn = artist(line.style, look, range(len(heights)), heights)
    at = [k for k, v in enumerate(heights) if not math.isnan(v)]
    single = [k for k in at if k - 1 not in at and k + 1 not in at]
    chosen = STYLES[line.style]
    if chosen.marked and chosen.sparse:
        # Runs are marked at different rounds, so that markers do not overlap.
        step = max(1, len(at) // SPARSE)
        start = look.place * step // len(COLOURS)
        drawn.set_markevery(sorted({*single, *at[start::step]}))
    elif not chosen.marked:
        drawn.set_markevery(single)
        drawn.set_marker("_" if chosen.dash else look.marker)
        if chosen.dash:
            drawn.set_markersize(STUB)
            drawn.set_markeredgewidth(chosen.width)
    return drawn


def whiskers(
    line: PlotLine,
    look: LineLook,
    at: Sequence[float],
    log: bool,
    width: float = 0.9,
    end: float = WHISKER,
) -> Iterator[Line2D]:
    """Yield the intervals of a line whose ends can be drawn; sizes in points."""
    from matplotlib.lines import Line2D

    for x, value, interval in zip(at, line.values, line.intervals, strict=False):
        if interval is None or not is_drawn(value, log):
            continue
        if all(is_drawn(limit, log) for limit in interval):
            whisker = Line2D([x, x], interval, color=look.colour, linewidth=width, marker="_")
            whisker.set_markersize(end)
            whisker.set_clip_on(False)
            yield whisker


def used_styles(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the styles of the lines of each name."""
    used: dict[str, list[str]] = {}
    for _, panels in rows:
        for panel in panels:
            for line in panel.lines:
                used.setdefault(line.name, []).append(line.style)
    return used


def say_instead(place: Axes, text: str, colour: str = INK) -> None:
    """Write a text in place of axes without values."""
    place.set_axis_off()
    place.text(0.5, 0.5, text, transform=place.transAxes, ha="center", color=colour)


def values_of(lines: Iterable[PlotLine]) -> list[float]:
    """Return all values of some lines and the ends of their intervals."""
    values: list[float] = []
    for line in lines:
        values += [v for v in line.values if is_drawn(v, log=False)]
        for interval in line.intervals:
            values += interval or ()
    return values


def number_powers(
    place: Axes, values: Sequence[float], name: Callable[[int], str] = "1e{}".format
) -> None:
    """Make the vertical axis logarithmic, and name powers of ten by their exponents."""
    from matplotlib import ticker

    first = math.floor(math.log10(min(values)))
    last = max(math.ceil(math.log10(max(values))), first + 1)
    place.set_yscale("log")
    place.set_ylim(10.0**first, 10.0**last)
    powers = range(first, last + 1, math.ceil((last - first) / TICKS))
    place.yaxis.set_major_locator(ticker.FixedLocator([10.0**k for k in powers]))
    place.yaxis.set_major_formatter(lambda v, _: name(round(math.log10(v))))
    place.yaxis.set_minor_locator(ticker.NullLocator())


def _vertical(place: Axes, panel: Panel, values: Sequence[float], log: bool) -> None:
    from matplotlib import ticker

    if log:
        number_powers(place, values)
    else:
        reached = [v for v in (panel.low, panel.high) if is_drawn(v, log=False)]
        place.update_datalim([(0, v) for v in reached], updatex=False)
        place.yaxis.set_major_locator(ticker.MaxNLocator(TICKS, steps=ROUND))
        place.yaxis.set_major_formatter(lambda v, _: f"{v:.6g}")
    place.tick_params(axis="y", length=0)
    place.yaxis.set_label_coords(0, 0)  # it has no label, and nothing is measured to place it


def _horizontal(place: Axes, panel: Panel, letters: int) -> None:
    from matplotlib import ticker

    place.set_xlabel(said(panel.axis, letters), loc="right", fontsize=9)
    if not panel.points:
        place.xaxis.set_major_locator(ticker.MaxNLocator(TICKS, steps=ROUND, integer=True))
        place.xaxis.set_major_formatter(lambda v, _: f"{v:.0f}")
        return
    names = [said(name, NAMED) for name in panel.points]
    widest = (1.5 + max(map(len, names))) * SMALL_LETTER
    step = math.ceil(len(names) * widest / (letters * LETTER))
    place.set_xlim(-0.5, len(names) - 0.5)
    place.set_xticks(range(0, len(names), step), names[::step])


def _room(panel: Panel, wide: float) -> int:
    return int((wide - 60) / LETTER)


# ---------------------------------------------------------------------------------------------
# Heat maps
# ---------------------------------------------------------------------------------------------


def _heat_map(place: Axes, one: HeatMap, letters: int) -> None:
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    # Each sign has its own scale, so that the smallest weight is distinct from zero.
    scale = [(0.0, NEGATIVE[1]), (0.5, NEGATIVE[0]), (0.5, POSITIVE[0]), (1.0, POSITIVE[1])]
    colours = LinearSegmentedColormap.from_list("weights", scale).with_extremes(bad=NO_WEIGHT)
    values = np.asarray(one.values, dtype=float)
    shown = np.ma.masked_equal(values, 0.0)
    mesh = place.pcolormesh(shown, cmap=colours, vmin=-1, vmax=1, edgecolors="white", linewidth=2)
    mesh.set_edgecolor("white")
    place.invert_yaxis()
    place.grid(visible=False)
    place.spines[:].set_visible(False)
    place.set_title(wrapped(one.title, letters))
    place.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    widest = max(map(len, one.columns))
    step = math.ceil(widest * LETTER / CELL)
    across = np.arange(len(one.columns)) + 0.5
    place.set_xticks(across[::step], [said(name, NAMED) for name in one.columns[::step]])
    place.set_yticks(np.arange(len(one.rows)) + 0.5, [said(name, NAMED) for name in one.rows])
    place.set_xlabel(wrapped(one.note, letters), loc="left", fontsize=9)
    place.text(
        -0.01,
        1.0,
        said(one.across, NAMED),
        transform=place.transAxes,
        ha="right",
        va="bottom",
        fontsize=9,
        color=QUIET,
    )
    bar = place.figure.colorbar(
        mesh, ax=place, ticks=[-1, 0, 1], pad=0.02, fraction=0.05, aspect=25
    )
    bar.set_label("weight", fontsize=9)
    bar.outline.set_visible(False)
