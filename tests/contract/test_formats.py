"""JUnit, SARIF, annotations and text of the same records: complete, valid, and inert whatever the names are."""

from __future__ import annotations

import copy
import json
import re
import unicodedata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Tree

import attr
import jsonschema
import pytest
import sarif_om
import xmlschema
from records import EXACT, RECORDS, Record, finding, record, rendered

from leakaudit.cli import check
from leakaudit.cli._options import BINARY
from leakaudit.core import registry
from leakaudit.core.verdict import Verdict
from leakaudit.reporting.findings import comparison, grading, redaction
from leakaudit.reporting.findings.wording import outcome_word
from leakaudit.reporting.rendering import gate_text
from leakaudit.reporting.rendering.console import printed
from leakaudit.reporting.results.model import CheckRecord, Finding, RuleStatus, fitted

ENDS = "\r\n"  # of lines; those of CSV end with both


@pytest.mark.parametrize("format", [f for f in registry.names("reports") if f not in BINARY])
@pytest.mark.parametrize("name", RECORDS)
def test_a_rendering_is_pure_and_printable(format: str, name: str) -> None:
    before = copy.deepcopy(RECORDS[name])
    page = rendered(format, RECORDS[name])
    assert page == rendered(format, RECORDS[name])
    assert RECORDS[name] == before
    assert page.endswith("\n")
    assert not [c for c in page if unicodedata.category(c)[0] == "C" and c not in ENDS]


# --- levels -----------------------------------------------------------------------------------------------------------


def level(of: Record) -> str:
    return grading.level(fitted(of, Finding))


def test_levels_follow_what_was_given_away() -> None:
    assert level(EXACT) == "error"
    assert level(finding(0, scores=None, certificate="EXACT")) == "error"
    assert level(finding(0, scores=None, certificate="INTERVAL")) == "error"
    assert level(finding(0)) == "warning"
    assert level(finding(0, None, certificate="FAILED")) == "note"
    assert level({**EXACT, "cell": {"epsilon": "inf", "seed": 0}}) == "warning"
    assert [c.level for c in grading.checks(RECORDS["audit"])][:2] == ["error", "warning"]


# How a status appears: its level in SARIF, what its case has in JUnit, the command of GitHub, and
# the code of its colour in a terminal (bold red, yellow, green or dim).
RED = ("error", "failure", "error", "1;31")
YELLOW = ("warning", None, "warning", "33")
STATUSES = {
    RuleStatus.OK: ("none", None, "notice", "32"),
    RuleStatus.OVER: RED,
    RuleStatus.REGRESSION: RED,
    RuleStatus.CONTRADICTED: RED,
    RuleStatus.ACCEPTED: ("none", None, "notice", "32"),
    RuleStatus.WARNING: YELLOW,
    RuleStatus.INCONCLUSIVE: ("warning", "skipped", "warning", "33"),
    RuleStatus.TOO_FEW_SEEDS: RED,
    RuleStatus.NOT_COMPARABLE: RED,
    RuleStatus.VOID: RED,
    RuleStatus.UNTESTED: ("none", "skipped", "notice", "2"),
}
VERDICTS = {
    Verdict.REFUTED: ("error", "failure", "error"),
    Verdict.UNSUPPORTED: ("error", "failure", "error"),
    Verdict.INCONCLUSIVE: ("warning", "skipped", "warning"),
    Verdict.NOT_REFUTED: ("none", None, "notice"),
    Verdict.UNCLAIMED: ("none", None, "notice"),
}


def shown(of: Record, word: str) -> tuple[str, str | None, str]:
    """How the first check of a record appears in SARIF, JUnit and GitHub; its word in all three."""
    result = results_of(of)[0]
    assert result["message"]["text"].startswith(f"{word}: ")
    case = next(Tree.fromstring(rendered("junit", of)).iter("testcase"))
    outcome = next((part for part in case if part.tag != "system-out"), None)
    assert (case.findtext("system-out") or "").startswith(f"{word}: ")
    if outcome is not None and outcome.tag == "failure":
        assert outcome.attrib["type"] == word
    line = rendered("github", of).splitlines()[1]  # below the summary
    assert f"::{word}: " in line
    command = line.split()[0].removeprefix("::")
    return result["level"], None if outcome is None else outcome.tag, command


