"""The figure of the results for a page or an editor, in one piece."""

from __future__ import annotations

from collections.abc import Mapping

from leakaudit.core.registry import renderer
from leakaudit.core.trace import Json
from leakaudit.reporting.figures import record_figure


@renderer("svg")
def render(results: Mapping[str, Json], figure_width: str | float = "page") -> str:
    """Draw the figure of a record."""
    return record_figure.drawn(results, "svg", figure_width).decode()
