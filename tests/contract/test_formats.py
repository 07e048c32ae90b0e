"""HTML, JUnit, SARIF and annotations of the same records: complete, valid, and inert whatever the names are."""

from __future__ import annotations

import copy
import html.parser
import json
import re
import time
import unicodedata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Tree

import attr
import jsonschema
import pytest
import sarif_om
import xmlschema

from leakaudit import comparison, grading, redaction, registry, results
from leakaudit.wording import summary

Record = dict[str, Any]
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)> ]]> &amp; {{7*7}} %0A::error::x \x1b[31m\x00\u202e\nnext http://e.org"
FORMATS = ("html", "junit", "sarif", "github")


def column(*values: float | bool | None) -> Record:
    known = sorted(float(v) for v in values if v is not None)
    some = {"min": known[0], "median": known[len(known) // 2], "mean": sum(known) / len(known)} if known else {}
    return {"per_image": list(values), **{"min": None, "median": None, "mean": None, **some}}


def finding(node: int, psnr: float | None = 40.0, exact: bool = False, certificate: str = "APPROXIMATE", **changes: Any) -> Record:
    lost = psnr is None
    scores = {"psnr": column(psnr), "ssim": column(None if lost else 0.9), "exact": column(exact), "identified": column(not lost)}
    rest = {"chance": 0.01, "labels_found": 1.0, "not_recovered": int(lost), "matched": [None if lost else 0]}
    span = {"first": 0, "last": 2, "count": 3}
    leak = {"kind": "difference", "rounds": span, "rows": 2, "formula": f"g[{node},0] = z[{node}>3,1]", "scope": "", "std": 1e-8}
    words = {"certificate": {"name": certificate, "sentence": "fits the leak"}, "seconds": 0.5, "note": f"a note on {node}"}
    base = {"node": node, "adversary": "node:3", "attack": "analytic", "leak": leak, "batch": 1, "labels": [node + 70], "residual": 1e-9}
    return {**base, **words, "scores": {**scores, **rest}, "images": {"file": "reconstructions.npz", "x": "x0", "y": None}, **changes}


def record(*found: Record, undetermined: tuple[Record, ...] = (), name: str = "pdmm", nodes: int = 8) -> Record:
    links = [[k, k + 1] for k in range(nodes - 1)]
    sizes = {"nodes": nodes, "edges": len(links), "links": links, "rounds": 5, "shape": [1, 25, 25], "classes": 2}
    source = {
        "versions": {"python": "3.11", "torch": "2.13.0", "leakaudit": "0.1.0", "lpips": None},
        "shimmed": False,
        "seeds": {"attack": 0},
        "device": "cpu",
        "threads": 1,
        "trace": {"id": name, "sha256": "0" * 64},
        "truth": {"sha256": None, "path": "/home/someone/trace.truth.pt"},
        "settings": {"adversary": "node:3", "window": None, "knows": "all", "nodes": [0, 1], "truth": "/home/someone/trace.truth.pt"},
        "digest": "1" * 64,
        "command": f"leakaudit attack /home/someone/{name}.pt",
        "started": "2030-01-31T12:00:00+00:00",
        "seconds": 1.5,
        "platform": "Linux",
    }
    out = {
        "schema": results.SCHEMA,
        "version": results.VERSION,
        "kind": "attack",
        "complete": True,
        "summary": summary(found, undetermined, ["dlg"]),
        "trace": {"protocol": name, "data": name, "model": name, **sizes},
        "findings": list(found),
        "undetermined": list(undetermined),
        "not_tried": ["dlg"],
        "metrics": {"psnr": "dB"},
        "attacks": {"analytic": {"paper": "Phong et al. 2018", "reads": "gradients", "cost": "one pass", "exact": True}},
        "picture": "reconstructions.png",
        "originals": "originals.npz",
        "provenance": source,
    }
    results.validate(out)
    return out


def verdict(word: str, epsilon: float | str, hits: int) -> Record:
    promise = {"name": "the exact view", "epsilon": epsilon, "delta": 1e-5, "mu": None}
    figures = {"hits": hits, "trials": 20, "kappa": 0.2, "ceiling": 0.6}
    said = {"says": "measured", "power": "would detect 5", "p": 0.5, "level": 0.01, "needs": 40, "figures": figures}
    return {
        "epsilon": epsilon,
        "adversary": "node:3",
        "node": 1,
        "test": "identification",
        "attack": "auto",
        "promise": promise,
        "verdict": word,
        **said,
    }


def audit(count: int = 6) -> Record:
    cells: list[Record] = [{"cell": {"epsilon": e, "seed": 0}} for e in ("inf", 10.0)]
    found = [finding(k % 8, 10.0 + k % 50, **cells[k % 2]) for k in range(count)]
    view = {
        "node": 1,
        "adversary": "node:3",
        "mu": 1.5,
        "epsilon": 6.0,
        "exact": "inf",
        "verdict": "UNCLAIMED",
        "why": "no claim",
        "claim": None,
    }
    three = {"images": 3.0, "best": 30.0, "median": 20.0, "mean": 21.0}
    curves = [{"epsilon": e, "adversary": "node:3", "attack": "auto", "psnr": three} for e in ("inf", 10.0)]
    verdicts = [verdict("REFUTED", 10.0, 20), verdict("INCONCLUSIVE", "inf", 3)]
    grid: list[Record] = [{"epsilon": e, "constants": {}, "views": [view]} for e in ("inf", 10.0)]
    tested = {"alpha": 0.01, "delta": 1e-5, "grid": grid, "curves": curves, "verdicts": verdicts, "figure": None}
    out = {**record(*found), "kind": "audit", "summary": "REFUTED: identification; 1 REFUTED.", "audit": tested}
    results.validate(out)
    return out


def gate() -> Record:
    name = "main/node:3/exact"
    cell = {"name": name, "check": "main", "adversary": "node:3", "attack": "exact", "says": "node:3 reconstructs the input of node 5"}
    samples = {"measures": {"psnr": {"samples": [30.0], "mean": 30.0, "worst": 30.0}}, "reasons": {"6": "node 6 sent nothing"}}
    best = {
        "node": 5,
        "seed": 0,
        "psnr": 30.0,
        "relative_error": 0.1,
        "exact": False,
        "labels": 1.0,
        "kind": "gradient",
        "formula": "g[5,0]",
    }
    found = {"nodes": [{**best, "first": 0, "last": 2}, {**best, "node": 1, "psnr": None, "relative_error": None, "first": 1, "last": 1}]}
    rest = {"digest": "3" * 64, "seeds": [0], "epsilon": None, "worst": {"node": 5, "psnr": 30.0}, "seconds": 1.0, **found}

    def rule(kind: str, status: str, says: str) -> Record:
        return {
            "kind": kind,
            "cell": name,
            "measure": "psnr",
            "status": status,
            "says": says,
            "value": 30.0,
            "limit": 25.0,
            "p": None,
            "accepted": "",
        }

    rules = [rule("budget", "OVER", "30 dB of node 5"), rule("baseline", "INCONCLUSIVE", "too few"), rule("positive", "OK", "recovered")]
    noise = {"cell": "main/lint", "measure": "P20", **dict.fromkeys(("value", "limit"))}
    rules += [rule("negative", "UNTESTED", "nothing to score"), {**rule("lint", "CONTRADICTED", "too little: 6 -> 7 has none"), **noise}]
    tested = {"code": 1, "verdict": "leak", "strict": False, "cells": [{**cell, **samples, **rest}], "rules": rules}
    tested |= {"networks": {"main": record()["trace"]}, "pitfalls": {"P20": {"name": "too little noise", "fix": "draw it"}}}
    shown = {"kind": "check", "summary": "Leak: node 5. 3 rules.", "location": "/ci/leakaudit.toml"}
    out = {**record(), **shown, "gate": {**tested, "acceptances": {"labels": "expired"}, "stale": []}}
    results.validate(out)
    return out


CLOSED = {"node": 7, "adversary": "node:3", "reason": "node 7 needs two rounds, heard one"}
EXACT = finding(1, 200.0, True, "EXACT")
RECORDS = {
    "attack": record(finding(0), EXACT, undetermined=(CLOSED,)),
    "not scored": record(finding(0, scores=None, certificate="EXACT"), finding(2, scores=None, certificate="FAILED")),
    "nothing": record(undetermined=(CLOSED,)),
    "failed": record(finding(0, None, certificate="FAILED", residual=None, labels=None, batch=None)),
    "audit": audit(),
    "gate": gate(),
    "hostile": record(
        finding(0, attack=HOSTILE, adversary=HOSTILE, note=HOSTILE),
        undetermined=({**CLOSED, "reason": HOSTILE, "adversary": HOSTILE},),
        name=HOSTILE,
    ),
}


def rendered(format: str, of: Record) -> str:
    page: str = registry.get("reports", format)(of)
    return page


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", RECORDS)
def test_a_rendering_is_pure_and_printable(format: str, name: str) -> None:
    before = copy.deepcopy(RECORDS[name])
    page = rendered(format, RECORDS[name])
    assert page == rendered(format, RECORDS[name])
    assert RECORDS[name] == before
    assert page.endswith("\n")
    assert not [c for c in page if unicodedata.category(c)[0] == "C" and c != "\n"]


# --- levels -----------------------------------------------------------------------------------------------------------


def test_levels_follow_what_was_given_away() -> None:
    assert grading.level(EXACT) == "error"
    assert grading.level(finding(0, scores=None, certificate="EXACT")) == "error"
    assert grading.level(finding(0)) == "warning"
    assert grading.level(finding(0, None, certificate="FAILED")) == "note"
    assert grading.level({**EXACT, "cell": {"epsilon": "inf", "seed": 0}}) == "warning"
    assert [c.level for c in grading.checks(RECORDS["audit"])][:2] == ["error", "warning"]


def test_a_fingerprint_is_of_the_question_and_not_of_the_answer() -> None:
    first, again, other = (grading.checks(record(f))[0].id for f in (finding(0), finding(0, 11.0, residual=0.3, seconds=9.0), finding(1)))
    assert first == again != other
    twins = [c.id for c in grading.checks(record(finding(0), finding(0)))]
    assert len(set(twins)) == 2


# --- JUnit ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def junit(project: Path) -> xmlschema.XMLSchema11:
    return xmlschema.XMLSchema11(project / "tests" / "schemas" / "junit.xsd")


@pytest.mark.parametrize("name", RECORDS)
def test_junit_is_valid_against_its_schema(junit: xmlschema.XMLSchema11, name: str) -> None:
    """Elements, attributes, their order and their sums: tests/schemas/junit.xsd."""
    junit.validate(rendered("junit", RECORDS[name]))
    junit.validate(rendered("junit", redaction.redact(RECORDS[name])))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('tests="3"', 'tests="4"'),
        ('failures="1"', 'failures="0"'),
        ('skipped="1"', 'skipped="0"'),
        (' errors="0"', ""),
        ('time="0.500"', 'time="-0.500"'),
        ('timestamp="2030-01-31', 'timestamp="2030-02-31'),
        ("<properties>", "<rest /><properties>"),
        ("<skipped message", "<ignored message"),
        ('<skipped message="node 7', '<failure /><skipped message="node 7'),
        (' classname="leakaudit.pdmm.analytic"', ""),
        ("<system-out>", "<system-out at='1'>"),
        ('name="leakaudit as node:3"', 'name=""'),
    ],
)
def test_the_schema_of_junit_refuses_what_is_wrong(junit: xmlschema.XMLSchema11, old: str, new: str) -> None:
    page = rendered("junit", RECORDS["attack"])
    junit.validate(page)
    assert old in page
    assert not junit.is_valid(page.replace(old, new, 1))


def test_junit_fails_where_a_record_is_given_away_and_skips_what_is_open() -> None:
    root = Tree.fromstring(rendered("junit", RECORDS["attack"]))
    cases = {c.attrib["name"]: [child.tag for child in c] for c in root.iter("testcase")}
    assert cases == {
        "node 1: analytic from a difference heard by node:3": ["failure", "system-out"],
        "node 0: analytic from a difference heard by node:3": ["system-out"],
        "node 7: nothing determined": ["skipped"],
    }
    found = Tree.fromstring(rendered("junit", RECORDS["audit"]))
    assert [f.attrib["type"] for f in found.iter("failure")] == ["REFUTED"]
    assert len(list(found.iter("skipped"))) == 1


# --- SARIF ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sarif(project: Path) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((project / "tests" / "schemas" / "sarif.json").read_text()))


@pytest.mark.parametrize("name", RECORDS)
def test_sarif_is_valid_against_its_schema(sarif: jsonschema.Draft202012Validator, name: str) -> None:
    """Names, types and patterns by tests/schemas/sarif.json; what a schema cannot say of indices and fingerprints here."""
    log = json.loads(rendered("sarif", RECORDS[name]))
    sarif.validate(log)
    sarif.validate(json.loads(rendered("sarif", redaction.redact(RECORDS[name]))))
    sarif.validate(json.loads(rendered("sarif", comparison.compare(RECORDS[name], RECORDS["attack"]))))
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(set(rules)) == len(rules)
    assert all(rules[r["ruleIndex"]] == r["ruleId"] for r in run["results"])
    assert len({r["partialFingerprints"]["leakaudit/v1"] for r in run["results"]}) == len(run["results"])
    assert len(run["results"]) == len(grading.checks(RECORDS[name]))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), "2.0.0"),
        (("runs", 0, "results", 0, "level"), "fatal"),
        (("runs", 0, "results", 0, "message"), "text"),
        (("runs", 0, "results", 0, "ruleIndex"), -1),
        (("runs", 0, "results", 0, "node"), 3),
        (("runs", 0, "results", 0, "locations", 0, "physicalLocation", "artifactLocation", "uri"), "/etc/passwd"),
        (("runs", 0, "results", 0, "locations", 0, "physicalLocation", "region", "startLine"), 0),
        (("runs", 0, "results", 0, "baselineState"), "worse"),
        (("runs", 0, "results", 0, "partialFingerprints", "leakaudit/v1"), "abc"),
        (("runs", 0, "tool", "driver", "rules", 0, "help"), {}),
        (("runs", 0, "invocations", 0, "executionSuccessful"), "yes"),
    ],
)
def test_the_schema_of_sarif_refuses_what_is_wrong(sarif: jsonschema.Draft202012Validator, path: tuple[Any, ...], value: Any) -> None:
    log = json.loads(rendered("sarif", RECORDS["attack"]))
    sarif.validate(log)
    at = log
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    assert not sarif.is_valid(log)


