"""What all charts share: sizes, colours, lines, texts, and how they are written as SVG, PNG or PDF.

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
from typing import TYPE_CHECKING, NamedTuple, TypeGuard, TypeVar

from leakaudit._util import marks
from leakaudit._util.files import replacing
from leakaudit.core.errors import LeakauditError
from leakaudit.core.quantities import Quantity
from leakaudit.reporting.findings.wording import clean
from leakaudit.reporting.results.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.typing import RcKeyType

B = TypeVar("B")

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
NO_WEIGHT = "#eceef0"

INCH = 25.4  # mm
DOTS = 300  # per inch of a PNG, as publishers ask for
# Sizes in mm; all of them are choices.
LINE = 3.6  # height of a line of text of 8 pt
LETTER = 1.58  # width of an average character of 8 pt
PANEL = 50.0  # smallest width of a panel beside others
# Sizes in points.
MARKER = 3.6
WHISKER = 3.6  # width of the end of an interval
NAME = 22  # most characters on a line of the name of an axis
DECADES = 2  # powers of ten that values must span for an automatic axis to become logarithmic
DRAWN = 1e250  # largest size of a number that is drawn; near 1e308, axes overflow
TICKS = 6  # most steps between the numbers of an axis
ROUND = (1, 2, 5, 10)  # times a power of ten: steps between the numbers of an axis
NAMED = 12  # most characters of the name of a point

_SETTINGS: dict[RcKeyType, object] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib
    "font.size": 8,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign does not start a formula
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid.axis": "y",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": EDGE,
    "grid.linewidth": 0.4,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "figure.constrained_layout.w_pad": 0.03,  # inches
    "figure.constrained_layout.h_pad": 0.03,
    "svg.fonttype": "none",  # text remains text: it can be selected, searched and read aloud
    "pdf.fonttype": 42,  # the same; publishers reject Type 3
}


class _Style(NamedTuple):
    """How a line is drawn."""

    width: float  # line width in points
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
LIMIT_RARELY = LineLook(COLOURS[3], "<", 2)
LIMIT_BY_CLAIM = LineLook(COLOURS[4], "v", 3)
LIKELIHOOD = LineLook(COLOURS[6], "P", 4)
BLIND_GUESS = LineLook(COLOURS[7], "X", 5)

STYLES = {
    "median": _Style(1.2, marked=True),
    "best": _Style(0.6),
    "mean": _Style(0.6, (4, 3)),
    "rate": _Style(1.2, marked=True),
    "seeds": _Style(1.2, marked=True),  # mean over seeds
    "ceiling": _Style(1.2, (3, 3)),
    "blind": _Style(0.6, (1, 2)),
    "run": _Style(1.0, marked=True, sparse=True),
    "level": _Style(1.2, (6, 2)),  # one value that does not depend on the horizontal axis
}


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

    title: str  # name of the vertical axis
    lines: tuple[PlotLine, ...]
    axis: str = ""  # label of the horizontal axis
    # names of the positions on the horizontal axis; empty for integers
    points: tuple[str, ...] = ()
    # whether these names are numbers, in whose distances they are drawn; otherwise they are words,
    # such as the hash of a commit, and are evenly spaced
    numeric: bool = False
    # numbers at which positions without names lie, in increasing order; empty for 0, 1, ...
    at: tuple[float, ...] = ()
    # value that the vertical axis must include at its lower end; None to fit the values
    low: float | None = None
    high: float | None = None  # the same for the upper end
    # whether the vertical axis is logarithmic; None to decide by `logarithmic`
    log: bool | None = False
    empty: str = "not measured"  # text that is shown if there is no value
    # value to which larger ones are reduced, None for none; its tick states it
    cap: float | None = None
    heading: str = ""  # text above it, which tells it from others


Row = tuple[str, Sequence[Panel]]  # title, and panels side by side


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
    made = written([figure], path.suffix.lower()[1:])
    with replacing(path) as file:
        file.write(made)


def svg(figure: Figure, name: str) -> str:
    """Return a chart as SVG without a background, for use on a page."""
    figure.patch.set_visible(False)
    return written([figure], "svg", name=name).decode()


def written(
    figures: Sequence[Figure],
    kind: str,
    title: str = "",
    mark: str = marks.MAKER,
    name: str = marks.MAKER,
) -> bytes:
    """Return the pages of a ``pdf``, or the only figure as ``svg`` or ``png``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    # Neither the time nor the versions of programs, which vary.
    about = {"Title": clean(title), "Creator": mark}
    with settings(name), io.BytesIO() as file:
        if kind == "pdf":
            with PdfPages(
                file, metadata={**about, "CreationDate": None, "Producer": None}
            ) as pages:
                for figure in figures:
                    pages.savefig(figure)
            return file.getvalue()
        # `Figure.savefig` would draw the figure twice, the first time to measure it.
        (figure,) = figures
        if kind == "svg":
            omitted = dict.fromkeys(("Date", "Format", "Type"))
            FigureCanvasSVG(figure).print_svg(file, metadata={**omitted, **about})
        else:
            FigureCanvasAgg(figure).print_png(file, metadata={marks.SOFTWARE: mark})
        return file.getvalue()


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
def settings(name: str = marks.MAKER) -> Iterator[None]:
    """Use our settings inside the block; afterwards, those of the process are restored."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        # A character that the font lacks is drawn as a box; the text of an SVG keeps it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        # Numbers near the largest float have labels that leave no room for the axes.
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        matplotlib.rcParams["svg.hashsalt"] = name
        yield


def empty(width: float, high: float) -> Figure:
    """Return an empty figure of a size in mm, whose parts matplotlib arranges."""
    from matplotlib.figure import Figure

    size = (width / INCH, high / INCH)
    return Figure(figsize=size, dpi=DOTS, facecolor="white", layout="constrained")


def paged(bands: Iterable[B], height: Callable[[B], float], room: float) -> list[list[B]]:
    """Distribute bands over pages with some room; a page has at least one."""
    pages: list[list[B]] = [[]]
    used = 0.0
    for band in bands:
        if pages[-1] and used + height(band) > room:
            pages.append([])
            used = 0.0
        pages[-1].append(band)
        used += height(band)
    return pages


def tick(value: float, cap: float | None) -> str:
    """Return the number at a tick."""
    if cap is not None and math.isclose(value, cap):
        return f"≥{value:g}"
    return f"{value:.6g}".replace("-", "−")


def said(text: str, most: int) -> str:
    """Return one printable line of limited length."""
    shown = clean(text)
    if len(shown) <= most:
        return shown
    return f"{shown[: most - 1]}…"


def wrapped(text: str, letters: int, most: int = 2) -> str:
    """Return text on a few lines."""
    lines = textwrap.wrap(
        clean(text), max(8, letters), max_lines=most, placeholder=" …", break_on_hyphens=False
    )
    return "\n".join(lines)


def artist(style: str, look: LineLook, at: Sequence[float], heights: Sequence[float]) -> Line2D:
    """Return a line, whose style decides where markers are drawn."""
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
        linewidth=chosen.width,
        linestyle=dash,
        marker=look.marker if chosen.marked else "",
        markersize=MARKER,
        markeredgewidth=0,
        clip_on=False,
    )


def whiskers(line: PlotLine, look: LineLook, at: Sequence[float], log: bool) -> Iterator[Line2D]:
    """Yield the intervals of a line whose ends can be drawn."""
    from matplotlib.lines import Line2D

    for x, value, interval in zip(at, line.values, line.intervals, strict=False):
        if interval is None or not is_drawn(value, log):
            continue
        if all(is_drawn(limit, log) for limit in interval):
            whisker = Line2D([x, x], interval, color=look.colour, linewidth=0.7, marker="_")
            whisker.set_markersize(WHISKER)
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


def say_instead(place: Axes, text: str) -> None:
    """Write a text in place of axes without values."""
    place.set_axis_off()
    place.text(0.5, 0.5, wrapped(text, 40), transform=place.transAxes, ha="center")


def values_of(lines: Iterable[PlotLine]) -> list[float]:
    """Return all values of some lines and the ends of their intervals."""
    values: list[float] = []
    for line in lines:
        values += [v for v in line.values if is_drawn(v, log=False)]
        for interval in line.intervals:
            values += interval or ()
    return values
