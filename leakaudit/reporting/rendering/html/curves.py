"""The curves of an audit as drawings of the page, with the values as tooltips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from markupsafe import Markup

from leakaudit.reporting.figures import audit_panels, plots
from leakaudit.reporting.figures.curves import CurveFigure, on_screen
from leakaudit.reporting.findings.wording import REFUSED, point_of, refusal
from leakaudit.reporting.rendering.html.inline import inline
from leakaudit.reporting.results.model import AuditRecord, RunRecord, given


class _HeadedFigure(NamedTuple):
    title: str  # what the figure shows
    picture: Markup  # the figure with its legend


def panels(record: RunRecord) -> list[tuple[str, list[_HeadedFigure]]]:
    """Draw the results of every adversary of an audit."""
    if not isinstance(record, AuditRecord):
        return []
    audit = record.audit
    looks = audit_panels.looks(audit)
    drawn = []
    number = 0  # number of the figure on the page
    for adversary, some in audit_panels.views(record):
        pictures = []
        for panel in some:
            named = replace(panel, title=f"{panel.title}, by {adversary}")
            legend = audit_panels.legend(audit, [panel])
            pictures.append(_drawn(named, legend, looks, f"curves{number}"))
            number += 1
        drawn.append((adversary, pictures))
    return drawn


def refusals(record: RunRecord) -> list[str]:
    """Describe where attacks of an audit returned nothing for some nodes, or no limit is drawn."""
    said = []
    if isinstance(record, AuditRecord):
        for curve in record.audit.curves:
            refused = given(curve.refused, 0)
            if refused:
                where = f"{curve.attack} at {point_of(curve.epsilon)}, by {curve.adversary}"
                said.append(f"{where}: {refusal(given(curve.attacked, 0), refused)}")
        missing = audit_panels.unlimited(record.audit)
        return [*([REFUSED, *said] if said else []), *missing]
    return []


def _drawn(
    panel: plots.Panel, legend: Mapping[str, str], looks: Mapping[str, plots.LineLook], name: str
) -> _HeadedFigure:
    styles = audit_panels.styles([panel])
    rows = [("", [replace(panel, title="")])]
    figure = on_screen(CurveFigure(rows, legend, styles, looks))
    label = f"{panel.title} at epsilon {', '.join(panel.points)}. {_said(panel.lines)}"
    titles = {}
    for k, line in enumerate(panel.lines):
        if plots.STYLES[line.style].marked:
            titles[f"line{k}"] = _titles(panel, line)
    return _HeadedFigure(panel.title, inline(plots.svg(figure, name), label, titles))


def _titles(panel: plots.Panel, marked: plots.PlotLine) -> list[str]:
    found = []
    name = marked.name
    mine = [line for line in panel.lines if line.name == name]
    for k, point in enumerate(panel.points):
        if not plots.is_drawn(marked.values[k], bool(panel.log)):
            continue
        values = []
        for line in mine:
            value = line.values[k]
            if value is not None:
                values.append(f"{line.style} {value:.3g}")
        found.append(f"{name} at epsilon {point}: {', '.join(values)}")
    return found


def _said(lines: Sequence[plots.PlotLine]) -> str:
    said = []
    for one in lines:
        numbers = ["-" if v is None else f"{v:.3g}" for v in one.values]
        name = f"{one.name}, {one.style}" if one.style in audit_panels.STYLES else one.name
        said.append(f"{name}: {', '.join(numbers)}")
    return "; ".join(said)