OBJECTS = {
    **{"runs": sarif_om.Run, "tool": sarif_om.Tool, "driver": sarif_om.ToolComponent, "rules": sarif_om.ReportingDescriptor},
    **dict.fromkeys(("shortDescription", "fullDescription", "help"), sarif_om.MultiformatMessageString),
    **{"defaultConfiguration": sarif_om.ReportingConfiguration, "invocations": sarif_om.Invocation, "results": sarif_om.Result},
    **{"message": sarif_om.Message, "locations": sarif_om.Location, "physicalLocation": sarif_om.PhysicalLocation},
    **{"artifactLocation": sarif_om.ArtifactLocation, "region": sarif_om.Region, "logicalLocations": sarif_om.LogicalLocation},
}


def strange(value: Any, kind: Any) -> list[str]:
    """Names in an object that the standard's object model does not have, and those that it needs and are not there."""
    fields = {f.metadata["schema_property_name"]: f for f in attr.fields(kind)}
    found = [name for name in value if name not in fields]
    found += [f"no {name}" for name, f in fields.items() if f.default is attr.NOTHING and name not in value]
    for name, inside in value.items():
        some = inside if isinstance(inside, list) else [inside]
        found += [s for one in some if isinstance(one, dict) and name in OBJECTS for s in strange(one, OBJECTS[name])]
    return found


