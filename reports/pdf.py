"""The figure of the results for a paper, with as many pages as necessary."""

from __future__ import annotations

from collections.abc import Mapping

from leakaudit.core.registry import renderer
from leakaudit.core.trace import Json
from leakaudit.reporting.figures import record_figure


@renderer("pdf")
def render(results: Mapping[str, Json], figure_width: str | float = "page") -> bytes:
    """Draw the figure of a record."""
    return record_figure.drawn(results, "pdf", figure_width)
