"""A page for a browser, and for print."""

from __future__ import annotations

from collections.abc import Mapping

from leakaudit.registry import renderer
from leakaudit.rendering.html import page
from leakaudit.rendering.shown import Shown
from leakaudit.trace import Json


@renderer("html")
def render(results: Mapping[str, Json]) -> str:
    """Write one self-contained file without script.

    Args:
        results: A record.

    Returns:
        A page that is safe to open whatever the names of a trace are.
    """
    return page(Shown.of(results))