@pytest.mark.parametrize("name", RECORDS)
def test_sarif_has_the_names_of_the_published_object_model(name: str) -> None:
    """Against sarif-om, which is generated from the schema of version 2.1.0 by its authors."""
    log = json.loads(rendered("sarif", RECORDS[name]))
    assert strange(log, sarif_om.SarifLog) == []
    del log["runs"][0]["tool"]["driver"]["name"]
    log["runs"][0]["results"] = [{"severity": "high"}]
    assert strange(log, sarif_om.SarifLog) == ["no name", "severity", "no message"]


def test_sarif_points_at_a_file_of_the_repository() -> None:
    def places(of: Record) -> set[str]:
        log = json.loads(rendered("sarif", of))
        return {x["physicalLocation"]["artifactLocation"]["uri"] for r in log["runs"][0]["results"] for x in r["locations"]}

    assert places(RECORDS["attack"]) == {"leakaudit.toml"}
    assert places({**RECORDS["attack"], "location": "/ci/a file.toml"}) == {"ci/a%20file.toml"}


# --- annotations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDS)
def test_annotations_are_one_command_a_line(name: str) -> None:
    for line in rendered("github", RECORDS[name]).splitlines():
        found = re.fullmatch(r"::(error|warning|notice) title=([^:,]*)::(.*)", line)
        assert found is not None, line
        assert not re.search(r"%(?!25|3A|2C)", found[2] + found[3])


