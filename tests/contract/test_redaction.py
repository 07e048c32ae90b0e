"""Records with what is personal taken out, and records beside earlier ones."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="call-overload, index, union-attr"

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from records import FORMATS, RECORDS, Record, finding, gate_of_two_checks, record, rendered
from viewed import bare, put

from leakaudit import api
from leakaudit.core.errors import LeakauditError
from leakaudit.core.quantities import MEASURES
from leakaudit.judging.auditing.plan import AuditPlan
from leakaudit.judging.gate.config import Acceptance, Budget, Check
from leakaudit.protocols.scenario import Scenario
from leakaudit.reporting.findings import comparison, grading, redaction
from leakaudit.reporting.results import record_file
from leakaudit.reporting.results.provenance import digest


def redacted(of: Record, key: str | None = None) -> Record:
    out = redaction.redact(of, key)
    record_file.validate(out)
    return out


@pytest.mark.parametrize("name", ["attack", "not scored", "nothing", "failed", "audit", "gate"])
def test_redaction_leaves_no_picture_label_path_or_note(name: str) -> None:
    of = RECORDS[name]
    out = redacted({**of, "gallery": [{"images": ["data:image/png;base64,AAAA"]}]})
    text = json.dumps(out)
    for secret in (
        "/home/",
        "someone",
        "data:image",
        "a note on",
        "reconstructions",
        "originals.npz",
        "g[0,0]",
    ):
        assert secret not in text
    assert all(f["labels"] is None and f["images"] is None for f in out["findings"])
    assert not re.search(r"(src=|data:image)", rendered("html", out).split("</style>")[1])


def test_redaction_renumbers_nodes_everywhere_alike() -> None:
    of = record(*(finding(k, 20.0 + k) for k in range(8) if k != 3), undetermined=())
    out = redacted(of)
    new = {f["scores"]["psnr"]["min"] - 20.0: f["node"] for f in out["findings"]}
    assert sorted({*new.values()} | {int(out["findings"][0]["adversary"].split(":")[1])}) == list(
        range(8)
    )
    assert [f["node"] for f in out["findings"]] == sorted(f["node"] for f in out["findings"])
    new[3] = int(out["provenance"]["settings"]["adversary"].split(":")[1])
    assert {tuple(edge) for edge in out["trace"]["links"]} == {
        (min(a, b), max(a, b)) for a, b in ((new[k], new[k + 1]) for k in range(7))
    }
    assert out["provenance"]["settings"]["nodes"] == [new[0], new[1]]
    assert f"of node {new[7]} with" in out["summary"]


def test_redaction_renames_the_nodes_of_a_gate() -> None:
    out = next(
        o
        for o in (redacted(RECORDS["gate"], key) for key in "abcdefgh")
        if o["gate"]["cells"][0]["worst"]["node"] != 5
    )
    new = out["gate"]["cells"][0]["worst"]["node"]
    assert f"of node {new}" in out["gate"]["rules"][0]["says"]
    assert f"of node {new} with relative error 0.1 (30.0 dB PSNR)" in out["summary"]
    assert f"of node {new}" in out["gate"]["cells"][0]["says"]
    assert out["gate"]["cells"][0]["reasons"] == {}
    assert out["gate"]["rules"][0]["cell"] == out["gate"]["cells"][0]["name"]
    assert out["gate"]["rules"][-1]["says"] == "insufficient noise"
    assert out["location"] == "leakaudit.toml"
    cell = out["gate"]["cells"][0]
    assert out["summary"].startswith(f"Leak: {cell['says']}; over the budget in {cell['name']}: ")


def test_redaction_renames_the_nodes_that_a_gates_rules_and_omissions_name() -> None:
    of = RECORDS["gate"]
    rules = [{**rule, "nodes": [3, 5]} for rule in of["gate"]["rules"]]
    omitted = [
        {"check": "", "attack": "dlg"},
        {"check": "", "attack": "of a plug-in"},
        {"check": "", "adversaries": ["eavesdropper", "node:3"]},
        {"check": "main", "nodes": [5, 6]},
        {"check": "main", "gradients": 4},
    ]
    of = {**of, "gate": {**of["gate"], "rules": rules, "not_tried": omitted}}
    out = next(
        o
        for o in (redacted(of, key) for key in "abcdefgh")
        if o["gate"]["cells"][0]["worst"]["node"] not in (5, 6)
    )
    of_five = out["gate"]["cells"][0]["worst"]["node"]
    of_three = int(out["gate"]["cells"][0]["adversary"].split(":")[1])
    assert {tuple(rule["nodes"]) for rule in out["gate"]["rules"]} == {
        tuple(sorted((of_three, of_five)))
    }
    attack, foreign, adversaries, nodes, _ = out["gate"]["not_tried"]
    assert (attack, foreign["attack"]) == ({"check": "", "attack": "dlg"}, "redacted")
    assert adversaries["adversaries"] == ["eavesdropper", f"nodes:{of_three}"]
    assert of_five in nodes["nodes"]
    assert out["not_tried"] == [
        "attack dlg",
        "attack redacted",
        f"adversaries other than eavesdropper, nodes:{of_three}",
        f"check main: nodes other than {nodes['nodes'][0]}, {nodes['nodes'][1]}",
        "check main: more than 4 gradients",
    ]


def test_redaction_renumbers_the_network_of_every_check() -> None:
    networks = redacted(gate_of_two_checks(), "secret")["gate"]["networks"]
    assert {name: len(n["links"]) for name, n in networks.items()} == {"main": 7, "wide": 11}
    assert {n for e in networks["wide"]["links"] for n in e} == set(range(12))


def test_redaction_is_stable_under_a_key_and_differs_without() -> None:
    one, other = (
        record(*(finding(k) for k in range(8))),
        record(*(finding(k, 30.0 + k) for k in range(8))),
    )
    links = [redacted(of, "secret")["trace"]["links"] for of in (one, other)]
    assert links[0] == links[1]
    ids = [{c.id for c in grading.checks(redacted(of, "secret"))} for of in (one, other)]
    assert ids[0] == ids[1]
    assert redacted(one)["trace"]["links"] != redacted(other)["trace"]["links"]


def test_what_identifies_a_recording_a_file_or_a_machine_is_removed() -> None:
    of = record(finding(0))
    number, sha256 = "0123456789abcdef" * 2, "3" * 64
    of["provenance"] |= {
        "trace": {"id": "ward 7", "sha256": sha256, "recording": number},
        "truth": {"sha256": sha256, "path": "ward7/trace.truth.pt", "recording": number},
        "device": "cuda:0",
        "platform": "Linux-6.8.0-45-ward7-x86_64-with-glibc2.39",
        "versions": {"python": "3.11.7", "torch": "2.13.0+cu128", "lpips": None},
    }
    origin = redacted(of)["provenance"]
    assert origin["trace"] == {"id": "redacted", "sha256": None, "recording": "redacted"}
    assert origin["truth"] == {"sha256": None, "recording": "redacted"}
    assert (origin["device"], origin["platform"]) == ("cuda:0", "Linux")
    assert origin["versions"] == {"python": "3.11.7", "torch": "2.13.0", "lpips": None}
    for format in (*FORMATS, "markdown", "text"):
        page = rendered(format, redacted(of))
        assert number not in page
        assert sha256 not in page
        assert "not scored" not in page


def test_no_digest_confirms_a_guess_of_what_was_hidden() -> None:
    """Whoever knows a way of writing settings could otherwise try all numbers of nodes."""
    of = RECORDS["gate"]
    of = {**of, "provenance": {**of["provenance"], "digest": DIGEST}}
    of["gate"] = {**of["gate"], "cells": [{**c, "digest": DIGEST} for c in of["gate"]["cells"]]}
    out = redacted(of, "key")
    assert out["provenance"]["digest"] == digest(out["provenance"]["settings"])
    assert DIGEST not in json.dumps(out)
    assert redacted(of, "key") == out


def test_a_redacted_report_points_only_at_the_file_that_is_named_for_it(tmp_path: Path) -> None:
    for name in ("attack", "gate"):
        of = bare(RECORDS[name])
        if name == "gate":
            of["location"] = "wards/ward7/leakaudit.toml"
        put(tmp_path / name, of)
        page = api.report(tmp_path / name, "sarif", redact=True)
        assert "ward7" not in str(page)
        assert '"uri": "leakaudit.toml"' in str(page)
        page = api.report(
            tmp_path / name, "sarif", redact=True, options=api.ReportOptions("public/train.py")
        )
        assert '"uri": "public/train.py"' in str(page)


def test_leakaudits_own_keys_of_settings_stay() -> None:
    own = {
        one.name
        for kind in (AuditPlan, Scenario, Check, Budget, Acceptance)
        for one in fields(kind)
    }
    own |= {*MEASURES, "steps", "sigma", "hidden", "inverting"}
    of = record(finding(0))
    of["provenance"]["settings"] = {**dict.fromkeys(own, 0.5), "ward7": 1.5, "ward8": 2.5}
    kept = redacted(of)["provenance"]["settings"]
    assert own <= kept.keys()
    assert {name: kept[name] for name in kept.keys() - own} == {
        "redacted 1": 1.5,
        "redacted 2": 2.5,
    }


# --- comparison -------------------------------------------------------------------------------------------------------


def test_a_comparison_finds_what_is_worse_better_new_gone_and_the_same() -> None:
    before = record(
        finding(0, 20.0),
        finding(1, 20.0),
        finding(2, 20.0),
        finding(4, 20.0),
        finding(5, 200.0, True, "EXACT"),
    )
    now = record(
        finding(0, 29.0), finding(1, 11.0), finding(2, 20.3), finding(3, 20.0), finding(5, 20.0)
    )
    shown = comparison.compare(now, before)["against"]
    assert {row["node"]: row["change"] for row in shown["rows"]} == {
        0: "worse",
        1: "better",
        2: "same",
        3: "new",
        4: "gone",
        5: "better",
    }
    assert [row["change"] for row in shown["rows"]] == [
        "worse",
        "new",
        "better",
        "better",
        "gone",
        "same",
    ]
    assert shown["summary"].startswith(
        "Compared with the earlier results: 1 worse (more leakage than before)"
    )
    assert shown["differs"] == []


@pytest.mark.parametrize("format", [*FORMATS, "markdown", "text"])
def test_a_comparison_is_in_every_report(format: str) -> None:
    of = comparison.compare(record(finding(0, 29.0)), record(finding(0, 20.0), name="other"))
    page = rendered(format, of)
    if format == "sarif":
        assert [r["baselineState"] for r in json.loads(page)["runs"][0]["results"]] == ["new"]
    elif format != "junit":
        assert "not examined" in " ".join(page.split())


def test_a_comparison_says_what_was_not_the_same_on_both_sides() -> None:
    now, before = record(finding(0)), record(finding(0))
    before["provenance"] = {
        **before["provenance"],
        "digest": "2" * 64,
        "versions": {"torch": "2.12"},
    }
    assert comparison.compare(now, before)["against"]["differs"] == [
        "the configuration",
        "the version of leakaudit",
        "the version of torch",
    ]


def test_a_redacted_comparison_keeps_its_states_and_no_old_fingerprint() -> None:
    now, before = record(finding(0, 29.0), finding(1)), record(finding(0, 20.0), finding(1))
    plain = comparison.compare(now, before)
    out = next(
        o
        for o in (redaction.redact_compared(now, before, key) for key in "abcdefgh")
        if not {0, 1} & {f["node"] for f in o["findings"]}
    )
    assert not {row["id"] for row in plain["against"]["rows"]} & {
        row["id"] for row in out["against"]["rows"]
    }
    states = [r["baselineState"] for r in json.loads(rendered("sarif", out))["runs"][0]["results"]]
    assert sorted(states) == ["unchanged", "updated"]


# --- nothing that was planted stays ------------------------------------------------------------------------------------

GOLDEN = Path(__file__).parents[1] / "golden" / "records"
FIRST = 70_001  # planted nodes bear numbers that nothing else in a record has
PLANTED = f"PLANTED of node {FIRST} on edge {FIRST}-{FIRST + 1} in /home/PLANTED/x.pt"
DIGEST = "5ec7e7" * 10 + "5ec7"  # in place of every SHA-256
# What stays as it is: words of the schema, times, and what a report is about (docs/reports.md),
# that is, names that leakaudit or the configuration gives to checks, tests, measures and claims.
KEPT = {
    *("schema", "kind", "started", "status", "verdict", "epsilon"),
    *("name", "check", "test", "measure", "measures", "pitfalls"),
    *("files", "exact", "mu", "value", "limit", "p", "acceptances", "level", "why_not"),
}
NODES = {"node", "nodes", "links"}


def planted(value: Any, key: str = "", inside: str = "") -> Any:
    """The same record with a planted text in every text, and a planted number for every node."""
    if key == "certificate" or (key == "name" and inside in ("networks", "promise")):
        return {**value, "sentence": PLANTED} if isinstance(value, dict) else value
    if key == "reasons":
        return {str(FIRST): PLANTED}
    if key in ("sha256", "digest"):
        return DIGEST
    if key == "recording":
        return None if value is None else PLANTED
    if key == "versions":
        return {**dict.fromkeys(value, PLANTED), "torch": "2.10.0+PLANTED", PLANTED: "1.0"}
    if key == "seeds" and isinstance(value, dict):
        return {**value, PLANTED: 0}
    if isinstance(value, dict):
        if key in KEPT:
            return value
        return {name: planted(one, name, key) for name, one in value.items()}
    if isinstance(value, list):
        return [planted(one, key, inside) for one in value]
    if isinstance(value, int) and not isinstance(value, bool) and key in NODES:
        return 90_000 if inside in ("trace", "networks") and key == "nodes" else FIRST + value
    if not isinstance(value, str) or key in KEPT:
        return value
    if key in ("adversary", "adversaries"):
        return f"edges:{FIRST}-{FIRST + 1}+nodes:{FIRST + 1}"
    if key in ("picture", "originals", "figure", "file"):
        return "PLANTED.npz"
    return PLANTED


@pytest.mark.parametrize(
    "name", [f"{k}_v{v}" for k in ("attack", "audit", "check") for v in (1, 2)]
)
def test_of_what_is_planted_in_every_field_nothing_stays(name: str) -> None:
    of = json.loads((GOLDEN / f"{name}.json").read_text())
    of["trace"] = {**of["trace"], "links": [[0, 1], [1, 2]]}
    for check, network in of.get("gate", {}).get("networks", {}).items():
        of["gate"]["networks"][check] = {**network, "links": [[0, 1]]}
    secret = planted(of)
    for network in (secret["trace"], *secret.get("gate", {}).get("networks", {}).values()):
        network["nodes"] = 90_000
    secret["not_tried"] += [f"check main: nodes other than {FIRST}, {FIRST + 1}"]
    settings = {"adversary": f"node:{FIRST}", "nodes": [FIRST], PLANTED: 1, f"{PLANTED} 2": 2}
    secret["provenance"]["settings"] |= {**settings, "set": {PLANTED: {PLANTED: 3, "steps": 4}}}
    secret["provenance"]["rescored"] = [
        {
            "metrics": ["psnr", PLANTED],
            "truth": DIGEST,
            "command": PLANTED,
            "started": "2030-01-31T12:00:00+00:00",
        }
    ]
    secret["location"] = "PLANTED/leakaudit.toml"
    if "gate" in secret:
        secret["gate"]["rules"][0]["accepted"] = PLANTED
        secret["gate"]["stale"] = [f"main/node:{FIRST}/exact"]
        secret["gate"]["acceptances"] = {PLANTED: "used"}
        secret["gate"]["not_tried"] = [
            {"check": "", "attack": PLANTED},
            {"check": "", "adversaries": [f"node:{FIRST}", PLANTED]},
            {"check": "ring", "nodes": [FIRST, FIRST + 1]},
        ]
        for rule in secret["gate"]["rules"]:
            rule["says"] = PLANTED
            rule["nodes"] = [FIRST, FIRST + 2]
    if "files" in secret:
        secret["files"] = {"PLANTED.npz": DIGEST}
    assert str(FIRST) in json.dumps(secret)
    out = redacted(secret, "key")
    text = json.dumps(out)
    assert "PLANTED" not in text
    assert DIGEST not in text
    assert out["provenance"]["versions"]["torch"] == "2.10.0"
    assert out["provenance"]["settings"]["set"] == {"redacted 1": {"redacted 1": 3, "steps": 4}}
    assert not re.findall(rf"{FIRST}|{FIRST + 1}|{FIRST + 2}", text)
    for format in (*FORMATS, "markdown", "text"):
        page = rendered(format, out)
        assert "PLANTED" not in page
        assert str(FIRST) not in page


def test_an_empty_key_is_no_secret() -> None:
    """It is what a variable that is not set gives; anyone could undo the new numbers."""
    with pytest.raises(LeakauditError, match="expected a secret"):
        redaction.redact(next(iter(RECORDS.values())), "")
