"""The figure of the results as an image, in one piece."""

from __future__ import annotations

from collections.abc import Mapping

from leakaudit.core.registry import renderer
from leakaudit.core.trace import Json
from leakaudit.reporting.figures import paper, record_figure


@renderer("png")
def render(results: Mapping[str, Json], figure_width: str | float = "page") -> bytes:
    """Draw the figure of a record.

    Args:
        results: A record of any kind.
        figure_width: Width of the figure: ``column``, ``page``, or a number of mm.

    Returns:
        The bytes of a PNG with 300 dots per inch.

    Raises:
        LeakauditError: The width is not one of these.
    """
    width = paper.width_of(figure_width)
    content, _ = record_figure.of(results)
    return paper.png(content, width)