def test_annotations_stop_before_github_does_and_say_so() -> None:
    lines = rendered(
        "github", record(*(finding(k, 200.0, True) for k in range(8)), *(finding(k) for k in range(8)), *([EXACT] * 5))
    ).splitlines()
    assert sum(line.startswith("::error") for line in lines) == 9
    assert "5 more of this kind" in lines[9]
    assert sum(line.startswith("::warning") for line in lines) == 8


# --- HTML -------------------------------------------------------------------------------------------------------------


class Reader(html.parser.HTMLParser):
    """Tags with their attributes, text, and ids."""

    VOID = ("meta", "img", "br", "link", "input")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", RECORDS)
def test_a_page_is_well_formed_and_asks_for_nothing(name: str) -> None:
    page = Reader(rendered("html", RECORDS[name]))
    assert page.open == []
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "iframe", "object", "embed", "form", "base", "foreignobject"}
    for tag, attributes in page.tags:
        assert not [a for a in attributes if a.startswith("on")], tag
        for a in ("src", "href", "action", "xlink:href"):
            assert (attributes.get(a) or "#").startswith(("#", "data:image/png;base64,")), (tag, attributes)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    links = {str(attributes["href"])[1:] for tag, attributes in page.tags if tag == "a"}
    assert links <= set(ids)
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@pytest.mark.parametrize("name", RECORDS)
def test_a_page_begins_with_the_verdict_and_ends_with_limits_and_sources(name: str) -> None:
    of = RECORDS[name]
    text = " ".join(Reader(rendered("html", of)).text.split())
    places = [text.index(" ".join(part.split())) for part in (of["summary"][:12], "Scope and threat model", "Limits and responsible use")]
    assert places == sorted(places)
    for part in ("proves nothing", "it is no proof of privacy", "Provenance", "Glossary", of["provenance"]["digest"]):
        assert part in text
    assert not re.search(r"\b(is|are) (private|safe)\b", text)


