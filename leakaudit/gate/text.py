"""A run of a gate for readers: lines for a terminal, and Markdown for a job's summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from leakaudit.gate.judge import Judged
from leakaudit.gate.record import ordered, summary
from leakaudit.gate.rule import Kind, Status
from leakaudit.rendering import markdown as md
from leakaudit.results.wording import clean
from leakaudit.trace import Json

MARKS = {
    "OK": "ok",
    "OVER": "LEAK",
    "REGRESSION": "REGRESSION",
    "CONTRADICTED": "NOT AS DECLARED",
    "ACCEPTED": "accepted",
    "WARNING": "warning",
    "INCONCLUSIVE": "INCONCLUSIVE",
    "NOT_COMPARABLE": "NOT COMPARABLE",
    "VOID": "CANNOT TELL",
    "UNTESTED": "nothing to score",
}
NAMES: dict[str, str] = {
    Kind.POSITIVE: "control: planted records",
    Kind.NEGATIVE: "control: records of others",
    Kind.RECORDING: "control: the recording",
    Kind.ATTACKED: "control: what was attacked",
}


def text(results: Mapping[str, Json]) -> str:
    """Return the summary, then one line for each rule, the worst first.

    Args:
        results: a record of kind ``check``.
    """
    rules = results["gate"]["rules"]
    width = max((len(MARKS[rule["status"]]) for rule in rules), default=0)
    lines = [results["summary"], ""]
    for rule in rules:
        mark = MARKS[rule["status"]]
        lines.append(f"{mark:{width}}  {clean(rule['cell'])}: {clean(_said(rule))}")
    lines += _notes(results)
    return "\n".join(lines) + "\n"


def markdown(results: Mapping[str, Json]) -> str:
    """Return the same as a Markdown page.

    Args:
        results: a record of kind ``check``.
    """
    gate = results["gate"]
    rows = [(MARKS[rule["status"]], rule["cell"], _said(rule)) for rule in gate["rules"]]
    parts = [
        f"# Leakage gate: {gate['verdict']}",
        f"**{md.escape(results['summary'])}**",
        md.table(("outcome", "cell", "what"), rows),
        md.items(list(_notes(results))),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _said(rule: Mapping[str, Json]) -> str:
    name = NAMES.get(rule["kind"], rule["kind"])
    if rule["measure"] and rule["kind"] in (Kind.LINT, Kind.RECORDING):
        name = f"{name} {rule['measure']}"
    return f"{name}: {rule['says']}"


def _notes(results: Mapping[str, Json]) -> Iterator[str]:
    """Yield what is not a rule: idle acceptances, stale cells, nodes that were not attacked."""
    gate = results["gate"]
    for acceptance, state in gate["acceptances"].items():
        if state != "used":
            why = "has expired" if state == "expired" else "covers nothing"
            yield f"acceptance {clean(acceptance)} {why}"
    for name in gate["stale"]:
        yield f"the baseline's {clean(name)} is no longer measured"
    for cell in gate["cells"]:
        if cell["reasons"]:
            node, reason = next(iter(cell["reasons"].items()))
            count = len(cell["reasons"])
            yield clean(f"{cell['name']}: {count} nodes not attacked, node {node}: {reason}")
    if not results["complete"]:
        yield "the run was cut short: not every seed was tried"


def failure(judged: Judged) -> str:
    """Return what a failed test shows: the summary, then the rules that do not hold.

    Args:
        judged: a run of a gate.
    """
    lines = [summary(judged)]
    for rule in ordered(judged.rules):
        if rule.status not in (Status.OK, Status.ACCEPTED, Status.UNTESTED):
            mark = MARKS[rule.status.name]
            lines.append(f"  {mark} {clean(rule.cell)}: {clean(rule.says)}")
    return "\n".join(lines)
