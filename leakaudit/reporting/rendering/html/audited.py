"""An audit on the page: its verdicts by kind, and the claimed epsilons beside the view bounds."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import asdict

from leakaudit.core.verdict import Holds, Verdict
from leakaudit.reporting.findings import grading
from leakaudit.reporting.findings.wording import point_of, test_words
from leakaudit.reporting.results.model import AuditRecord, ClaimEntry, RunRecord

FEW = 12  # up to this number, all verdicts are expanded; a choice


def verdicts(record: RunRecord) -> list[Mapping[str, object]]:
    """Return the verdicts of an audit by kind.

    Returns:
        Groups for the template, the most severe first; severe groups are expanded, and all groups
        if there are few verdicts.
    """
    if not isinstance(record, AuditRecord):
        return []
    every = record.audit.verdicts
    groups: list[Mapping[str, object]] = []
    for name, level in grading.VERDICTS.items():
        verdict = Verdict[name]
        rows = []
        for one in every:
            if one.verdict == name:
                more = {
                    "word": verdict.words,
                    "test": test_words(one),
                    "at": point_of(one.epsilon),
                    "counted": _counted(one.figures),
                }
                rows.append({**asdict(one), **more})
        if rows:
            groups.append(
                {
                    "word": verdict.words,
                    "meant": verdict.value,
                    "level": level,
                    "open": level == "error" or len(every) <= FEW,
                    "rows": rows,
                }
            )
    return groups


def views(record: RunRecord) -> list[Mapping[str, object]]:
    """Return the view bounds of an audit."""
    if not isinstance(record, AuditRecord):
        return []
    rows: list[Mapping[str, object]] = []
    for point in record.audit.grid:
        for view in point.read_views():
            claim = view.claim or ClaimEntry()
            rows.append(
                {
                    "at": point_of(point.epsilon),
                    "node": view.node,
                    "adversary": view.adversary,
                    "claim": claim.source,
                    "claimed": claim.epsilon,
                    "exact": view.epsilon if view.exact is None else view.exact,
                    "most": Holds.read(view.holds).says(""),
                    "mu": view.mu,
                    "verdict": Verdict[view.verdict].words if view.verdict else "-",
                    "why": view.why,
                }
            )
    return rows


def _counted(figures: Mapping[str, object]) -> str:
    said = []
    for name, value in figures.items():
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        said.append(f"{name.replace('_', ' ')} {shown}")
    return ", ".join(said)