def test_hostile_names_are_text() -> None:
    page = rendered("html", RECORDS["hostile"])
    assert "<script" not in page
    assert "onerror=alert(2)&gt;" in page
    assert "{{7*7}}" in Reader(page).text
    assert "49" not in Reader(page).text


def test_what_is_missing_is_said_with_the_command_that_adds_it() -> None:
    text = Reader(rendered("html", RECORDS["not scored"])).text
    for command in ("leakaudit audit", "leakaudit check", "leakaudit score", "--against", "leakaudit report"):
        assert command in text
    judged = Reader(rendered("html", RECORDS["audit"])).text
    assert "REFUTED" in judged
    assert "Against epsilon" in judged
    assert "No claim is judged" not in judged


def test_a_page_with_2000_findings_is_quick_small_and_in_blocks() -> None:
    of = audit(2000)
    rendered("html", RECORDS["attack"])  # imports
    start = time.perf_counter()
    page = rendered("html", of)
    assert time.perf_counter() - start < 3
    assert len(page) < 1_000_000
    read = Reader(page)
    blocks = [a for tag, a in read.tags if tag == "details" and "id" in a]
    assert [a["id"] for a in blocks if "open" in a] == ["worst"]
    assert len(blocks) == 1 + 20
    assert {f"#{a['id']}" for a in blocks} <= {str(a.get("href")) for tag, a in read.tags if tag == "a"}
    assert sum(tag == "tr" for tag, _ in read.tags) > 2000


