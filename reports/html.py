"""A page for web browsers and for printing."""

from __future__ import annotations

from collections.abc import Mapping

from leakaudit.core.registry import renderer
from leakaudit.core.trace import Json
from leakaudit.reporting.findings.shown import DisplayRecord
from leakaudit.reporting.rendering.html import page, rendered
from leakaudit.reporting.results import model


@renderer("html")
def render(results: Mapping[str, Json]) -> str:
    """Return one self-contained page that requests nothing."""
    if results["kind"] == "sweep":
        # The tables of the terminal, which other pages do without
        from leakaudit.reporting.figures import curves, plots, sweep_figure
        from leakaudit.reporting.rendering.html import swept
        from leakaudit.reporting.rendering.html.inline import inline

        record = model.of_sweep(results)
        drawn = plots.svg(curves.on_screen(sweep_figure.content(record.sweep)), "sweep")
        figure = inline(drawn, "Results by setting; the table below has the figures.", {})
        return rendered("sweep.html.j2", swept.content(record, figure))
    return page(DisplayRecord.of(results))