def test_every_status_of_a_rule_has_its_level_in_every_format() -> None:
    for status in RuleStatus:
        of = copy.deepcopy(RECORDS["gate"])
        of["gate"]["rules"] = [{**of["gate"]["rules"][0], "kind": "baseline", "status": status}]
        gate = fitted(of, CheckRecord)
        word = outcome_word(gate.gate.rules[0])
        page = printed(gate_text.text(gate, None, verbose=True), None, True)
        colour = re.search(rf"\x1b\[([\d;]+)m{word}", page)
        assert colour is not None, status
        assert (*shown(of, word), colour[1]) == STATUSES[status], status


def test_every_verdict_has_its_level_in_every_format() -> None:
    for verdict in Verdict:
        of = copy.deepcopy(RECORDS["audit"])
        of["findings"] = []
        of["audit"]["verdicts"] = [{**of["audit"]["verdicts"][0], "verdict": verdict.name}]
        assert shown(of, verdict.words) == VERDICTS[verdict], verdict


def test_a_fingerprint_is_of_the_question_and_not_of_the_answer() -> None:
    first, again, other = (
        grading.checks(record(f))[0].id
        for f in (finding(0), finding(0, 11.0, residual=0.3, seconds=9.0), finding(1))
    )
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
def test_the_schema_of_junit_refuses_what_is_wrong(
    junit: xmlschema.XMLSchema11, old: str, new: str
) -> None:
    page = rendered("junit", RECORDS["attack"])
    junit.validate(page)
    assert old in page
    assert not junit.is_valid(page.replace(old, new, 1))


def test_junit_fails_where_a_record_is_given_away_and_skips_what_is_open() -> None:
    root = Tree.fromstring(rendered("junit", RECORDS["attack"]))
    cases = {c.attrib["name"]: [child.tag for child in c] for c in root.iter("testcase")}
    assert cases == {
        "node 1: analytic from a difference observed by node:3": ["failure", "system-out"],
        "node 0: analytic from a difference observed by node:3": ["system-out"],
        "node 7: no leak determined": ["skipped"],
    }
    found = Tree.fromstring(rendered("junit", RECORDS["audit"]))
    assert [f.attrib["type"] for f in found.iter("failure")] == ["REFUTED"]
    assert len(list(found.iter("skipped"))) == 1


def test_junit_of_a_gate_fails_where_a_limit_is_exceeded_and_skips_what_is_open() -> None:
    root = Tree.fromstring(rendered("junit", RECORDS["gate"]))
    assert [
        (f.tag, f.attrib.get("type"))
        for c in root.iter("testcase")
        for f in c
        if f.tag != "system-out"
    ] == [
        ("failure", "OVER BUDGET"),
        ("skipped", None),
        ("skipped", None),
        ("failure", "NOT AS DECLARED"),
    ]


# --- SARIF ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sarif(project: Path) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(
        json.loads((project / "tests" / "schemas" / "sarif.json").read_text())
    )