def test_a_gate_shows_limits_controls_and_acceptances() -> None:
    text = " ".join(Reader(rendered("html", RECORDS["gate"])).text.split())
    for part in ("Over the limits", "Budgets and baseline", "Lint", "Controls", "Acceptances", "main/node:3/exact", "30 dB of node 5"):
        assert part in text
    root = Tree.fromstring(rendered("junit", RECORDS["gate"]))
    assert [(f.tag, f.attrib.get("type")) for c in root.iter("testcase") for f in c if f.tag != "system-out"] == [
        ("failure", "OVER"),
        ("skipped", None),
        ("skipped", None),
        ("failure", "CONTRADICTED"),
    ]


def test_a_gate_draws_its_network_with_the_adversary_marked() -> None:
    page = Reader(rendered("html", RECORDS["gate"]))
    marked = [(tag, a["class"]) for tag, a in page.tags if tag in ("rect", "circle") and str(a["class"]).startswith("node ")]
    assert sorted(marked) == sorted([("rect", "node own"), ("circle", "node s4"), ("circle", "node s0")] + [("circle", "node unknown")] * 5)
    assert "As node:3 hears it." in page.text
    assert any(a.get("aria-label") == "Network of 8 nodes and 7 wires. node:3 hears 2 of the wires." for _, a in page.tags)
    assert any(a.get("aria-label") == "What the leaks of each node gave away, by the rounds that they span." for _, a in page.tags)


def test_a_gate_of_several_checks_draws_each_ones_network() -> None:
    of = copy.deepcopy(RECORDS["gate"])
    other = copy.deepcopy(of["gate"]["cells"][0]) | {"name": "wide/node:0/exact", "check": "wide", "adversary": "node:0", "reasons": {}}
    of["gate"]["cells"].append(other)
    of["gate"]["networks"]["wide"] = record(nodes=12)["trace"]
    results.validate(of)
    text = Reader(rendered("html", of)).text
    assert "As node:3 hears it in check main." in text
    assert "As node:0 hears it in check wide." in text
    out = redacted(of, "secret")
    assert sorted(map(len, (n["links"] for n in out["gate"]["networks"].values()))) == [7, 11]
    assert {n for e in out["gate"]["networks"]["wide"]["links"] for n in e} == set(range(12))


def test_the_text_of_many_findings_shows_the_worst_and_says_how_many_are_left() -> None:
    page = rendered("text", record(*(finding(k % 8, float(k)) for k in range(1, 300))))
    assert "the 200 worst findings are shown, 99 more are in the HTML report" in page
    assert page.count("analytic") == 201  # the sentence names one
    assert "299.0" in page
    assert " 99.0" not in page


# --- redaction --------------------------------------------------------------------------------------------------------


def redacted(of: Record, key: str | None = None) -> Record:
    out = redaction.redact(of, key)
    results.validate(out)
    return out


@pytest.mark.parametrize("name", ["attack", "not scored", "nothing", "failed", "audit", "gate"])
def test_redaction_leaves_no_picture_label_path_or_note(name: str) -> None:
    of = RECORDS[name]
    out = redacted({**of, "gallery": [{"images": ["data:image/png;base64,AAAA"]}]})
    text = json.dumps(out)
    for secret in ("/home/", "someone", "data:image", "a note on", "reconstructions", "originals.npz", "g[0,0]"):
        assert secret not in text
    assert all(f["labels"] is None and f["images"] is None for f in out["findings"])
    assert not re.search(r"(src=|data:image)", rendered("html", out).split("</style>")[1])


def test_redaction_renumbers_nodes_everywhere_alike() -> None:
    of = record(*(finding(k, 20.0 + k) for k in range(8) if k != 3), undetermined=())
    out = redacted(of)
    new = {f["scores"]["psnr"]["min"] - 20.0: f["node"] for f in out["findings"]}
    assert sorted({*new.values()} | {int(out["findings"][0]["adversary"].split(":")[1])}) == list(range(8))
    assert [f["node"] for f in out["findings"]] == sorted(f["node"] for f in out["findings"])
    new[3] = int(out["provenance"]["settings"]["adversary"].split(":")[1])
    assert {tuple(edge) for edge in out["trace"]["links"]} == {(min(a, b), max(a, b)) for a, b in ((new[k], new[k + 1]) for k in range(7))}
    assert out["provenance"]["settings"]["nodes"] == [new[0], new[1]]
    assert f"node {new[7]}," in out["summary"]


