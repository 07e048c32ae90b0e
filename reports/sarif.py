"""SARIF 2.1.0 for code scanning: one rule per attack or test, one result per check."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from leakaudit.core.registry import renderer
from leakaudit.core.trace import Json
from leakaudit.reporting.findings.grading import GradedItem, checks, is_settled
from leakaudit.reporting.findings.shown import DisplayRecord
from leakaudit.reporting.findings.wording import LIMITS, clean
from leakaudit.reporting.findings.worst_case import refuted
from leakaudit.reporting.rendering.markdown import escape
from leakaudit.reporting.results.model import (
    AuditRecord,
    CheckRecord,
    PitfallText,
    RunRecord,
    SentAt,
    TraceSummary,
    given,
)

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
TAGS = ("security", "privacy", "federated-learning", "external/cwe/cwe-359")
# Severity of what a rule finds, on the scale of CVSS from 0 to 10, which code scanning sorts by:
# inputs of the training are recovered, less than inputs, or the recording is not what it says.
INPUTS, PARTS, DECLARED = "8.0", "5.0", "7.0"
LABELS = ("labels", "tokens")  # attacks that recover labels or sets of tokens, and no inputs
DOCS = {  # where the documentation describes a rule; leakaudit has no address to link to
    "attack": "docs/attacks.md",
    "lint": "docs/lint.md",
    "gate": "docs/gate.md",
    "audit": "docs/audit.md",
}
LOCATION = "leakaudit.toml"  # in the user's repository, if the record names no file in it
_STATES = {"new": "new", "worse": "updated", "better": "updated", "same": "unchanged"}


@renderer("sarif")
def render(results: Mapping[str, Json]) -> str:
    """Return a log with one run of one tool."""
    shown = DisplayRecord.of(results)
    record = shown.record
    found = checks(record)
    rules = list(dict.fromkeys(check.rule for check in found))
    states = _states(shown)
    outcomes = []
    for check in found:
        places = _places(shown, check)
        outcomes.append(_result(check, rules.index(check.rule), places, states.get(check.id)))
    driver = {
        "name": "leakaudit",
        "version": clean(record.provenance.versions.get("leakaudit") or "0"),
        "rules": [_rule(record, name) for name in rules],
    }
    invocation = {
        "executionSuccessful": is_settled(record) and not refuted(record),
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


def _states(shown: DisplayRecord) -> dict[str, str]:
    """Baseline states by fingerprint; a check that was not repeated has no result in SARIF."""
    if shown.against is None:
        return {}
    states = {}
    for row in shown.against.rows:
        if row.change in _STATES:
            states[row.id] = _STATES[row.change]
    return states


def _rule(record: RunRecord, rule: str) -> dict[str, Json]:
    known = given(record.attacks, {}).get(rule)
    pitfall = _pitfalls(record).get(rule)
    short = f"Training inputs leak: {rule}"
    text = f"leakage of training inputs, tested by: {rule}"
    advice = " ".join(LIMITS)
    severity = INPUTS
    page = DOCS["attack"]
    if rule in LABELS:
        severity = PARTS
    if isinstance(record, AuditRecord) and not known:
        page = DOCS["audit"]
    elif isinstance(record, CheckRecord) and not known:
        page = DOCS["gate"]
    if known:
        text = f"attack {rule} ({clean(known.paper)}); uses {clean(known.reads)}"
    elif pitfall:
        short = f"Not as declared: {rule}"
        text = f"pitfall {rule} of the lint: {clean(pitfall.name)}"
        advice = clean(pitfall.fix)
        severity = DECLARED
        page = DOCS["lint"]
    elif rule == "lint":
        short = "What a recording declares and claims, compared with what it contains"
        text = short
        severity = DECLARED
        page = DOCS["lint"]
    return {
        "id": _id(rule),
        "name": rule,
        "shortDescription": {"text": short},
        "fullDescription": {"text": text},
        "help": {"text": advice, "markdown": f"{escape(advice)}\n\nSee `{page}`."},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": list(TAGS), "security-severity": severity},
    }


def _pitfalls(record: RunRecord) -> dict[str, PitfallText]:
    if isinstance(record, CheckRecord):
        return given(record.gate.pitfalls, {})
    return {}


def _location(file: str, line: int = 1) -> dict[str, Json]:
    """A line in the user's repository."""
    path = quote(clean(file).lstrip("/"), safe="/._-~")
    return {"physicalLocation": {"artifactLocation": {"uri": path}, "region": {"startLine": line}}}


def _places(shown: DisplayRecord, check: GradedItem) -> list[dict[str, Json]]:
    """Where the program sends what leaks, then the configuration.

    A file that the command line names takes the place of both.
    """
    record = shown.record
    own = record.location if isinstance(record, CheckRecord) else None
    if shown.location is not None and shown.location != own:
        return [_location(shown.location)]
    prefix = f"{shown.prefix}/" if shown.prefix else ""
    found = [_location(f"{prefix}{one.file}", one.line) for one in _sent(record, check)]
    return [*found, _location(f"{prefix}{shown.location or LOCATION}")]


def _sent(record: RunRecord, check: GradedItem) -> Sequence[SentAt]:
    if not isinstance(record, CheckRecord):
        return given(record.trace.sent, ())
    networks: Mapping[str, TraceSummary] = given(record.gate.networks, {})
    names = {f"{name}/{what}": name for name in networks for what in ("lint", "recording")}
    names |= {cell.name: cell.check for cell in record.gate.cells}
    network = networks.get(names.get(check.cell, ""))
    return () if network is None else given(network.sent, ())


def _result(
    check: GradedItem, rule: int, places: Sequence[Mapping[str, Json]], state: str | None
) -> dict[str, Json]:
    kind = "cell" if check.cell else "node"
    where: Json = {"kind": kind, "name": check.place, "fullyQualifiedName": check.name}
    message = f"{check.message}."
    if check.adversary:
        message = f"{check.message}; adversary: {check.adversary}."
    # A result of kind "fail", the default, is an alert. A check without a finding is not an alert:
    # its kind is "pass" (or "open" if it is inconclusive), and its level "none".
    outcome = "fail"
    level: str = check.level
    if check.level == "note":
        outcome = "open" if check.open else "pass"
        level = "none"
    result: dict[str, Json] = {
        "ruleId": _id(check.rule),
        "ruleIndex": rule,
        "kind": outcome,
        "level": level,
        "message": {"text": message},
        "locations": [{**places[0], "logicalLocations": [where]}],
        "partialFingerprints": {"leakaudit/v1": check.id},
    }
    related = []
    for number, place in enumerate(places[1:]):
        related.append({"id": number, **place})
    if related:
        result["relatedLocations"] = related
    if state is not None:
        result["baselineState"] = state
    return result


def _id(rule: str) -> str:
    """Identifier of a rule; slashes and spaces in its name become hyphens."""
    return "leakaudit/" + "-".join(rule.replace("/", " ").split())