@pytest.mark.parametrize("name", RECORDS)
def test_sarif_is_valid_against_its_schema(
    sarif: jsonschema.Draft202012Validator, name: str
) -> None:
    """Names, types and patterns by tests/schemas/sarif.json; what a schema cannot say of indices and fingerprints here."""
    log = json.loads(rendered("sarif", RECORDS[name]))
    sarif.validate(log)
    sarif.validate(json.loads(rendered("sarif", redaction.redact(RECORDS[name]))))
    sarif.validate(
        json.loads(rendered("sarif", comparison.compare(RECORDS[name], RECORDS["attack"])))
    )
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(set(rules)) == len(rules)
    assert all(rules[r["ruleIndex"]] == r["ruleId"] for r in run["results"])
    assert len({r["partialFingerprints"]["leakaudit/v1"] for r in run["results"]}) == len(
        run["results"]
    )
    assert len(run["results"]) == len(grading.checks(RECORDS[name]))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), "2.0.0"),
        (("runs", 0, "results", 0, "level"), "fatal"),
        (("runs", 0, "results", 0, "message"), "text"),
        (("runs", 0, "results", 0, "ruleIndex"), -1),
        (("runs", 0, "results", 0, "node"), 3),
        (
            (
                "runs",
                0,
                "results",
                0,
                "locations",
                0,
                "physicalLocation",
                "artifactLocation",
                "uri",
            ),
            "/etc/passwd",
        ),
        (("runs", 0, "results", 0, "locations", 0, "physicalLocation", "region", "startLine"), 0),
        (("runs", 0, "results", 0, "baselineState"), "worse"),
        (("runs", 0, "results", 0, "partialFingerprints", "leakaudit/v1"), "abc"),
        (("runs", 0, "tool", "driver", "rules", 0, "help"), {}),
        (("runs", 0, "invocations", 0, "executionSuccessful"), "yes"),
    ],
)
def test_the_schema_of_sarif_refuses_what_is_wrong(
    sarif: jsonschema.Draft202012Validator, path: tuple[Any, ...], value: Any
) -> None:
    log = json.loads(rendered("sarif", RECORDS["attack"]))
    sarif.validate(log)
    at = log
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    assert not sarif.is_valid(log)


OBJECTS = {
    **{
        "runs": sarif_om.Run,
        "tool": sarif_om.Tool,
        "driver": sarif_om.ToolComponent,
        "rules": sarif_om.ReportingDescriptor,
    },
    **dict.fromkeys(
        ("shortDescription", "fullDescription", "help"), sarif_om.MultiformatMessageString
    ),
    **{
        "defaultConfiguration": sarif_om.ReportingConfiguration,
        "invocations": sarif_om.Invocation,
        "results": sarif_om.Result,
    },
    **{
        "message": sarif_om.Message,
        "locations": sarif_om.Location,
        "physicalLocation": sarif_om.PhysicalLocation,
    },
    **{
        "artifactLocation": sarif_om.ArtifactLocation,
        "region": sarif_om.Region,
        "logicalLocations": sarif_om.LogicalLocation,
        "relatedLocations": sarif_om.Location,
    },
}


def strange(value: Any, kind: Any) -> list[str]:
    """Names in an object that the standard's object model does not have, and those that it needs and are not there."""
    fields = {f.metadata["schema_property_name"]: f for f in attr.fields(kind)}
    found = [name for name in value if name not in fields]
    found += [
        f"no {name}"
        for name, f in fields.items()
        if f.default is attr.NOTHING and name not in value
    ]
    for name, inside in value.items():
        some = inside if isinstance(inside, list) else [inside]
        found += [
            s
            for one in some
            if isinstance(one, dict) and name in OBJECTS
            for s in strange(one, OBJECTS[name])
        ]
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
        return {
            x["physicalLocation"]["artifactLocation"]["uri"]
            for r in log["runs"][0]["results"]
            for x in r["locations"]
        }

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
        "github",
        record(
            *(finding(k, 200.0, True) for k in range(8)),
            *(finding(k) for k in range(8)),
            *([EXACT] * 5),
        ),
    ).splitlines()
    assert sum(line.startswith("::error") for line in lines) == 9
    assert "5 more of this kind" in lines[9]
    assert sum(line.startswith("::warning") for line in lines) == 8


