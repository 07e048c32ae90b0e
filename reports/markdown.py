"""A page for a repository, an issue or a pull request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from leakaudit._util import marks
from leakaudit.core.registry import renderer
from leakaudit.core.trace import Json
from leakaudit.reporting.findings.comparison import lines
from leakaudit.reporting.findings.shown import DisplayRecord
from leakaudit.reporting.findings.wording import (
    LIMITS,
    certificates,
    not_determined,
    not_understood,
    notes,
    provenance,
    scopes,
    table,
)
from leakaudit.reporting.rendering import audit_text, gate_text, sweep_text
from leakaudit.reporting.rendering import markdown as md
from leakaudit.reporting.results import model
from leakaudit.reporting.results.model import AuditRecord, CheckRecord, Finding


@renderer("markdown")
def render(results: Mapping[str, Json]) -> str:
    """Return GitHub-flavoured Markdown."""
    if results["kind"] == "sweep":
        return sweep_text.markdown(model.of_sweep(results))
    shown = DisplayRecord.of(results)
    if isinstance(shown.record, CheckRecord):
        return gate_text.markdown(shown.record)
    attacks = _attacks(shown)
    if isinstance(shown.record, AuditRecord):
        return f"{audit_text.markdown(shown.record)}\n\n{attacks}"
    return attacks


def _attacks(shown: DisplayRecord) -> str:
    record = shown.record
    blocks = ["# What the adversary learns", f"**{md.escape(record.summary)}**"]
    if shown.against:
        blocks += ["## Comparison with the earlier results", md.items(lines(shown.against))]
    if record.findings:
        blocks += ["## Nodes", md.table(*table(record.findings)), _notes(record.findings)]
    if record.picture:
        blocks.append(f"![Originals above reconstructions]({quote(record.picture, safe='')})")
    unknown = not_understood(record.undetermined)
    if unknown:
        blocks += ["## Not understood", md.items(unknown)]
    nothing = not_determined(record.undetermined)
    if nothing:
        blocks += ["## Not determined", md.items(nothing)]
    blocks += ["## Not tried", md.items(record.not_tried or ["not recorded"])]
    blocks += ["## Limits", md.items(LIMITS)]
    blocks += ["## Provenance", md.table(("what", "value"), provenance(record))]
    if any(one.labels is not None for one in record.findings):
        blocks.append(marks.COMMENT)
    return "\n\n".join(filter(None, blocks)) + "\n"


def _notes(findings: Sequence[Finding]) -> str:
    formulas = []
    for one in findings:
        if one.leak.formula:
            formulas.append(f"{one.leak.kind} computed as {one.leak.formula}")
    meant = [f"certificate {name}: {said}" for name, said in certificates(findings).items()]
    once = [*meant, *dict.fromkeys(formulas)]
    return md.items([*once, *scopes(findings), *notes(findings)])
