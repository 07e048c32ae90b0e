"""A gate on the page: its rules by kind, and what each node gave away in the form of findings, which drawings understand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from leakaudit.results import grading
from leakaudit.trace import Json

CONTROLS = ("recording", "attacked", "positive", "negative")
FEW = 8  # rules of a kind that are all shown; of more, those within their limits are folded
KINDS = {"Budgets and baseline": ("budget", "baseline"), "Lint": ("lint",), "Controls": CONTROLS}
MEANT = {
    "Budgets and baseline": "",
    "Lint": "Each check's first recording, against what it declares and claims itself.",
    "Controls": "The recording, which must be of the declared protocol and of its own truth; planted leaks, which each attack must solve; "
    "and scores against the records of others, which may match by chance only.",
}


def tables(results: Mapping[str, Json]) -> dict[str, Any] | None:
    """Return a gate's rules by kind, and what was accepted; None for another record."""
    gate = results.get("gate")
    if gate is None:
        return None
    rules = [
        {
            **r,
            "word": r["status"].replace("_", " ").lower(),
            "level": grading.RULES.get(r["status"], "note"),
        }
        for r in gate["rules"]
    ]
    groups = []
    for name, kinds in KINDS.items():
        some = [r for r in rules if r["kind"] in kinds]
        counted = any(r[k] is not None for r in some for k in ("value", "limit", "p"))
        fine = [r for r in some if r["level"] == "note"] if len(some) > FEW else []
        parts = {"rules": [r for r in some if r not in fine], "fine": fine}
        groups.append(
            {"name": name, "meant": MEANT[name], **parts, "counted": counted, "count": len(some)}
        )
    return {
        **gate,
        "groups": [g for g in groups if g["count"]],
        "acceptances": list(gate["acceptances"].items()),
    }


def checks(results: Mapping[str, Json]) -> Iterator[tuple[str, dict[str, Json]]]:
    """Yield each check with a record of it alone: its network, what was found of each node, and the nodes of which nothing was."""
    gate = results.get("gate") or {}
    for name, network in gate.get("networks", {}).items():
        cells = [c for c in gate["cells"] if c["check"] == name]
        found = [_finding(c, one) for c in cells for one in c.get("nodes", ())]
        closed = [
            {"node": int(n), "adversary": c["adversary"], "reason": r}
            for c in cells
            for n, r in c["reasons"].items()
        ]
        yield name, {**results, "trace": network, "findings": found, "undetermined": closed}


def worst(results: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the record of the check that the gravest rule is of; another kind of record as it is."""
    every = dict(checks(results))
    first = next(
        (r["cell"].split("/")[0] for r in (results.get("gate") or {"rules": ()})["rules"]), ""
    )
    return every.get(first) or next(iter(every.values()), results)


def _finding(cell: Mapping[str, Json], one: Mapping[str, Json]) -> dict[str, Json]:
    scores = {
        m: {"per_image": [one[m]]}
        for m in ("psnr", "relative_error", "exact")
        if one[m] is not None
    }
    span = {"rounds": {"first": one["first"], "last": one["last"]}}
    who = {"node": one["node"], "adversary": cell["adversary"], "attack": cell["attack"]}
    return {**who, "leak": span, "scores": scores, "certificate": {"name": "FAILED"}}
