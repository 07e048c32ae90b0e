"""The figure of a record: images, curves, or strips with one dot per value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from leakaudit.core.quantities import (
    MEASURES,
    Place,
    Quantity,
    shown,
    visible,
)
from leakaudit.core.trace import Json
from leakaudit.reporting.figures import audit_panels, paper, plots, sweep_figure
from leakaudit.reporting.figures.curves import CurveFigure
from leakaudit.reporting.figures.paper_strips import StripPanel, Strips
from leakaudit.reporting.findings.measured import known
from leakaudit.reporting.findings.shown import DisplayRecord
from leakaudit.reporting.findings.wording import cell_of
from leakaudit.reporting.results import model
from leakaudit.reporting.results.model import (
    AuditRecord,
    CheckRecord,
    Finding,
    GatePart,
    RuleKind,
    RunRecord,
    decoded,
)

KEPT = ("median", "best", "rate")  # styles of a paper's figure; CSV also has the means
NOTE = "Dots: one value per seed. Bar: limit of the gate."


def drawn(results: Mapping[str, Json], kind: str, width: str | float) -> bytes:
    """Draw the figure of a record as ``pdf``, ``svg`` or ``png``."""
    wide = paper.width_of(width)
    content, title = of(results)
    return paper.drawn(content, kind, wide, title)


def of(results: Mapping[str, Json]) -> tuple[paper.Content, str]:
    """Return the figure of a record and its title."""
    if results["kind"] == "sweep":
        swept = model.of_sweep(results)
        return _without_thin_lines(sweep_figure.content(swept.sweep)), swept.summary
    given = DisplayRecord.of(results)
    record = given.record
    if isinstance(record, AuditRecord):
        return _without_thin_lines(audit_panels.content(record)), record.summary
    if isinstance(record, CheckRecord):
        return _of_gate(record.gate), record.summary
    if given.gallery:
        return given.gallery, record.summary
    return _of_findings(record), record.summary


def _without_thin_lines(content: CurveFigure) -> CurveFigure:
    """The curves for a paper, without those of the mean.

    The best value is omitted if it is the median everywhere, and so is the word median.
    """
    best: list[Sequence[float | None]] = []
    medians: list[Sequence[float | None]] = []
    bars = False
    for _, panels in content.rows:
        for line in chain.from_iterable(panel.lines for panel in panels):
            if line.style == "best":
                best.append(line.values)
            elif line.style == "median":
                medians.append(line.values)
                bars = bars or any(line.intervals)
    kept = {style: text for style, text in content.styles.items() if style in KEPT}
    if best == medians:
        kept.pop("best", None)
        if not bars and "median" in kept:
            kept["median"] = ""
    return replace(content, styles=kept)


def _of_gate(gate: GatePart) -> Strips:
    names = [cell.name for cell in gate.cells]
    measures: dict[str, None] = {}
    for cell in gate.cells:
        measures.update(dict.fromkeys(cell.measures))
    limits = {}
    for rule in gate.rules:
        if rule.kind is RuleKind.BUDGET:
            limits[rule.cell, rule.measure] = decoded(rule.limit)
    strips: list[StripPanel] = []
    for measure in measures:
        found: list[Sequence[float]] = []
        for cell in gate.cells:
            column = cell.measures.get(measure)
            found.append(() if column is None else column.samples)
        unit = MEASURES[measure].unit if measure in MEASURES else ""
        title = ", ".join(filter(None, (measure, unit)))
        limited = [limits.get((name, measure)) for name in names]
        strips.append(StripPanel(title, found, limited, plots.cap(unit)))
    return Strips(names, strips, NOTE)


def _of_findings(record: RunRecord) -> Strips:
    names = list(map(_name, record.findings))
    measured: dict[str, list[list[float]]] = {}
    for one in shown(Place.CURVE):
        values = [_measured(finding, one) for finding in record.findings]
        if any(values):
            measured[one.key] = values
    strips: list[StripPanel] = []
    for one in visible(shown(Place.CURVE), measured):
        title = ", ".join(filter(None, (one.words, one.unit)))
        strips.append(StripPanel(title, measured[one.key], cap=plots.cap(one.unit)))
    if not strips:
        strips.append(StripPanel("nothing was scored", [()] * len(names)))
    return Strips(names, strips, "Dots: one value per record.")


def _name(finding: Finding) -> str:
    nodes = " ".join(map(str, finding.nodes))
    words = [f"node {nodes}", finding.attack, cell_of(finding)]
    return ", ".join(filter(None, words))


def _measured(finding: Finding, one: Quantity) -> list[float]:
    if finding.scores is None:
        return []
    return known(getattr(finding.scores, one.key))
