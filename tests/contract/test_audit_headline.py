"""The headline of an audit answers the claim first, then names the worst leak."""

from __future__ import annotations

from typing import Any

from leakaudit.reporting.findings.wording import (
    audit_headline,
    worst_leak,
    worst_verdict,
)
from leakaudit.reporting.results.audit_names import SENSITIVITY, VIEW
from leakaudit.reporting.results.model import VerdictEntry


def entry(verdict: str, test: str = "canary replays", **rest: Any) -> VerdictEntry:
    about: dict[str, Any] = {
        "epsilon": 1.0,
        "adversary": "eavesdropper",
        "node": 0,
        "attack": "none",
        "promise": None,
        "says": f"{test}: {verdict}",
        "power": "",
        "p": None,
        "level": None,
        "needs": None,
        "figures": {},
    }
    return VerdictEntry(**{"verdict": verdict, "test": test, **about, **rest})


def test_a_test_without_power_has_no_say() -> None:
    powerless = entry("INCONCLUSIVE", p=0.4, level=0.01, needs=15)
    held = entry("NOT_REFUTED", VIEW)
    assert worst_verdict([powerless, held]) is held
    assert worst_verdict([powerless]) is powerless  # nothing else was tested


def test_a_view_without_a_bound_has_a_say() -> None:
    unknown = entry("INCONCLUSIVE", VIEW)
    assert worst_verdict([entry("NOT_REFUTED"), unknown]) is unknown


def test_a_claim_comes_before_its_assumptions_unless_they_fail() -> None:
    assumed = entry("NOT_REFUTED", SENSITIVITY)
    held = entry("NOT_REFUTED")
    assert worst_verdict([assumed, held]) is held
    failed = entry("UNSUPPORTED", SENSITIVITY)
    assert worst_verdict([held, failed]) is failed


def test_the_claim_is_answered_before_the_leak() -> None:
    leak = "Epsilon 8: an eavesdropper recovered all."
    said = audit_headline([entry("REFUTED", VIEW)], leak, True)
    assert said.startswith("REFUTED: view bound against the claim")
    assert said.index("REFUTED") < said.index("Epsilon 8: an eavesdropper recovered all. 1 REFUTED")


def test_nothing_is_said_of_attacks_that_returned_nothing() -> None:
    said = audit_headline([], worst_leak([], (1, 5, 5))[0], False)
    assert said.startswith("Nothing was tested; the run was interrupted and is incomplete.")
