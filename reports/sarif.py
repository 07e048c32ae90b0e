"""SARIF 2.1.0, for code scanning: one rule an attack or test, one result a check."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import quote

from leakaudit.registry import renderer
from leakaudit.results.grading import Check, checks
from leakaudit.results.wording import LIMITS, clean
from leakaudit.trace import Json

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
LOCATION = "leakaudit.toml"  # of the user's repository, where the record names no file of it
_STATES = {"new": "new", "worse": "updated", "better": "updated", "same": "unchanged"}


@renderer("sarif")
def render(results: Mapping[str, Json]) -> str:
    """One run of one tool; rule ids and fingerprints depend on what was looked at, not on what came out.

    location: entry of the record that names a file of the user's repository. A comparison in ``against`` gives each result its state.
    """
    found = checks(results)
    rules = list(dict.fromkeys(c.rule for c in found))
    states = {
        row["id"]: _STATES[row["change"]]
        for row in (results.get("against") or {}).get("rows", ())
        if row["change"] in _STATES
    }
    file = quote(clean(results.get("location") or LOCATION).lstrip("/"), safe="/._-~")
    version = clean(results["provenance"]["versions"].get("leakaudit") or "0")
    run = {
        "tool": {
            "driver": {
                "name": "leakaudit",
                "version": version,
                "rules": [_rule(results, name) for name in rules],
            }
        },
        "invocations": [
            {
                "executionSuccessful": bool(results["complete"]),
                "commandLine": clean(results["provenance"]["command"]),
            }
        ],
        "results": [_result(c, rules.index(c.rule), file, states.get(c.id)) for c in found],
        "properties": {
            "summary": clean(results["summary"]),
            "limits": list(LIMITS),
            "configuration": results["provenance"]["digest"],
        },
    }
    return (
        json.dumps(
            {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, allow_nan=False
        )
        + "\n"
    )


def _rule(results: Mapping[str, Json], rule: str) -> dict[str, Json]:
    short, text, help_ = (
        f"Training inputs leak: {rule}",
        f"what {rule} gives away of training inputs",
        " ".join(LIMITS),
    )
    if known := (results.get("attacks") or {}).get(rule):
        text = f"attack {rule} ({clean(known['paper'])}) reads {clean(known['reads'])}"
    elif pitfall := (results.get("gate") or {}).get("pitfalls", {}).get(rule):
        short, text, help_ = (
            f"Not as declared: {rule}",
            f"pitfall {rule} of the lint: {clean(pitfall['name'])}",
            clean(pitfall["fix"]),
        )
    elif rule == "lint":
        short = text = "What a recording declares and claims, against what it shows"
    return {
        "id": _id(rule),
        "name": rule,
        "shortDescription": {"text": short},
        "fullDescription": {"text": text},
        "help": {"text": help_},
        "defaultConfiguration": {"level": "error"},
    }


def _result(check: Check, rule: int, file: str, state: str | None) -> dict[str, Json]:
    kind, name = ("cell", check.cell) if check.cell else ("node", f"node {check.node}")
    where = {"kind": kind, "name": name, "fullyQualifiedName": check.name}
    place = {"artifactLocation": {"uri": file}, "region": {"startLine": 1}}
    # A result of kind fail, the default, is an alert. What a gate found within its limits is none: its kind is pass, and its level none.
    failed = check.level != "note" or not check.cell
    outcome = "open" if check.open else "pass"
    out = {
        "ruleId": _id(check.rule),
        "ruleIndex": rule,
        "kind": "fail" if failed else outcome,
        "level": check.level if failed else "none",
        "message": {
            "text": f"{check.message}; heard by {check.adversary}."
            if check.adversary
            else f"{check.message}."
        },
        "locations": [{"physicalLocation": place, "logicalLocations": [where]}],
        "partialFingerprints": {"leakaudit/v1": check.id},
    }
    return out if state is None else {**out, "baselineState": state}


def _id(rule: str) -> str:
    return "leakaudit/" + "-".join(rule.replace("/", " ").split())
