"""The figure of the results for a paper, with as many pages as necessary."""

from __future__ import annotations

from collections.abc import Mapping

from leakaudit.core.registry import renderer
from leakaudit.core.trace import Json
from leakaudit.reporting.figures import paper, record_figure


@renderer("pdf")
def render(results: Mapping[str, Json], figure_width: str | float = "page") -> bytes:
    """Draw the figure of a record."""
    width = paper.width_of(figure_width)
    content, title = record_figure.of(results)
    return paper.drawn(content, "pdf", width, title)