def test_redaction_renames_the_nodes_of_a_gate() -> None:
    out = next(o for o in (redacted(RECORDS["gate"], key) for key in "abcdefgh") if o["gate"]["cells"][0]["worst"]["node"] != 5)
    new = out["gate"]["cells"][0]["worst"]["node"]
    assert f"of node {new}" in out["gate"]["rules"][0]["says"]
    assert f"of node {new}" in out["gate"]["cells"][0]["says"]
    assert out["gate"]["cells"][0]["reasons"] == {}
    assert out["gate"]["rules"][0]["cell"] == out["gate"]["cells"][0]["name"]
    assert out["gate"]["rules"][-1]["says"] == "too little"
    assert out["location"] == "leakaudit.toml"
    assert f"Leak: node {new}." in out["summary"]


def test_redaction_is_stable_under_a_key_and_differs_without() -> None:
    one, other = record(*(finding(k) for k in range(8))), record(*(finding(k, 30.0 + k) for k in range(8)))
    links = [redacted(of, "secret")["trace"]["links"] for of in (one, other)]
    assert links[0] == links[1]
    ids = [{c.id for c in grading.checks(redacted(of, "secret"))} for of in (one, other)]
    assert ids[0] == ids[1]
    assert redacted(one)["trace"]["links"] != redacted(other)["trace"]["links"]


# --- comparison -------------------------------------------------------------------------------------------------------


def test_a_comparison_finds_what_is_worse_better_new_gone_and_the_same() -> None:
    before = record(finding(0, 20.0), finding(1, 20.0), finding(2, 20.0), finding(4, 20.0), finding(5, 200.0, True, "EXACT"))
    now = record(finding(0, 29.0), finding(1, 11.0), finding(2, 20.3), finding(3, 20.0), finding(5, 20.0))
    shown = comparison.compare(now, before)["against"]
    assert {row["node"]: row["change"] for row in shown["rows"]} == {0: "worse", 1: "better", 2: "same", 3: "new", 4: "gone", 5: "better"}
    assert [row["change"] for row in shown["rows"]] == ["worse", "new", "better", "better", "gone", "same"]
    assert shown["summary"].startswith("Against the earlier results: 1 gives away more than before")
    assert shown["differs"] == []


@pytest.mark.parametrize("format", [*FORMATS, "markdown", "text"])
def test_a_comparison_is_in_every_report(format: str) -> None:
    of = comparison.compare(record(finding(0, 29.0)), record(finding(0, 20.0), name="other"))
    page = rendered(format, of)
    if format == "sarif":
        assert [r["baselineState"] for r in json.loads(page)["runs"][0]["results"]] == ["new"]
    elif format != "junit":
        assert "not looked at" in " ".join(page.split())


def test_a_comparison_says_what_was_not_the_same_on_both_sides() -> None:
    now, before = record(finding(0)), record(finding(0))
    before["provenance"] = {**before["provenance"], "digest": "2" * 64, "versions": {"torch": "2.12"}}
    assert comparison.compare(now, before)["against"]["differs"] == [
        "the configuration",
        "the version of leakaudit",
        "the version of torch",
    ]


def test_a_redacted_comparison_keeps_its_states_and_no_old_fingerprint() -> None:
    now, before = record(finding(0, 29.0), finding(1)), record(finding(0, 20.0), finding(1))
    plain = comparison.compare(now, before)
    out = next(o for o in (redaction.redact(plain, key) for key in "abcdefgh") if not {0, 1} & {f["node"] for f in o["findings"]})
    assert not {row["id"] for row in plain["against"]["rows"]} & {row["id"] for row in out["against"]["rows"]}
    states = [r["baselineState"] for r in json.loads(rendered("sarif", out))["runs"][0]["results"]]
    assert sorted(states) == ["unchanged", "updated"]