@pytest.mark.parametrize("notes", [6, 7, 8, 9, 30])
def test_no_kind_of_annotation_exceeds_what_github_shows(notes: int) -> None:
    """With a comparison, notices begin with two sentences."""
    many = record(*(finding(k, None, certificate="FAILED") for k in range(notes)))
    for made in (many, comparison.compare(many, many)):
        lines = rendered("github", made).splitlines()
        found = [line for line in lines if line.startswith("::notice")]
        assert len(found) <= 10
        told = sum("more of this kind" in line for line in found)
        assert told == (notes > (7 if "against" in made else 8))


# --- text -------------------------------------------------------------------------------------------------------------


def test_the_text_of_many_findings_shows_the_worst_and_says_how_many_are_left() -> None:
    page = rendered("text", record(*(finding(k % 8, float(k)) for k in range(1, 300))))
    assert "only the 200 worst findings are shown; the HTML report has 99 more" in page
    assert page.count("analytic") == 201  # the sentence names one
    assert "299.0" in page
    assert " 99.0" not in page


# --- SARIF: where, how severe, and what is no alert -------------------------------------------------------------------

SENT = [{"kind": "w", "file": "src/train.py", "line": 79}]


def results_of(record: Record) -> list[dict[str, Any]]:
    (run,) = json.loads(rendered("sarif", record))["runs"]
    found: list[dict[str, Any]] = run["results"]
    return found


def at(location: dict[str, Any]) -> tuple[str, int]:
    place = location["physicalLocation"]
    return place["artifactLocation"]["uri"], place["region"]["startLine"]


def test_sarif_points_at_the_line_that_sends_and_relates_the_configuration() -> None:
    record = copy.deepcopy(RECORDS["attack"])
    record["trace"]["sent"] = SENT
    for result in results_of(record):
        assert at(result["locations"][0]) == ("src/train.py", 79)
        assert [at(one) for one in result["relatedLocations"]] == [("leakaudit.toml", 1)]
    for result in results_of({**record, "location": "own.py"}):
        assert at(result["locations"][0]) == ("own.py", 1)
        assert "relatedLocations" not in result


def test_sarif_of_a_gate_points_at_the_program_of_its_check() -> None:
    record = copy.deepcopy(RECORDS["gate"])
    for network in record["gate"]["networks"].values():
        network["sent"] = SENT
    places = {at(result["locations"][0]) for result in results_of(record)}
    assert ("src/train.py", 79) in places


def test_redaction_removes_the_lines_that_send() -> None:
    record = copy.deepcopy(RECORDS["attack"])
    record["trace"]["sent"] = SENT
    assert "train.py" not in json.dumps(redaction.redact(record))


@pytest.mark.parametrize("name", ["attack", "audit", "gate"])
def test_what_has_no_finding_is_no_alert(name: str) -> None:
    for result in results_of(RECORDS[name]):
        alert = result["level"] in ("error", "warning")
        assert (result["kind"] == "fail") == alert
        assert alert or result["level"] == "none"


def test_rules_of_sarif_have_a_severity_for_code_scanning() -> None:
    (run,) = json.loads(rendered("sarif", RECORDS["gate"]))["runs"]
    for rule in run["tool"]["driver"]["rules"]:
        assert 0.0 <= float(rule["properties"]["security-severity"]) <= 10.0
        assert "security" in rule["properties"]["tags"]
        page = re.search(r"See `(docs/[a-z]+[.]md)`", rule["help"]["markdown"])
        assert page is not None
        assert (Path(__file__).parents[2] / page[1]).is_file()
        assert "helpUri" not in rule, "leakaudit has no address"


def test_paths_of_sarif_are_relative_to_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert check._prefix(tmp_path / "a" / "b") == "a/b"
    assert check._prefix(tmp_path) == ""
    record = copy.deepcopy(RECORDS["gate"])
    for network in record["gate"]["networks"].values():
        network["sent"] = SENT
    places = {at(result["locations"][0]) for result in results_of({**record, "prefix": "a/b"})}
    assert places <= {("a/b/src/train.py", 79), ("a/b/leakaudit.toml", 1)}
    assert ("a/b/src/train.py", 79) in places
