"""Charts by matplotlib: panels of lines and heat maps, written as SVG, PNG or PDF.

matplotlib is imported when a chart is drawn, and not before: its import takes about half a second.
Every chart is drawn without a display, with matplotlib's own defaults and `_SETTINGS` whatever the
user's configuration is; the settings of the process are restored afterwards. The same chart gives
the same bytes. Labels may come from an untrusted record: they are cleaned, and a dollar sign does
not start a formula.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeGuard

from leakaudit._util.files import replacing
from leakaudit.errors import LeakauditError
from leakaudit.results.wording import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.typing import RcKeyType

SUFFIXES = (".png", ".svg", ".pdf")
INK = "#1f2328"
QUIET = "#57606a"
EDGE = "#d0d7de"
# Told apart with normal sight and with the three colour deficiencies: the closest two are 7 apart
# (CIEDE2000, simulated after Machado et al. 2009), each at least 3.3 : 1 against white. The first
# choice of eight colours had pairs 0.5 apart. Markers tell lines apart in a black-and-white print.
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#a0307a"),
    *("#7a5c00", "#3096d2", "#1f2328", "#7c8590"),
)
MARKERS = "os^DvPX"  # seven of them, so that the ninth line differs from the first
POSITIVE = ("#f2c4b8", "#a3200d")  # of a weight, from the smallest to the largest
NEGATIVE = ("#bcd7ea", "#0b5394")
NO_WEIGHT = "#eceef0"

PIXEL = 1 / 72  # inch: a unit of SVG and PDF is a point, and sizes below are in these
DPI = 144  # of a PNG: two pixels a unit
# In units; all of them are choices.
WIDE = 330
HIGH = 210
ROW_TITLE = 26
MARGIN = 6  # at the edges of the page
LINE = 17  # of the legend
TITLE_LINE = 14  # of a panel's title
BELOW = 36  # of a panel, for the names of places and of the axis
AXIS_NAME = 20  # its top, below a panel
BETWEEN = 6  # the numbers of an axis and what stands beside them
LETTER = 5.9  # width of a letter of the legend, about
SMALL_LETTER = 5.4  # the same below an axis
DIGIT = 5.8  # width of the widest letter in most numbers beside an axis
CELL = 24
DECADES = 2  # powers of ten that values must span for an axis to become logarithmic by itself
TICKS = 6  # at most how many steps between numbers stand beside an axis
STUB = 14  # width of a dashed line through a single point
ROUND = (1, 2, 5, 10)  # times a power of ten: steps between numbers
SPARSE = 8  # markers on a long line, about
NAMED = 12  # characters of the name of a point at most

_SETTINGS: dict[RcKeyType, object] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # a dollar is a dollar
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
    "svg.fonttype": "none",  # text stays text: it can be selected, searched and read aloud
    "pdf.fonttype": 42,  # the same; publishers refuse Type 3
}
_METADATA: dict[str, dict[str, None]] = {  # without the date and the version, which would vary
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "pdf": {"CreationDate": None},
    "png": {"Software": None},
}


class Style(NamedTuple):
    """How a line is drawn.

    Attributes:
        width: In units.
        dash: Lengths of dash and gap in line widths, none for a solid line.
        marked: Whether its points are marked.
        sparse: Whether only some of them are.
    """

    width: float
    dash: tuple[float, float] | None = None
    marked: bool = False
    sparse: bool = False


class Look(NamedTuple):
    """How the lines of one name are told from others.

    Attributes:
        colour: As ``#rrggbb``.
        marker: As matplotlib names it.
        place: In the legend.
    """

    colour: str
    marker: str = "o"
    place: int = 0


STYLES = {
    "median": Style(1.8, marked=True),
    "best": Style(0.9),
    "mean": Style(0.9, (4, 3)),
    "rate": Style(1.8, marked=True),
    "ceiling": Style(1.8, (3, 3)),
    "blind": Style(0.9, (1, 2)),
    "run": Style(1.5, marked=True, sparse=True),
}


@dataclass(frozen=True)
class Line:
    """Values over the places 0, 1, ... of the horizontal axis.

    Attributes:
        name: Of the entry in the legend that has its colour.
        style: Of `STYLES`.
        values: One for each place; None, or one that is not finite, leaves a gap.
    """

    name: str
    style: str
    values: Sequence[float | None]


@dataclass(frozen=True)
class Panel:
    """Lines on two axes.

    Attributes:
        title: Above it.
        lines: In it.
        axis: Words below the horizontal axis.
        points: Names of the places on the horizontal axis; none for whole numbers.
        low: Value that the vertical axis reaches at least; None leaves that to the values.
        high: The same at the other end.
        log: Whether the vertical axis is logarithmic; None if it shall be where `logarithmic`.
        empty: What stands there if there is no value.
    """

    title: str
    lines: tuple[Line, ...]
    axis: str = ""
    points: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    log: bool | None = False
    empty: str = "not measured"


@dataclass(frozen=True)
class HeatMap:
    """Weights by row and column.

    Attributes:
        title: Above it.
        columns: Their names.
        rows: Their names.
        values: A weight in [-1, 1] for each row and column; 0 is none.
        across: What the columns are.
        down: What the rows are.
        note: Below it.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[str]
    values: Sequence[Sequence[float]]
    across: str = ""
    down: str = ""
    note: str = ""


