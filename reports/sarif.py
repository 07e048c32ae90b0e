"""SARIF 2.1.0, for code scanning: one rule for each attack or test, one result for each check."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import quote

from leakaudit.registry import renderer
from leakaudit.rendering.shown import Shown
from leakaudit.results.grading import Check, checks
from leakaudit.results.model import CheckRecord, PitfallText, RunRecord, given
from leakaudit.results.wording import LIMITS, clean
from leakaudit.trace import Json

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
LOCATION = "leakaudit.toml"  # of the user's repository, if the record names no file of it
_STATES = {"new": "new", "worse": "updated", "better": "updated", "same": "unchanged"}


@renderer("sarif")
def render(results: Mapping[str, Json]) -> str:
    """Write one run of one tool.

    Args:
        results: A record. Its ``location`` names a file of the user's repository; a comparison in
            ``against`` gives each result its state.

    Returns:
        JSON; rule ids and fingerprints depend on what was looked at, not on what came out.
    """
    shown = Shown.of(results)
    record = shown.record
    found = checks(record)
    rules = list(dict.fromkeys(check.rule for check in found))
    states = _states(shown)
    file = quote(clean(shown.location or LOCATION).lstrip("/"), safe="/._-~")
    outcomes = []
    for check in found:
        outcomes.append(_result(check, rules.index(check.rule), file, states.get(check.id)))
    driver = {
        "name": "leakaudit",
        "version": clean(record.provenance.versions.get("leakaudit") or "0"),
        "rules": [_rule(record, name) for name in rules],
    }
    invocation = {
        "executionSuccessful": record.complete,
        "commandLine": clean(record.provenance.command),
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "results": outcomes,
        "properties": {
            "summary": clean(record.summary),
            "limits": list(LIMITS),
            "configuration": record.provenance.digest,
        },
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, allow_nan=False) + "\n"


def _states(shown: Shown) -> dict[str, str]:
    """Fingerprints and their states; SARIF has no result for a check that is gone."""
    if shown.against is None:
        return {}
    states = {}
    for row in shown.against.rows:
        if row.change in _STATES:
            states[row.id] = _STATES[row.change]
    return states


def _rule(record: RunRecord, rule: str) -> dict[str, Json]:
    """Describe an attack, a pitfall of the lint or a test."""
    short = f"Training inputs leak: {rule}"
    text = f"what {rule} gives away of training inputs"
    advice = " ".join(LIMITS)
    known = given(record.attacks, {}).get(rule)
    pitfall = _pitfalls(record).get(rule)
    if known:
        text = f"attack {rule} ({clean(known.paper)}) reads {clean(known.reads)}"
    elif pitfall:
        short = f"Not as declared: {rule}"
        text = f"pitfall {rule} of the lint: {clean(pitfall.name)}"
        advice = clean(pitfall.fix)
    elif rule == "lint":
        short = "What a recording declares and claims, against what it shows"
        text = short
    return {
        "id": _id(rule),
        "name": rule,
        "shortDescription": {"text": short},
        "fullDescription": {"text": text},
        "help": {"text": advice},
        "defaultConfiguration": {"level": "error"},
    }


def _pitfalls(record: RunRecord) -> dict[str, PitfallText]:
    """Texts of the pitfalls by rule, which only a gate's record has."""
    if isinstance(record, CheckRecord):
        return given(record.gate.pitfalls, {})
    return {}


def _result(check: Check, rule: int, file: str, state: str | None) -> dict[str, Json]:
    """Write one check as a result.

    Args:
        check: What was looked at, and what came out.
        rule: Place of its rule in the list of rules.
        file: File of the user's repository that the result points to.
        state: Against the earlier results, None if there are none.

    Returns:
        A SARIF result.
    """
    kind = "node"
    name = f"node {check.node}"
    if check.cell:
        kind = "cell"
        name = check.cell
    where: Json = {"kind": kind, "name": name, "fullyQualifiedName": check.name}
    place: Json = {"artifactLocation": {"uri": file}, "region": {"startLine": 1}}
    message = f"{check.message}."
    if check.adversary:
        message = f"{check.message}; heard by {check.adversary}."
    # A result of kind fail, the default, is an alert. What a gate found within its limits is not
    # one: its kind is pass (or open, if it is inconclusive), and its level none.
    outcome = "fail"
    level: str = check.level
    if check.cell and check.level == "note":
        outcome = "open" if check.open else "pass"
        level = "none"
    result: dict[str, Json] = {
        "ruleId": _id(check.rule),
        "ruleIndex": rule,
        "kind": outcome,
        "level": level,
        "message": {"text": message},
        "locations": [{"physicalLocation": place, "logicalLocations": [where]}],
        "partialFingerprints": {"leakaudit/v1": check.id},
    }
    if state is not None:
        result["baselineState"] = state
    return result


def _id(rule: str) -> str:
    """Identifier of a rule; a slash or a space within its name becomes a hyphen."""
    return "leakaudit/" + "-".join(rule.replace("/", " ").split())
