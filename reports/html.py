"""A page for a browser, and for print."""

from __future__ import annotations

from collections.abc import Mapping

from leakaudit.registry import renderer
from leakaudit.rendering.html import page
from leakaudit.trace import Json


@renderer("html")
def render(results: Mapping[str, Json]) -> str:
    """One self-contained file without script, safe to open whatever the names of a trace are."""
    return page(results)
