"""The figure of the results as an image, in one piece."""

from __future__ import annotations

from collections.abc import Mapping

from leakaudit.core.registry import renderer
from leakaudit.core.trace import Json
from leakaudit.reporting.figures import record_figure


@renderer("png")
def render(results: Mapping[str, Json], figure_width: str | float = "page") -> bytes:
    """Draw the figure of a record."""
    return record_figure.drawn(results, "png", figure_width)
