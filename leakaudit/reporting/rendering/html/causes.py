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

MOST = 40  # most causes that are listed; a choice


@dataclass(frozen=True)
class _FindingCause:
    """Findings with the same adversary, attack, leak and outcome."""

    level: grading.Level  # severity, a CSS class
    outcome: str  # the outcome in a few words
    adversary: str  # the adversary, and the point of an audit's grid
    attack: str
    leak: str  # kind of the leak and its rounds
    nodes: str
    exact: str  # number of records that were recovered exactly, of all
    near: str  # the closest record, by the metric of the table


@dataclass(frozen=True)
class _CauseTable:
    """The table of causes."""

    rows: Sequence[_FindingCause]  # the causes, the most severe first
    near: str  # heading of the column with the closest record, "" if none was scored
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
        rows.append(_row(some, near))
    heading = "" if metric is None else f"closest, {metric.unit or metric.words}"
    return _CauseTable(rows, heading, max(0, len(ordered) - MOST))


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


def _row(some: Sequence[Finding], near: str) -> _FindingCause:
    first = some[0]
    cell = given(first.cell, None)
    point = "" if cell is None else f", {point_of(cell.epsilon)}"
    nodes: set[int] = set()
    for one in some:
        nodes.update(one.nodes)
    exact, records = tally(some)
    return _FindingCause(
        level=grading.level(first),
        outcome=_outcome(first, exact),
        adversary=f"{first.adversary}{point}",
        attack=first.attack,
        leak=f"{first.leak.kind} {span_of(first)}",
        nodes=listed(sorted(nodes)),
        exact=f"{exact} of {'?' if records is None else records}",
        near=near,
    )


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
