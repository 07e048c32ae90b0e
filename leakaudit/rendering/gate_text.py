"""The record of a gate for readers: lines for a terminal, and Markdown for the summary of a job."""

from __future__ import annotations

from collections.abc import Iterator

from leakaudit.rendering import markdown as md
from leakaudit.results.model import CheckRecord, GatePart, RuleEntry, RuleKind, RuleStatus
from leakaudit.results.wording import clean, gate_headline

MARKS = {
    RuleStatus.OK: "ok",
    RuleStatus.OVER: "LEAK",
    RuleStatus.REGRESSION: "REGRESSION",
    RuleStatus.CONTRADICTED: "NOT AS DECLARED",
    RuleStatus.ACCEPTED: "accepted",
    RuleStatus.WARNING: "warning",
    RuleStatus.INCONCLUSIVE: "INCONCLUSIVE",
    RuleStatus.TOO_FEW_SEEDS: "TOO FEW SEEDS",
    RuleStatus.NOT_COMPARABLE: "NOT COMPARABLE",
    RuleStatus.VOID: "CONTROL FAILED",
    RuleStatus.UNTESTED: "nothing to score",
}
CONTROLS = {
    RuleKind.POSITIVE: "control: planted records",
    RuleKind.NEGATIVE: "control: records of other nodes",
    RuleKind.RECORDING: "control: recording",
    RuleKind.ATTACKED: "control: attack",
}
# Outcomes that the message of a failed test omits.
_FINE = (RuleStatus.OK, RuleStatus.ACCEPTED, RuleStatus.UNTESTED)


def text(record: CheckRecord) -> str:
    """Return the summary, then one line per rule, the most severe first.

    Args:
        record: The record of a gate.

    Returns:
        The text; its lines are not wrapped.
    """
    rules = record.gate.rules
    width = max((len(_mark(rule)) for rule in rules), default=0)
    lines = [record.summary, ""]
    for rule in rules:
        lines.append(f"{_mark(rule):{width}}  {clean(rule.cell)}: {clean(_said(rule))}")
    lines += _notes(record)
    return "\n".join(lines) + "\n"


def markdown(record: CheckRecord) -> str:
    """Return the summary and the rules as a Markdown page.

    Args:
        record: The record of a gate.

    Returns:
        A page; names from the trace are escaped.
    """
    rows = [(_mark(rule), rule.cell, _said(rule)) for rule in record.gate.rules]
    parts = [
        f"# Leakage gate: {record.gate.verdict}",
        f"**{md.escape(record.summary)}**",
        md.table(("outcome", "cell", "details"), rows),
        md.items(_notes(record)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def failure(gate: GatePart, complete: bool, seeds: int) -> str:
    """Return the message of a failed test: the summary, then the rules that are violated.

    Args:
        gate: The measurements and how they were judged.
        complete: Whether the run was completed.
        seeds: Number of seeds.

    Returns:
        Several lines.
    """
    lines = [gate_headline(gate, complete, seeds).text]
    for rule in gate.rules:
        if rule.status not in _FINE:
            lines.append(f"  {_mark(rule)} {clean(rule.cell)}: {clean(rule.says)}")
    return "\n".join(lines)


def _mark(rule: RuleEntry) -> str:
    """The outcome in capitals; a budget that cannot be judged is not a control that failed."""
    if rule.kind is RuleKind.BUDGET and rule.status is RuleStatus.VOID:
        return "CANNOT BE JUDGED"
    return MARKS[rule.status]


def _said(rule: RuleEntry) -> str:
    name = CONTROLS.get(rule.kind, rule.kind.value)
    if rule.measure and rule.kind in (RuleKind.LINT, RuleKind.RECORDING):
        name = f"{name} {rule.measure}"
    return f"{name}: {rule.says}"


def _notes(record: CheckRecord) -> Iterator[str]:
    """Yield what is not a rule: unused acceptances, stale cells, nodes that were not attacked."""
    for acceptance, state in record.gate.acceptances.items():
        if state == "expired":
            yield f"acceptance {clean(acceptance)} has expired"
        elif state == "unused":
            yield f"acceptance {clean(acceptance)} is not used by any rule"
    for name in record.gate.stale:
        yield f"the baseline contains {clean(name)}, which is no longer measured"
    for cell in record.gate.cells:
        if cell.reasons:
            node, reason = next(iter(cell.reasons.items()))
            count = len(cell.reasons)
            yield clean(f"{cell.name}: {count} nodes not attacked, e.g. node {node}: {reason}")
    if not record.complete:
        yield "the run was interrupted: not every seed was tried"
