"""A page for web browsers and for printing."""

from __future__ import annotations

from collections.abc import Mapping

from leakaudit.registry import renderer
from leakaudit.rendering.html import page
from leakaudit.rendering.shown import Shown
from leakaudit.trace import Json


@renderer("html")
def render(results: Mapping[str, Json]) -> str:
    """Return one self-contained page without scripts.

    Args:
        results: A record.

    Returns:
        HTML in which names from the trace cannot act as markup.
    """
    return page(Shown.of(results))
