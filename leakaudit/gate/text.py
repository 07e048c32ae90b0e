"""A run of a gate for readers: a terminal's lines, and Markdown for a job's summary, both from the record alone."""

from __future__ import annotations

from collections.abc import Mapping

from leakaudit.gate.judge import Judged
from leakaudit.gate.record import ordered, summary
from leakaudit.gate.rules import Status
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
NAMES = {
    "positive": "control: planted records",
    "negative": "control: records of others",
    "recording": "control: the recording",
    "attacked": "control: what was attacked",
}


def text(results: Mapping[str, Json]) -> str:
    """Return the sentence of the whole, then a line a rule, the worst first."""
    rules = results["gate"]["rules"]
    width = max((len(MARKS[r["status"]]) for r in rules), default=0)
    lines = [f"{MARKS[r['status']]:{width}}  {clean(r['cell'])}: {clean(_said(r))}" for r in rules]
    return "\n".join([results["summary"], "", *lines, *_notes(results)]) + "\n"


def markdown(results: Mapping[str, Json]) -> str:
    """Return the same as a Markdown page."""
    rows = [(MARKS[r["status"]], r["cell"], _said(r)) for r in results["gate"]["rules"]]
    head = f"# Leakage gate: {results['gate']['verdict']}\n\n**{md.escape(results['summary'])}**"
    return (
        "\n\n".join(
            filter(
                None, [head, md.table(("outcome", "cell", "what"), rows), md.items(_notes(results))]
            )
        )
        + "\n"
    )


def _said(rule: Mapping[str, Json]) -> str:
    name = NAMES.get(rule["kind"], rule["kind"])
    if rule["measure"] and rule["kind"] in ("lint", "recording"):
        name = f"{name} {rule['measure']}"
    return f"{name}: {rule['says']}"


def _notes(results: Mapping[str, Json]) -> list[str]:
    """Say what is not a rule: acceptances that are not used, cells that are no longer measured, nodes of which nothing is determined."""
    gate = results["gate"]
    out = [
        f"acceptance {clean(a)} {'has expired' if s == 'expired' else 'covers nothing'}"
        for a, s in gate["acceptances"].items()
        if s != "used"
    ]
    out += [f"the baseline's {clean(name)} is no longer measured" for name in gate["stale"]]
    for cell in gate["cells"]:
        if cell["reasons"]:
            node, reason = next(iter(cell["reasons"].items()))
            out.append(
                clean(
                    f"{cell['name']}: {len(cell['reasons'])} nodes not attacked, node {node}: {reason}"
                )
            )
    return out if results["complete"] else [*out, "the run was cut short: not every seed was tried"]


def failure(judged: Judged) -> str:
    """Return what a failed test shows: the sentence, then the rules that are not within their limits."""
    rules = [
        r
        for r in ordered(judged.rules)
        if r.status not in (Status.OK, Status.ACCEPTED, Status.UNTESTED)
    ]
    return "\n".join(
        [
            summary(judged),
            *(f"  {MARKS[r.status.name]} {clean(r.cell)}: {clean(r.says)}" for r in rules),
        ]
    )