Row = tuple[str, Sequence[Panel]]  # title, and what stands beside each other


def curves(
    rows: Sequence[Row],
    legend: Mapping[str, str],
    styles: Mapping[str, str] | None = None,
    note: str = "",
    wide: float = WIDE,
) -> Figure:
    """Draw rows of panels under one legend.

    Lines of the same name have the same colour and marker. The artist of the k-th line of a panel
    is called ``line<k>`` (its gid).

    Args:
        rows: Title and panels of each; a row without a title takes no space for it.
        legend: Words for each name, in the order of `COLOURS`, which repeat. A name that is
            missing is drawn in gray.
        styles: Words for the styles of lines that share a colour, shown in the legend.
        note: Below the legend.
        wide: Width of a panel.

    Returns:
        The figure.
    """
    across = max(len(panels) for _, panels in rows)
    page = across * wide
    looks = _looks(legend)
    entries = _entries(rows, legend, styles or {}, looks, note)
    letters = int((page - 50) / LETTER)
    texts = [_wrapped(text, letters) for _, text in entries]
    columns = _columns(texts, letters)
    head = math.ceil(len(texts) / columns) * LINE
    head += LINE * sum(text.count("\n") for text in texts)
    heights = [HIGH + ROW_TITLE * bool(title) for title, _ in rows]
    high = head + sum(heights)
    with _settings():
        figure = _figure(page, high)
        drawn = []
        for _, panels in rows:
            drawn.append([_panel(figure, panel, looks, _room(panel, wide)) for panel in panels])
        _arrange(figure, drawn, heights, wide)
        top = head
        for (title, _), height in zip(rows, heights, strict=True):
            if title:
                place = (MARGIN / page, 1 - (top + 2 * MARGIN) / high)
                figure.text(*place, _said(title, letters), va="top", fontsize=11, weight="bold")
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
    """Draw heat maps of weights below each other, positive ones red and negative ones blue.

    Args:
        maps: At least one.

    Returns:
        The figure.
    """
    heights = [len(one.rows) * CELL + 90 for one in maps]
    page = max(480, 150 + CELL * max(len(one.columns) for one in maps))
    with _settings():
        figure = _figure(page, sum(heights))
        figure.set_layout_engine("constrained")
        places = figure.subplots(len(maps), 1, height_ratios=heights, squeeze=False)[:, 0]
        for place, one in zip(places, maps, strict=True):
            _heat_map(place, one, letters=int((page - 90) / LETTER))
    return figure


