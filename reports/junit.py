"""A test report: one case a check, which fails where a record is given away, a claim refuted or a limit exceeded."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree as Tree

from leakaudit.registry import renderer
from leakaudit.results.grading import Check, checks
from leakaudit.results.wording import LIMITS, clean, provenance
from leakaudit.trace import Json


@renderer("junit")
def render(results: Mapping[str, Json]) -> str:
    """JUnit XML as Jenkins and GitLab read it; a suite an adversary, a skipped case for what is inconclusive or not determined."""
    suites: dict[str, list[Tree.Element]] = {}
    for check in checks(results):
        suites.setdefault(check.adversary, []).append(_case(results, check))
    for one in results["undetermined"]:
        suites.setdefault(clean(one["adversary"]), []).append(_unknown(results, one))
    root = Tree.Element("testsuites", name="leakaudit")
    root.extend(_suite(results, *suite) for suite in (suites or {"nobody": []}).items())
    for total in ("tests", "failures", "errors"):
        root.set(total, str(sum(int(suite.get(total, "0")) for suite in root)))
    Tree.indent(root)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n' + Tree.tostring(root, encoding="unicode") + "\n"
    )


def _suite(results: Mapping[str, Json], adversary: str, cases: list[Tree.Element]) -> Tree.Element:
    name = f"leakaudit as {adversary}" if adversary else "leakaudit lint"
    suite = Tree.Element("testsuite", name=name, tests=str(len(cases)), errors="0")
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))
    suite.set("time", f"{sum(float(case.get('time', '0')) for case in cases):.3f}")
    suite.set("timestamp", str(results["provenance"]["started"])[:19])
    properties = Tree.SubElement(suite, "properties")
    for what, value in provenance(results):
        Tree.SubElement(properties, "property", name=what, value=value)
    suite.extend(cases)
    Tree.SubElement(suite, "system-out").text = clean(f"{results['summary']} {LIMITS[0]}")
    return suite


def _case(results: Mapping[str, Json], check: Check) -> Tree.Element:
    case = Tree.Element(
        "testcase",
        name=check.name,
        classname=_class(results, check.rule),
        time=f"{check.seconds:.3f}",
    )
    if check.level == "error":
        Tree.SubElement(case, "failure", type=check.word, message=check.message).text = (
            check.detail or check.message
        )
    elif check.open:
        Tree.SubElement(case, "skipped", message=check.message)
    Tree.SubElement(case, "system-out").text = check.message
    return case


def _unknown(results: Mapping[str, Json], one: Mapping[str, Json]) -> Tree.Element:
    case = Tree.Element(
        "testcase",
        name=f"node {one['node']}: nothing determined",
        classname=_class(results, "none"),
        time="0.000",
    )
    Tree.SubElement(case, "skipped", message=clean(one["reason"]))
    return case


def _class(results: Mapping[str, Json], rule: str) -> str:
    return f"leakaudit.{clean(results['trace']['protocol'])}.{rule}"
