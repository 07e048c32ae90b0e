"""Figures for papers: fixed widths, 8 pt text, vector graphics, several pages if necessary.

The panels are those of `leakaudit.reporting.figures.plots`, drawn with matplotlib's own layout.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from leakaudit._util import marks
from leakaudit._util.files import replacing
from leakaudit.core.errors import LeakauditError
from leakaudit.reporting.figures import paper_curves, paper_images, paper_strips, plots
from leakaudit.reporting.figures.paper_curves import CurveFigure
from leakaudit.reporting.figures.paper_sheet import SETTINGS
from leakaudit.reporting.figures.paper_strips import Strips
from leakaudit.reporting.findings.shown import Section
from leakaudit.reporting.findings.wording import clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = {"column": 84.0, "page": 174.0}  # mm: of one column and of both in common templates
NARROWEST = 60.0  # mm; a panel of this width still has room for its numbers
WIDEST = 400.0  # mm; a choice
HIGHEST = 230.0  # mm of figures on a page, as high as the text of common templates
DOTS = 300  # per inch of a PNG, as publishers ask for

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
    from matplotlib.backends.backend_pdf import PdfPages

    mark = marks.of(personal=not isinstance(content, CurveFigure | Strips))
    # Neither the time nor the versions of programs, which vary.
    about = {"Title": clean(title), "Creator": mark}
    omitted = dict.fromkeys(("Date", "Format", "Type"))
    metadata = {
        "pdf": {**about, "CreationDate": None, "Producer": None},
        "svg": {**omitted, **about},
        "png": {marks.SOFTWARE: mark},
    }[kind]
    with plots.settings(changed=SETTINGS), io.BytesIO() as file:
        if kind == "pdf":
            with PdfPages(file, metadata=metadata) as pages:
                for figure in _figures(content, width, HIGHEST):
                    pages.savefig(figure)
        else:
            (figure,) = _figures(content, width, math.inf)
            figure.savefig(
                file, format=kind, dpi=DOTS if kind == "png" else None, metadata=metadata
            )
        return file.getvalue()


def save(content: Content, path: Path, width: float, title: str) -> None:
    """Write a figure atomically, in the format given by the suffix."""
    plots.expect_suffix(path)
    written = drawn(content, path.suffix.lower()[1:], width, title)
    with replacing(path) as file:
        file.write(written)


def _figures(content: Content, width: float, highest: float) -> list[Figure]:
    if isinstance(content, CurveFigure):
        return paper_curves.draw(content, width, highest)
    if isinstance(content, Strips):
        return paper_strips.draw(content, width, highest)
    return paper_images.draw(content, width, highest)
