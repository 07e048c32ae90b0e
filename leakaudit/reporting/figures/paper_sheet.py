"""What all figures for papers share: sizes, settings of matplotlib, and the sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from leakaudit.reporting.figures import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.typing import RcKeyType

B = TypeVar("B")

INCH = 25.4  # mm
# Sizes in mm; all of them are choices.
PANEL = 50.0  # smallest width of a panel beside others
LINE = 3.6  # height of a line of text of 8 pt
LETTER = 1.58  # width of an average character of 8 pt
NAME = 22  # most characters on a line of the name of an axis
MARKER = 3.6  # points
SETTINGS: dict[RcKeyType, object] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "axes.labelcolor": plots.INK,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.4,
    "xtick.color": plots.INK,
    "ytick.color": plots.INK,
    "xtick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "figure.constrained_layout.w_pad": 0.03,  # inches
    "figure.constrained_layout.h_pad": 0.03,
}


def empty(width: float, high: float) -> Figure:
    """Return an empty figure, whose parts matplotlib arranges."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width / INCH, high / INCH), facecolor="white", layout="constrained")


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
