"""A table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from leakaudit._util import marks
from leakaudit.core.reconstruction import Certificate
from leakaudit.core.registry import renderer
from leakaudit.core.trace import Json
from leakaudit.reporting.findings import wording
from leakaudit.reporting.findings.comparison import lines
from leakaudit.reporting.findings.measured import harm
from leakaudit.reporting.findings.shown import DisplayRecord, Passage
from leakaudit.reporting.findings.wording import (
    LIMITS,
    clean,
    not_determined,
    not_understood,
    notes,
    scopes,
)
from leakaudit.reporting.rendering import audit_text, gate_text, sweep_text
from leakaudit.reporting.rendering.console import printed
from leakaudit.reporting.rendering.tables import Column, table
from leakaudit.reporting.results import model
from leakaudit.reporting.results.model import AuditRecord, CheckRecord, Finding, given

_STYLES = {"exact": "bold red", "approximate": "yellow", "failed": "dim"}
UNPROVEN = (Certificate.FAILED.name, Certificate.APPROXIMATE.name)
SHOWN = 200  # largest number of findings in a terminal; a choice
NOTES = 12  # largest number of notes on what was not proven: also a choice


@renderer("text")
def render(
    results: Mapping[str, Json],
    width: int | None = None,
    color: bool = False,
    verbose: bool = False,
) -> str:
    """Return text for a terminal."""
    if results["kind"] == "sweep":
        sweep = model.of_sweep(results)
        return printed(sweep_text.text(sweep, width), width, color)
    shown = DisplayRecord.of(results)
    if isinstance(shown.record, CheckRecord):
        return printed(gate_text.text(shown.record, width, verbose), width, color)
    if isinstance(shown.record, AuditRecord):
        audited = printed(audit_text.text(shown.record, width), width, color)
        return audited + "".join(f"{line}\n" for line in lines(shown.against))
    parts = _parts(shown, width)
    labelled = any(one.labels is not None for one in shown.record.findings)
    if width is None and (labelled or shown.passages):
        parts.append(Text(marks.PERSONAL))
    return printed(parts, width, color)


def _parts(shown: DisplayRecord, width: int | None) -> list[RenderableType]:
    record = shown.record
    parts: list[RenderableType] = [Text(clean(record.summary), style="bold")]
    parts += map(Text, lines(shown.against))
    if record.findings:
        parts.append(_findings(record.findings, width))
    left = len(record.findings) - SHOWN
    if left > 0:
        more = f"only the {SHOWN} worst findings are shown; the HTML report has {left} more"
        parts.append(Text(more))
    parts += map(Text, _passages(shown.passages))
    unproven = [one for one in record.findings if one.certificate.name in UNPROVEN]
    why = notes(one for one in unproven if not given(one.certified, 0))
    parts += map(Text, why[:NOTES])
    if len(why) > NOTES:
        parts.append(Text(f"notes on more nodes: {len(why) - NOTES}, in the other reports"))
    for line in not_understood(record.undetermined):
        parts.append(Text(f"not understood: {line}"))
    for line in not_determined(record.undetermined):
        parts.append(Text(f"not determined: {line}"))
    parts += map(Text, scopes(record.findings))
    return [*parts, Text(LIMITS[0], style="dim")]


def _passages(passages: Sequence[Passage]) -> list[str]:
    lines = []
    for one in passages:
        lines.append(f"{one.owner}, record {one.record + 1}, {one.attack}: {one.certificate}")
        if one.original is not None:
            lines.append(f"  original        {one.original}")
        lines.append(f"  reconstruction  {one.found or 'not recovered'}")
    return lines


def _findings(findings: Sequence[Finding], width: int | None) -> Text:
    some = findings
    if len(some) > SHOWN:
        some = sorted(some, key=harm, reverse=True)[:SHOWN]
    headings, rows = wording.table(some)
    columns = []
    for heading in headings:
        right = heading in wording.NUMBERS
        columns.append(Column(heading, right=right, spare=heading in wording.SPARE))
    cells = [[Text(cell, style=_STYLES.get(cell, "")) for cell in row] for row in rows]
    return table(columns, cells, width)
