"""Figures for papers: fixed widths, 8 pt text, vector graphics, several pages if necessary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from leakaudit._util import marks
from leakaudit._util.files import replacing
from leakaudit.core.errors import LeakauditError
from leakaudit.reporting.figures import curves, paper_images, paper_strips, plots
from leakaudit.reporting.figures.curves import CurveFigure
from leakaudit.reporting.figures.paper_strips import Strips
from leakaudit.reporting.findings.shown import Section

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = {"column": 84.0, "page": 174.0}  # mm: of one column and of both in common templates
NARROWEST = 60.0  # mm; a panel of this width still has room for its numbers
WIDEST = 400.0  # mm; a choice
HIGHEST = 230.0  # mm of figures on a page, as high as the text of common templates

Content: TypeAlias = CurveFigure | Strips | Sequence[Section]


def width_of(width: str | float) -> float:
    """Return the width of a figure in mm."""
    if isinstance(width, str) and width in WIDTHS:
        return WIDTHS[width]
    try:
        found = float(width)
    except ValueError:
        found = math.nan
    if not NARROWEST <= found <= WIDEST:
        raise LeakauditError(
            f"--width: expected {' or '.join(WIDTHS)}, or a number of millimetres from "
            f"{NARROWEST:g} to {WIDEST:g}, got {width!r}"
        )
    return found


def drawn(content: Content, kind: str, width: float, title: str) -> bytes:
    """Return a figure as ``pdf``, with as many pages as necessary, ``svg`` or ``png``."""
    mark = marks.of(personal=not isinstance(content, CurveFigure | Strips))
    figures = _figures(content, width, HIGHEST if kind == "pdf" else math.inf)
    return plots.written(figures, kind, title, mark)


def save(content: Content, path: Path, width: float, title: str) -> None:
    """Write a figure atomically, in the format given by the suffix."""
    plots.expect_suffix(path)
    made = drawn(content, path.suffix.lower()[1:], width, title)
    with replacing(path) as file:
        file.write(made)


def _figures(content: Content, width: float, highest: float) -> list[Figure]:
    if isinstance(content, CurveFigure):
        return curves.draw(content, width, highest)
    with plots.settings():
        if isinstance(content, Strips):
            return paper_strips.draw(content, width, highest)
        return paper_images.draw(content, width, highest)
