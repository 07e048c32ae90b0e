"""A record as a list of checks that other programs can count: findings, verdicts and rules.

The name of a check stays the same from run to run.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from leakaudit._util.plural import named
from leakaudit.core.verdict import Verdict
from leakaudit.reporting.findings.measured import harm, identifies, is_identical
from leakaudit.reporting.findings.wording import (
    cell_of,
    clean,
    outcome,
    outcome_word,
    point_of,
    rule_name,
    test_words,
)
from leakaudit.reporting.results import model
from leakaudit.reporting.results.model import (
    AuditRecord,
    CellEntry,
    CheckRecord,
    Finding,
    RuleEntry,
    RunRecord,
    VerdictEntry,
    given,
)

Level = Literal["error", "warning", "note"]
RANK: dict[Level, int] = {"error": 2, "warning": 1, "note": 0}
VERDICTS: dict[str, Level] = {  # the most severe first
    "REFUTED": "error",
    "UNSUPPORTED": "error",
    "INCONCLUSIVE": "warning",
    "NOT_REFUTED": "note",
    "UNCLAIMED": "note",
}
RULES: dict[str, Level] = {
    "OVER": "error",
    "REGRESSION": "error",
    "CONTRADICTED": "error",
    "VOID": "error",
    "NOT_COMPARABLE": "error",
    "TOO_FEW_SEEDS": "error",
    "WARNING": "warning",
    "INCONCLUSIVE": "warning",
}
CONTROLS = ("recording", "attacked", "positive", "negative")  # kinds of rules


@dataclass(frozen=True)
class GradedItem:
    """One item that was examined; all texts are cleaned, but not escaped."""

    id: str  # a digest of what was examined, independent of the outcome
    name: str  # what was examined, without any figures
    rule: str  # attack, test or pitfall
    node: int  # the node that owns the data
    adversary: str  # the adversary, "" if the check does not involve one
    level: Level
    message: str  # the outcome, with figures
    word: str
    detail: str = ""  # further explanation
    seconds: float = 0.0  # time that it took
    open: bool = False  # whether the outcome is undecided
    cell: str = ""  # cell of a gate, "" for other records
    harm: tuple[float, ...] = ()  # sort key for checks of the same level: how much they leak
    others: tuple[int, ...] = ()  # further nodes that own the data

    @property
    def place(self) -> str:
        """The cell of a gate, or the nodes that own the data."""
        return self.cell or named(sorted((self.node, *self.others)))

    @property
    def rank(self) -> tuple[float, ...]:
        """Sort key; larger is worse."""
        return (RANK[self.level], *self.harm)


def checks(record: RunRecord | Mapping[str, object]) -> list[GradedItem]:
    """Return all checks of a record."""
    typed = record if isinstance(record, RunRecord) else model.of_run(record)
    return sorted(_unique(_listed(typed)), key=lambda check: check.rank, reverse=True)


def _listed(record: RunRecord) -> list[GradedItem]:
    found = []
    if isinstance(record, AuditRecord):
        found += [_verdict(record, verdict) for verdict in record.audit.verdicts]
    found += [_finding(record, finding) for finding in record.findings]
    if isinstance(record, CheckRecord):
        cells = {cell.name: cell for cell in record.gate.cells}
        found += [_gated(rule, cells.get(rule.cell)) for rule in record.gate.rules]
    return found


def is_settled(record: RunRecord) -> bool:
    """Return whether a run examined all that it was to examine, and understood what it examined.

    If not, a list of checks without an alert is no pass.
    """
    if not record.complete or any(one.understood is False for one in record.undetermined):
        return False
    return bool(_listed(record) or record.undetermined)


def most_severe(levels: Iterable[Level]) -> Level:
    """Return the most severe of some levels."""
    return max(levels, key=RANK.__getitem__, default="note")


def level(finding: Finding) -> Level:
    """Return the severity of a finding.

    A record counts as leaked if it is identical to the truth, certified exact, or known to within
    narrow intervals. In an audit, the verdicts decide and a finding is at most a warning.
    """
    scores, word = finding.scores, finding.certificate.name
    recovered = scores is None or scores.not_recovered < len(scores.matched)
    certified = word in ("EXACT", "INTERVAL") and recovered
    if is_identical(scores) or certified:
        return "error" if given(finding.cell, None) is None else "warning"
    if identifies(scores) or (word == "APPROXIMATE" and recovered):
        return "warning"
    return "note"


def _finding(record: RunRecord, finding: Finding) -> GradedItem:
    leak = finding.leak
    cell = given(finding.cell, None)
    point = f", {cell_of(finding)}" if cell else ""
    source = f"{finding.attack} from a {leak.kind}"
    mark = _mark(
        record,
        finding,
        leak.kind,
        leak.rounds.first,
        leak.rounds.last,
        # Fingerprints of earlier versions were computed from this text.
        repr(None if cell is None else {"epsilon": cell.epsilon, "seed": cell.seed}),
    )
    return GradedItem(
        id=mark,
        name=clean(f"{named(finding.nodes)}: {source} observed by {finding.adversary}{point}"),
        rule=clean(finding.attack),
        node=finding.node,
        adversary=clean(finding.adversary),
        level=level(finding),
        message=clean(f"{named(finding.nodes)}, {outcome(finding)}, by {source}{point}"),
        word=finding.certificate.name,
        detail=clean(finding.note),
        seconds=finding.seconds,
        harm=harm(finding),
        others=given(finding.others, ()),
    )


def _verdict(record: RunRecord, one: VerdictEntry) -> GradedItem:
    verdict = Verdict[one.verdict]
    guarantee = one.promise.name if one.promise else "no guarantee"
    # Fingerprints of earlier versions were computed from this text.
    marked = one.promise.name if one.promise else "no promise"
    test = test_words(one)
    place = f"node {one.node}, adversary {one.adversary}, {point_of(one.epsilon)}"
    return GradedItem(
        id=_mark(record, one, one.test, marked, repr(one.epsilon)),
        name=clean(f"{test} ({one.attack}): {guarantee}, {place}"),
        rule=clean(one.test),
        node=one.node,
        adversary=clean(one.adversary),
        level=VERDICTS[verdict.name],
        message=clean(f"{verdict.words}: {one.says} ({test}: {guarantee}, {place})"),
        word=verdict.words,
        detail=clean(one.power),
        open=verdict is Verdict.INCONCLUSIVE,
        harm=(math.inf,),
    )


def _gated(rule: RuleEntry, cell: CellEntry | None) -> GradedItem:
    """A rule as a check; the lint of a recording has no cell because it involves no adversary."""
    what = f"{rule.kind} {rule.measure}".strip()
    mark = repr((rule.cell, what)).encode("utf-8", "backslashreplace")
    found = rule.status in ("OVER", "REGRESSION", "CONTRADICTED")
    return GradedItem(
        id=hashlib.sha256(mark).hexdigest(),
        name=clean(f"{rule.cell}: {rule_name(rule)}"),
        rule=clean(cell.attack if cell else rule.measure or rule.kind),
        node=cell.worst.node if cell and cell.worst else 0,
        adversary=clean(cell.adversary) if cell else "",
        level=RULES.get(rule.status, "note"),
        message=clean(f"{outcome_word(rule)}: {rule.cell}: {rule.says}"),
        word=outcome_word(rule),
        open=rule.status in ("INCONCLUSIVE", "UNTESTED"),
        cell=clean(rule.cell),
        harm=(float(found),),
    )


def _mark(record: RunRecord, one: Finding | VerdictEntry, *more: object) -> str:
    trace = record.trace
    who = (one.adversary, one.attack, one.node)
    what = (trace.protocol, trace.model, trace.data, *who, *more)
    return hashlib.sha256(repr(what).encode("utf-8", "backslashreplace")).hexdigest()


def _unique(found: Sequence[GradedItem]) -> Iterator[GradedItem]:
    seen = Counter[str]()
    for check in found:
        seen[check.id] += 1
        count = seen[check.id]
        if count == 1:
            yield check
        else:
            yield replace(check, id=hashlib.sha256(f"{check.id} {count}".encode()).hexdigest())
