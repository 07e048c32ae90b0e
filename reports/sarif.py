"""SARIF 2.1.0 for code scanning: one rule per attack or test, one result per check."""

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
LOCATION = "leakaudit.toml"  # in the user's repository, if the record names no file in it
_STATES = {"new": "new", "worse": "updated", "better": "updated", "same": "unchanged"}


@renderer("sarif")
def render(results: Mapping[str, Json]) -> str:
    """Return a log with one run of one tool.

    Args:
        results: A record. Its ``location`` names a file in the user's repository; a comparison in
            ``against`` provides the baseline state of each result.

    Returns:
        JSON; rule ids and fingerprints depend on what was examined, not on the outcome.
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
    """Baseline states by fingerprint; a check that was not repeated has no result in SARIF."""
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
    text = f"leakage of training inputs, tested by: {rule}"
    advice = " ".join(LIMITS)
    known = given(record.attacks, {}).get(rule)
    pitfall = _pitfalls(record).get(rule)
    if known:
        text = f"attack {rule} ({clean(known.paper)}); uses {clean(known.reads)}"
    elif pitfall:
        short = f"Not as declared: {rule}"
        text = f"pitfall {rule} of the lint: {clean(pitfall.name)}"
        advice = clean(pitfall.fix)
    elif rule == "lint":
        short = "What a recording declares and claims, compared with what it contains"
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
    """Texts of the pitfalls by rule; only the record of a gate has them."""
    if isinstance(record, CheckRecord):
        return given(record.gate.pitfalls, {})
    return {}


def _result(check: Check, rule: int, file: str, state: str | None) -> dict[str, Json]:
    """Return one check as a result.

    Args:
        check: What was examined, and the outcome.
        rule: Index of its rule in the list of rules.
        file: File in the user's repository that the result points to.
        state: Baseline state relative to the earlier results, None if there are none.

    Returns:
        A SARIF result.
    """
    kind = "cell" if check.cell else "node"
    where: Json = {"kind": kind, "name": check.place, "fullyQualifiedName": check.name}
    place: Json = {"artifactLocation": {"uri": file}, "region": {"startLine": 1}}
    message = f"{check.message}."
    if check.adversary:
        message = f"{check.message}; adversary: {check.adversary}."
    # A result of kind "fail", the default, is an alert. A check of a gate that is within its limits
    # is not an alert: its kind is "pass" (or "open" if it is inconclusive), and its level "none".
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
    """Identifier of a rule; slashes and spaces in its name become hyphens."""
    return "leakaudit/" + "-".join(rule.replace("/", " ").split())
