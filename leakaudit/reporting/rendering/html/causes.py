"""Findings grouped by cause: one row for all nodes that leak in the same way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leakaudit._util.plural import listed
from leakaudit.core.quantities import NEAREST, Quantity
from leakaudit.reporting.findings import grading
from leakaudit.reporting.findings.measured import best, harm
from leakaudit.reporting.findings.wording import point_of, span_of
from leakaudit.reporting.findings.worst_case import tally
from leakaudit.reporting.results.model import Finding, given

HEADINGS = ("outcome", "adversary", "attack", "leak (rounds)", "nodes", "exact")
MOST = 40  # most causes that are listed; a choice


@dataclass(frozen=True)
class _CauseTable:
    """The table of causes."""

    headings: Sequence[str]  # the last ones are those of numbers
    rows: Sequence[tuple[grading.Level, Sequence[str]]]  # the causes, the most severe first
    left_out: int  # number of causes that are not listed


def causes(findings: Sequence[Finding]) -> _CauseTable | None:
    """Group findings by cause."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for one in findings:
        groups.setdefault(_cause(one), []).append(one)
    if (len(groups) == len(findings) and len(groups) > 1) or not groups:
        return None
    ordered = sorted(groups.values(), key=_severity, reverse=True)
    metric = next((one for one in NEAREST if _values(one, findings)), None)
    rows = []
    for some in ordered[:MOST]:
        measured = [] if metric is None else _values(metric, some)
        near = "-"
        if metric is not None and measured:
            near = metric.text(metric.better(measured))
        cells = _cells(some)
        rows.append((grading.level(some[0]), cells if metric is None else [*cells, near]))
    headings = list(HEADINGS)
    if metric is not None:
        headings.append(f"closest, {metric.unit or metric.words}")
    return _CauseTable(headings, rows, max(0, len(ordered) - MOST))


def _values(one: Quantity, findings: Iterable[Finding]) -> list[float]:
    scored = [finding.scores for finding in findings if finding.scores is not None]
    values = [best(getattr(scores, one.key), one.better) for scores in scored]
    return [value for value in values if value is not None]


def _cause(one: Finding) -> tuple[str, ...]:
    cell = given(one.cell, None)
    point = "" if cell is None else point_of(cell.epsilon)
    return (
        one.adversary,
        point,
        one.attack,
        one.leak.kind,
        span_of(one),
        grading.level(one),
        one.certificate.name,
    )


def _severity(some: Sequence[Finding]) -> tuple[int, tuple[float, ...]]:
    return grading.RANK[grading.level(some[0])], max(map(harm, some))


def _cells(some: Sequence[Finding]) -> list[str]:
    first = some[0]
    cell = given(first.cell, None)
    point = "" if cell is None else f", {point_of(cell.epsilon)}"
    nodes = {node for one in some for node in one.nodes}
    exact, records = tally(some)
    return [
        _outcome(first, exact),
        f"{first.adversary}{point}",
        first.attack,
        f"{first.leak.kind} {span_of(first)}",
        listed(sorted(nodes)),
        f"{exact} of {'?' if records is None else records}",
    ]


def _outcome(first: Finding, exact: int) -> str:
    if exact:
        return "recovered exactly"
    words = {
        "EXACT": "certified exact",
        "INTERVAL": "narrow intervals",
        "APPROXIMATE": "fits the leak",
        "FAILED": "not recovered",
    }
    return words[first.certificate.name]
