"""A JUnit test report with one case per check.

A case fails if a record is recovered, a claim is refuted or a limit is exceeded.
"""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree as Tree

from leakaudit.core.registry import renderer
from leakaudit.core.trace import Json
from leakaudit.reporting.findings.grading import GradedItem, checks
from leakaudit.reporting.findings.wording import LIMITS, clean, provenance
from leakaudit.reporting.findings.worst_case import refuted
from leakaudit.reporting.results import model
from leakaudit.reporting.results.model import RunRecord, Undetermined


@renderer("junit")
def render(results: Mapping[str, Json]) -> str:
    """Return JUnit XML in the form that Jenkins and GitLab read.

    Inconclusive checks and undetermined nodes are skipped. A run that did not examine everything,
    or whose truth refutes its certificates, has a case with an error.
    """
    record = model.of_run(results)
    suites: dict[str, list[Tree.Element]] = {}
    for check in checks(record):
        suites.setdefault(check.adversary, []).append(_case(record, check))
    for one in record.undetermined:
        suites.setdefault(clean(one.adversary), []).append(_unknown(record, one))
    root = Tree.Element("testsuites", name="leakaudit")
    nothing = not suites
    if nothing or not record.complete:
        suites.setdefault("nobody", []).append(_unexamined(record, nothing))
    why = refuted(record)
    if why:
        suites.setdefault("nobody", []).append(_refuted(record, clean(why)))
    for adversary, cases in suites.items():
        root.append(_suite(record, adversary, cases))
    for total in ("tests", "failures", "errors"):
        counts = [int(suite.get(total, "0")) for suite in root]
        root.set(total, str(sum(counts)))
    Tree.indent(root)
    text = Tree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _suite(record: RunRecord, adversary: str, cases: list[Tree.Element]) -> Tree.Element:
    """The cases of one adversary; "" stands for the cases of the lint."""
    name = "leakaudit lint"
    if adversary:
        name = f"leakaudit as {adversary}"
    seconds = sum(float(case.get("time", "0")) for case in cases)
    suite = Tree.Element("testsuite", name=name, tests=str(len(cases)))
    suite.set("errors", _count(cases, "error"))
    suite.set("failures", _count(cases, "failure"))
    suite.set("skipped", _count(cases, "skipped"))
    suite.set("time", f"{seconds:.3f}")
    suite.set("timestamp", record.provenance.started[:19])  # without fractions and zone
    properties = Tree.SubElement(suite, "properties")
    for what, value in provenance(record):
        Tree.SubElement(properties, "property", name=what, value=value)
    suite.extend(cases)
    Tree.SubElement(suite, "system-out").text = clean(f"{record.summary} {LIMITS[0]}")
    return suite


def _count(cases: list[Tree.Element], outcome: str) -> str:
    return str(sum(case.find(outcome) is not None for case in cases))


def _element(record: RunRecord, name: str, rule: str, seconds: float = 0.0) -> Tree.Element:
    """A case without an outcome; viewers group the cases of one rule by its class."""
    group = f"leakaudit.{clean(record.trace.protocol)}.{rule}"
    return Tree.Element("testcase", name=name, classname=group, time=f"{seconds:.3f}")


def _case(record: RunRecord, check: GradedItem) -> Tree.Element:
    case = _element(record, check.name, check.rule, check.seconds)
    if check.level == "error":
        failure = Tree.SubElement(case, "failure", type=check.word, message=check.message)
        failure.text = check.detail or check.message
    elif check.open:
        Tree.SubElement(case, "skipped", message=check.message)
    Tree.SubElement(case, "system-out").text = check.message
    return case


def _unknown(record: RunRecord, one: Undetermined) -> Tree.Element:
    case = _element(record, f"node {one.node}: no leak determined", "none")
    message = clean(one.reason)
    if one.understood is False:
        message = f"not understood: {message}"
    Tree.SubElement(case, "skipped", message=message)
    return case


def _unexamined(record: RunRecord, nothing: bool) -> Tree.Element:
    """The case of a run that did not examine everything, which is no result and no pass."""
    name = "examined completely"
    message = "the run was interrupted and is incomplete"
    if nothing:
        name = "examined"
        message = "nothing was examined"
    case = _element(record, name, "run")
    error = Tree.SubElement(case, "error", type="not examined", message=message)
    error.text = clean("; ".join([message, *record.not_tried]))
    return case


def _refuted(record: RunRecord, why: str) -> Tree.Element:
    case = _element(record, "truth", "run")
    Tree.SubElement(case, "error", type="refuted", message=why)
    return case