def expect_suffix(path: Path, option: str = "--output") -> None:
    """Refuse a name whose suffix names no format that charts are written in.

    Args:
        path: Where a chart shall go.
        option: What gave the name, for the message.

    Raises:
        LeakauditError: The suffix is none of `SUFFIXES`.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise LeakauditError(
            f"{option}: expected a name that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, "
            f"got {str(path)!r}"
        )


def save(figure: Figure, path: Path) -> None:
    """Write a chart whole or not at all, in the format that the suffix names.

    Args:
        figure: The chart.
        path: Where to; ends in one of `SUFFIXES`.

    Raises:
        LeakauditError: The suffix is another one, or the file cannot be written.
    """
    expect_suffix(path)
    written = _written(figure, path.suffix.lower()[1:], "leakaudit")
    with replacing(path) as file:
        file.write(written)


def svg(figure: Figure, name: str) -> str:
    """Return a chart as SVG without a background, to stand on a page.

    Args:
        figure: The chart, which loses its background.
        name: Enters the ids of what the SVG refers to; another one on each chart of a page keeps
            these apart.

    Returns:
        The text of the file.
    """
    figure.patch.set_visible(False)
    return _written(figure, "svg", name).decode()


def logarithmic(values: Sequence[float]) -> bool:
    """Return whether only a logarithmic axis can show the range of some values.

    Args:
        values: At least one.

    Returns:
        True if none is negative and the positive ones span `DECADES`.
    """
    positive = [v for v in values if v > 0]
    return bool(positive) and min(values) >= 0 and max(positive) >= 10**DECADES * min(positive)


def is_drawn(value: float | None, log: bool) -> TypeGuard[float]:
    """Return whether a value has a place on an axis; one without it leaves a gap.

    Args:
        value: Of a line.
        log: Whether the axis is logarithmic.

    Returns:
        True for a finite number, which is positive if the axis is logarithmic.
    """
    return value is not None and math.isfinite(value) and (value > 0 or not log)


@contextmanager
def _settings(name: str = "leakaudit") -> Iterator[None]:
    """Draw with our settings inside the block; afterwards those of the process are restored."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        # A letter that the font lacks is drawn as a box; the text of an SVG keeps it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        matplotlib.rcParams["svg.hashsalt"] = name
        yield


