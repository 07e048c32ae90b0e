"""What the page says, from the record alone: each section as plain values for the template."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from leakaudit.rendering.html import audited, curves, gated, heat, topology
from leakaudit.rendering.html.shades import step
from leakaudit.rendering.html.threat import threat
from leakaudit.results import grading
from leakaudit.results.comparison import MEANS
from leakaudit.results.wording import LIMITS, by_reason, harm, provenance, said_of, scopes, table
from leakaudit.trace import Json
from leakaudit.verdict import Verdict

COUNTED = re.compile(r"\. (\d+ rules on \d+ cells.*|A pass means .*)$")  # in the sentence of a gate
GATES = {
    0: ("note", "Within the limits"),
    1: ("error", "Over the limits"),
    3: ("warning", "The gate cannot tell"),
}  # by exit code
WHOLE = 60  # rows of a table that is shown in one piece
BLOCK = 100  # rows of a block of a longer one
DRAWN = 4  # adversaries whose network is drawn
_WORDS: dict[grading.Level, str] = {"error": "grave", "warning": "to look at", "note": "fine"}


def content(results: Mapping[str, Json]) -> dict[str, Any]:
    """Return everything that ``page.html.j2`` names."""
    checks = grading.checks(results)
    counted = grading.counts(checks)
    headings, rows = table(results)
    drawn = gated.worst(results)
    return {
        "title": f"leakaudit: {results['trace']['protocol']}",
        "summary": _sentence(results["summary"]),
        "state": _state(counted, results),
        "counts": f"{len(checks)} check{'s' * (len(checks) != 1)}: "
        + ", ".join(f"{counted[name]} {words}" for name, words in _WORDS.items() if counted[name]),
        "complete": results["complete"],
        "against": _against(results.get("against")),
        "threat": threat(results),
        "networks": list(_networks(results))[:DRAWN],
        "headings": headings,
        "blocks": list(_blocks(results, rows)),
        "gate": gated.tables(results),
        "verdicts": audited.verdicts(results),
        "panels": curves.panels(results),
        "refusals": curves.refusals(results),
        "views": audited.views(results),
        "gallery": results.get("gallery") or [],
        "methods": _methods(results),
        "by_round": heat.by_round(drawn),
        "by_point": heat.by_point(results),
        "by_adversary": heat.by_adversary(drawn),
        "adversaries": heat.adversaries(drawn),
        "shades": heat.legend(),
        "not_determined": by_reason(results["undetermined"], "reason"),
        "not_tried": results["not_tried"] or ["not recorded"],
        "notes": [*scopes(results["findings"]), *by_reason(results["findings"], "note")][:40],
        "certificates": {
            f["certificate"]["name"].lower(): f["certificate"]["sentence"]
            for f in results["findings"]
        },
        "missing": list(_missing(results)),
        "provenance": provenance(results),
        "limits": LIMITS,
        "verdict_words": {v.words: v.value for v in Verdict},
        "change_words": MEANS,
    }


def _sentence(summary: str) -> tuple[str, str]:
    """The worst case, and the rest: what follows a semicolon, or how much was counted."""
    if counted := COUNTED.search(summary):
        return f"{summary[: counted.start()]}.", counted[1]
    worst, _, rest = summary.partition("; ")
    return (f"{worst.rstrip('.')}.", f"{rest[:1].upper()}{rest[1:]}")


def _state(counted: Mapping[grading.Level, int], results: Mapping[str, Json]) -> tuple[str, str]:
    """Class and words of the badge."""
    if gate := results.get("gate"):
        return GATES.get(gate["code"], GATES[3])
    if counted["error"]:
        return "error", "A claim is refuted" if results.get("audit") else "Records are given away"
    if counted["warning"]:
        return "warning", "Not settled, or inputs that fit" if results.get(
            "audit"
        ) else "Inputs that fit the leak were found"
    return "note", "Nothing recovered by what was tried"


def _networks(results: Mapping[str, Json]) -> Iterator[tuple[str, Markup]]:
    """Yield pictures of networks with what they show, an adversary each; a gate has them by check."""
    if not results.get("gate"):
        yield from _heard(results, "")
        return
    every = list(gated.checks(results))
    for name, one in every:
        yield from _heard(one, f" in check {name}" if len(every) > 1 else "")


def _heard(results: Mapping[str, Json], where: str) -> Iterator[tuple[str, Markup]]:
    steps: dict[str, dict[int, int]] = {}
    for one in (*results["findings"], *results["undetermined"]):
        mine = steps.setdefault(one["adversary"], {})
        if "attack" in one:
            mine[one["node"]] = max(mine.get(one["node"], 0), step(one))
    for who, mine in list(steps.items())[:DRAWN]:
        if drawn := topology.network(results["trace"], who, mine):
            yield f"As {who} hears it{where}.", drawn


def _blocks(results: Mapping[str, Json], rows: Sequence[Sequence[str]]) -> Iterator[dict[str, Any]]:
    """Split the table of findings: by adversary and point of the grid, and then into blocks; one block where it is short."""
    findings = results["findings"]
    groups: dict[str, list[int]] = {}
    for k, f in enumerate(findings):
        where = f"heard by {f['adversary']}" + (
            f", {said_of({'epsilon': f['cell']['epsilon']})}" if "cell" in f else ""
        )
        groups.setdefault(where, []).append(k)
    alone = len(findings) <= WHOLE
    if not alone:
        worst = sorted(
            range(len(findings)), key=lambda k: (step(findings[k]), harm(findings[k])), reverse=True
        )[:10]
        yield {
            "id": "worst",
            "name": f"the ten worst of {len(findings)}",
            "said": "",
            "open": True,
            "rows": _marked(findings, rows, worst),
        }
    for where, places in groups.items():
        for start in range(0, len(places), BLOCK):
            part = places[start : start + BLOCK]
            nodes = (findings[part[0]]["node"], findings[part[-1]]["node"])
            name = (
                where
                if len(places) <= BLOCK
                else f"{where}: findings {start + 1} to {start + len(part)}, nodes {nodes[0]} to {nodes[1]}"
            )
            tally = Counter(findings[k]["certificate"]["name"].lower() for k in part)
            said = ", ".join(f"{count} {word}" for word, count in tally.most_common())
            yield {
                "id": f"block-{part[0]}",
                "name": name,
                "said": said,
                "open": alone,
                "rows": _marked(findings, rows, part),
            }


def _marked(
    findings: Sequence[Mapping[str, Json]], rows: Sequence[Sequence[str]], places: Sequence[int]
) -> list[tuple[str, Sequence[str]]]:
    return [(grading.level(findings[k]), rows[k]) for k in places]


def _methods(results: Mapping[str, Json]) -> list[dict[str, Any]]:
    """Return every attack that ran, with its source, what it reads, and what it took here."""
    known, out = results.get("attacks") or {}, []
    for name in dict.fromkeys(f["attack"] for f in results["findings"]):
        took = [f["seconds"] for f in results["findings"] if f["attack"] == name]
        out.append(
            {"name": name, **known.get(name, {}), "count": len(took), "seconds": f"{sum(took):.1f}"}
        )
    return out


def _against(against: Mapping[str, Json] | None) -> dict[str, Any] | None:
    """Return a comparison, changes apart from what stayed the same."""
    if against is None:
        return None
    rows = against["rows"]
    changed = [row for row in rows if row["change"] != "same"]
    return {
        **against,
        "changed": changed[: 10 * BLOCK],
        "left_out": max(0, len(changed) - 10 * BLOCK),
        "same": len(rows) - len(changed),
    }


def _missing(results: Mapping[str, Json]) -> Iterator[str]:
    """Say what is not in this report, and which command adds it."""
    if not (results.get("audit") or results.get("gate")):
        yield "No claim is judged here: `leakaudit audit scenario.toml` adds verdicts and curves, `leakaudit bound` the exact views."
    if not results.get("gate"):
        yield "No controls ran with it: `leakaudit check` runs them each time, `leakaudit selfcheck` tests the estimators."
    if results["findings"] and not results.get("gallery"):
        yield "There are no pictures: they are left out by --redact, and by every command but `leakaudit report results.json -f html`."
    if all(f["scores"] is None for f in results["findings"]) and results["findings"]:
        yield "Nothing is scored: `leakaudit score results.json --truth trace.truth.pt` adds PSNR, SSIM and the rest."
    if results.get("against") is None and not results.get("gate"):
        yield "It stands alone: `leakaudit report results.json --against earlier/results.json` compares it with an earlier one."