def _figure(width: float, height: float) -> Figure:
    """An empty figure of so many units."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width * PIXEL, height * PIXEL), dpi=DPI, facecolor="white")


def _written(figure: Figure, kind: str, name: str) -> bytes:
    """The bytes of a file."""
    with _settings(name), io.BytesIO() as file:
        # `Figure.savefig` would draw the figure twice, the first time to measure it.
        _draw(figure, kind, file)
        return file.getvalue()


def _draw(figure: Figure, kind: str, file: BinaryIO) -> None:
    """Write the figure into an open file."""
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


def _said(text: str, most: int) -> str:
    """One printable line of limited length."""
    shown = clean(text)
    if len(shown) <= most:
        return shown
    return f"{shown[: most - 1]}…"


def _wrapped(text: str, letters: int) -> str:
    """Two lines at most."""
    return "\n".join(textwrap.wrap(clean(text), max(8, letters), max_lines=2, placeholder=" …"))


# ---------------------------------------------------------------------------------------------
# The legend
# ---------------------------------------------------------------------------------------------


def _looks(names: Iterable[str]) -> dict[str, Look]:
    """Colour and marker of each name."""
    found = {}
    for k, name in enumerate(names):
        found[name] = Look(COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)], k)
    return found


def _entries(
    rows: Sequence[Row],
    legend: Mapping[str, str],
    styles: Mapping[str, str],
    looks: Mapping[str, Look],
    note: str,
) -> list[tuple[Line2D, str]]:
    """Samples and words of the legend: names, styles, and the note."""
    used: dict[str, set[str]] = {}
    for _, panels in rows:
        for panel in panels:
            for line in panel.lines:
                used.setdefault(line.name, set()).add(line.style)
    entries = []
    for name, words in legend.items():
        kinds = used.get(name, set())
        # Of a name with several styles the one with markers stands for all.
        style = "median"
        if len(kinds) == 1:
            (style,) = kinds
        entries.append((_artist(style, looks[name], [math.nan]), words))
    for style, words in styles.items():
        entries.append((_artist(style, Look(QUIET), [math.nan]), words))
    if note:
        entries.append((_artist("best", Look("none"), [math.nan]), note))
    return entries


def _artist(style: str, look: Look, heights: Sequence[float]) -> Line2D:
    """A line over the places 0, 1, ...; markers stand where its style wants them."""
    from matplotlib.lines import Line2D

    chosen = STYLES[style]
    dash: tuple[float, tuple[float, float]] | None = None  # solid
    if chosen.dash:
        # Where two dashed lines coincide, the dashes of one fill the gaps of the other.
        dash = (chosen.dash[0] * (look.place % 2), chosen.dash)
    return Line2D(
        range(len(heights)),
        heights,
        color=look.colour,
        linewidth=chosen.width,
        linestyle=dash,
        marker=look.marker if chosen.marked else "",
        markersize=5.5,
        markeredgewidth=0,
        clip_on=False,
    )


def _columns(texts: Sequence[str], letters: int) -> int:
    """Columns of the legend: as many as fit."""
    if not texts:
        return 1
    # A sample and the space around it are about as wide as nine letters.
    widest = 9 + max(len(line) for text in texts for line in text.split("\n"))
    return max(1, min(len(texts), letters // widest))


# ---------------------------------------------------------------------------------------------
# Panels
# ---------------------------------------------------------------------------------------------


def _panel(figure: Figure, panel: Panel, looks: Mapping[str, Look], letters: int) -> Axes:
    """Draw one panel, whose place on the page is set when the space around it is known."""
    place = figure.add_axes((0, 0, 1, 1))
    place.patch.set_visible(False)
    place.set_title(_wrapped(panel.title, letters))
    values: list[float] = []
    for line in panel.lines:
        values += [v for v in line.values if is_drawn(v, log=False)]
    log = panel.log
    if log is None:
        log = logarithmic(values)
    drawable = [v for v in values if is_drawn(v, log)]
    if not drawable:
        place.set_axis_off()
        place.text(0.5, 0.5, panel.empty, transform=place.transAxes, ha="center", color=QUIET)
        return place
    if log and min(values) <= 0:
        place.set_title("zeros are left out", loc="right", fontsize=9, color=QUIET)
    for k, line in enumerate(panel.lines):
        artist = _line(line, looks.get(line.name, Look(QUIET)), log)
        artist.set_gid(f"line{k}")
        place.add_line(artist)
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
    """Width of the widest number beside the vertical axis, about."""
    if not place.axison:
        return 0.0
    bottom, top = place.get_ylim()
    ticks = [tick for tick in place.yaxis.get_majorticklocs() if bottom <= tick <= top]
    shown = place.yaxis.get_major_formatter().format_ticks(ticks)
    return DIGIT * max(map(len, shown), default=0)


def _title_lines(place: Axes) -> int:
    """Lines above a panel."""
    titles = [text for text in (place.get_title("left"), place.get_title("right")) if text]
    return max((text.count("\n") + 1 for text in titles), default=0)


def _line(line: Line, look: Look, log: bool) -> Line2D:
    """Draw one line; a point between two gaps is marked, since it has no line to be seen by."""
    heights = [v if is_drawn(v, log) else math.nan for v in line.values]
    artist = _artist(line.style, look, heights)
    at = [k for k, v in enumerate(heights) if not math.isnan(v)]
    single = [k for k in at if k - 1 not in at and k + 1 not in at]
    chosen = STYLES[line.style]
    if chosen.marked and chosen.sparse:
        # Runs are marked at different rounds, so that markers do not lie on each other.
        step = max(1, len(at) // SPARSE)
        start = look.place * step // len(COLOURS)
        artist.set_markevery(sorted({*single, *at[start::step]}))
    elif not chosen.marked:
        artist.set_markevery(single)
        artist.set_marker("_" if chosen.dash else look.marker)
        if chosen.dash:
            artist.set_markersize(STUB)
            artist.set_markeredgewidth(chosen.width)
    return artist


def _vertical(place: Axes, panel: Panel, values: Sequence[float], log: bool) -> None:
    """Scale and number the vertical axis."""
    from matplotlib import ticker

    if log:
        first = math.floor(math.log10(min(values)))
        last = math.ceil(math.log10(max(values)))
        last = max(last, first + 1)
        place.set_yscale("log")
        place.set_ylim(10.0**first, 10.0**last)
        powers = range(first, last + 1, math.ceil((last - first) / TICKS))
        place.yaxis.set_major_locator(ticker.FixedLocator([10.0**k for k in powers]))
        place.yaxis.set_major_formatter(lambda v, _: f"1e{round(math.log10(v))}")
        place.yaxis.set_minor_locator(ticker.NullLocator())
    else:
        reached = [v for v in (panel.low, panel.high) if v is not None]
        place.update_datalim([(0, v) for v in reached], updatex=False)
        place.yaxis.set_major_locator(ticker.MaxNLocator(TICKS, steps=ROUND))
        place.yaxis.set_major_formatter(lambda v, _: f"{v:.6g}")
    place.tick_params(axis="y", length=0)
    place.yaxis.set_label_coords(0, 0)  # it has no label, and nothing is measured to place it


def _horizontal(place: Axes, panel: Panel, letters: int) -> None:
    """Name the places of the horizontal axis, as many as there is room for."""
    from matplotlib import ticker

    place.set_xlabel(_said(panel.axis, letters), loc="right", fontsize=9)
    if not panel.points:
        place.xaxis.set_major_locator(ticker.MaxNLocator(TICKS, steps=ROUND, integer=True))
        place.xaxis.set_major_formatter(lambda v, _: f"{v:.0f}")
        return
    names = [_said(name, NAMED) for name in panel.points]
    widest = (1.5 + max(map(len, names))) * SMALL_LETTER
    step = math.ceil(len(names) * widest / (letters * LETTER))
    place.set_xlim(-0.5, len(names) - 0.5)
    place.set_xticks(range(0, len(names), step), names[::step])


def _room(panel: Panel, wide: float) -> int:
    """Letters that fit beside each other in a panel."""
    return int((wide - 60) / LETTER)


# ---------------------------------------------------------------------------------------------
# Heat maps
# ---------------------------------------------------------------------------------------------


def _heat_map(place: Axes, one: HeatMap, letters: int) -> None:
    """Draw one heat map with a scale beside it."""
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    # Each sign has a scale of its own, so that the smallest weight differs from none.
    scale = [(0.0, NEGATIVE[1]), (0.5, NEGATIVE[0]), (0.5, POSITIVE[0]), (1.0, POSITIVE[1])]
    colours = LinearSegmentedColormap.from_list("weights", scale).with_extremes(bad=NO_WEIGHT)
    values = np.asarray(one.values, dtype=float)
    shown = np.ma.masked_equal(values, 0.0)
    mesh = place.pcolormesh(shown, cmap=colours, vmin=-1, vmax=1, edgecolors="white", linewidth=2)
    mesh.set_edgecolor("white")
    place.invert_yaxis()
    place.grid(visible=False)
    place.spines[:].set_visible(False)
    place.set_title(_wrapped(one.title, letters))
    place.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    widest = max(map(len, one.columns))
    step = math.ceil(widest * LETTER / CELL)
    across = np.arange(len(one.columns)) + 0.5
    place.set_xticks(across[::step], [_said(name, NAMED) for name in one.columns[::step]])
    place.set_yticks(np.arange(len(one.rows)) + 0.5, [_said(name, NAMED) for name in one.rows])
    place.set_ylabel(_said(one.down, NAMED), fontsize=9)
    place.set_xlabel(_wrapped(one.note, letters), loc="left", fontsize=9)
    place.text(
        -0.01,
        1.0,
        _said(one.across, NAMED),
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
