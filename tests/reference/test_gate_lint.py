"""The lint inside a gate: a program that draws less noise than its recording declares fails,
whatever the attacks get.
"""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="call-overload, index, union-attr"

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as Tree

import numpy as np
import pytest

from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError
from leakaudit.core.verdict import Verdict
from leakaudit.judging.gate import judge, linted, record
from leakaudit.judging.gate.config import Acceptance, Check, Gate
from leakaudit.judging.gate.judge import GateResults
from leakaudit.judging.gate.runs import ready
from leakaudit.reporting.findings import redaction
from leakaudit.reporting.rendering import gate_text
from leakaudit.reporting.results import model, record_file
from leakaudit.reporting.results.model import RuleStatus
from leakaudit.views.conformance.pitfall import Pitfall

Program = Callable[[int, Path], object]


@pytest.fixture(scope="module")
def train(project: Path) -> ModuleType:
    """The program of examples/ci-repo."""
    spec = importlib.util.spec_from_file_location(
        "gated_train", project / "examples" / "ci-repo" / "train.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def drawing(train: ModuleType, monkeypatch: pytest.MonkeyPatch, share: float) -> Program:
    """The program with this share of the noise that it declares."""

    def privatise(model: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        drawn: np.ndarray = model + share * train.SIGMA * rng.normal(size=model.shape)
        return drawn

    monkeypatch.setattr(train, "privatise", privatise)
    program: Program = train.train
    return program


def linted_rules(
    program: Program, seed: int = 0, level: str = "error"
) -> list[tuple[str, RuleStatus, str]]:
    check = Check("ring", program, lint=level)
    return [(r.measure, r.status, r.says) for r in linted.rules(check, ready(check, Path())(seed))]


@pytest.mark.parametrize(
    ("share", "least", "most"), [(0.5, 0.45, 0.55), (0.8, 0.75, 0.85), (0.0, 0.0, 0.3)]
)
def test_less_noise_than_declared_fails_and_says_how_much(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, share: float, least: float, most: float
) -> None:
    ((code, status, says),) = linted_rules(drawing(train, monkeypatch, share))
    assert (code, status) == ("P20", RuleStatus.CONTRADICTED)
    assert says.startswith("insufficient noise, REFUTED: the noise of ")
    assert least <= float(re.split("[,;]", says.split("measured ")[1])[0]) <= most
    assert says.endswith(
        "draw the noise that is declared and that the claim requires (see 'leakaudit bound')"
    )


@pytest.mark.slow
def test_the_example_raises_no_false_alarm_with_fifty_seeds(train: ModuleType) -> None:
    said = {
        (code, status) for seed in range(50) for code, status, _ in linted_rules(train.train, seed)
    }
    assert said == {("", RuleStatus.OK)}


# --- what counts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "refuted", "unsupported"),
    [
        ("error", RuleStatus.CONTRADICTED, RuleStatus.WARNING),
        ("strict", RuleStatus.CONTRADICTED, RuleStatus.CONTRADICTED),
        ("warn", RuleStatus.WARNING, RuleStatus.WARNING),
    ],
)
def test_what_is_refuted_fails_and_the_rest_warns(
    train: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    level: str,
    refuted: RuleStatus,
    unsupported: RuleStatus,
) -> None:
    verdicts = (Verdict.REFUTED, Verdict.UNSUPPORTED, Verdict.UNCLAIMED, Verdict.INCONCLUSIVE)
    found = [
        Pitfall(number, verdict, "said")
        for number, verdict in zip((20, 1, 3, 5), verdicts, strict=True)
    ]
    monkeypatch.setattr(linted, "lint", lambda trace, truth: found)
    assert [(c, s) for c, s, _ in linted_rules(train.train, level=level)] == [
        ("P20", refuted),
        ("P01", unsupported),
    ]


def test_a_seed_that_the_gate_itself_gives_is_no_pitfall(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        linted, "lint", lambda trace, truth: [Pitfall(19, Verdict.REFUTED, "the seed is 0")]
    )
    assert [(c, s) for c, s, _ in linted_rules(train.train)] == [("", RuleStatus.OK)]


def test_off_does_not_look(train: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linted, "lint", lambda trace, truth: pytest.fail("it looked"))
    assert linted_rules(train.train, level="off") == []


def test_a_level_that_is_not_there_is_named() -> None:
    with pytest.raises(
        LeakauditError, match=r"check ring: lint: unknown 'eror'; did you mean 'error'\?"
    ):
        Check("ring", "train:train", lint="eror")


# --- the whole gate ---------------------------------------------------------------------------------------------------


def halved(train: ModuleType, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> GateResults:
    check = Check(
        "ring", drawing(train, monkeypatch, 0.5), attacks=("exact",), set={"exact": {"visits": 2}}
    )
    return judge.run(replace(Gate((check,), seeds=1, baseline=""), **changes), None)


def test_a_gate_fails_on_it_alone_and_every_report_shows_it(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = halved(train, monkeypatch)
    assert judged.code == 1
    assert [r.cell for r in judged.rules if r.status is not RuleStatus.OK] == ["ring/lint"]
    made = model.plain(record.build(judged))
    record_file.validate(made)
    assert made["summary"].startswith(
        "Not as declared: ring/lint: insufficient noise, REFUTED: the noise of 4 nodes together is at most 0.5"
    )
    shown = {
        name: registry.get("reports", name)(made) for name in ("junit", "sarif", "github", "html")
    }
    (failed,) = Tree.fromstring(shown["junit"]).findall(
        ".//testsuite[@name='leakaudit lint']/testcase/failure"
    )
    assert failed.attrib["type"] == "NOT AS DECLARED"
    (run,) = json.loads(shown["sarif"])["runs"]
    (alert,) = [r for r in run["results"] if r["level"] == "error"]
    rule = run["tool"]["driver"]["rules"][alert["ruleIndex"]]
    assert (rule["id"], rule["fullDescription"]["text"]) == (
        "leakaudit/P20",
        "pitfall P20 of the lint: insufficient noise",
    )
    assert alert["locations"][0]["logicalLocations"] == [
        {"kind": "cell", "name": "ring/lint", "fullyQualifiedName": "ring/lint: lint P20"}
    ]
    assert (
        "\n::error title=ring/lint%3A lint P20::NOT AS DECLARED: ring/lint: insufficient noise, REFUTED: "
        in shown["github"]
    )
    assert (
        '<td class="word">NOT AS DECLARED</td><td>ring/lint</td><td>lint P20</td><td>insufficient noise, REFUTED: '
        in shown["html"]
    )
    failed_test = gate_text.failure(record.part(judged), judged.complete, judged.gate.seeds)
    text, page_of_text = (registry.get("reports", name)(made) for name in ("text", "markdown"))
    for page in (text, failed_test, page_of_text):
        assert "NOT AS DECLARED" in page
        assert "insufficient noise, REFUTED" in page


def test_it_can_be_accepted_until_a_date(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Acceptance(
        "noise", "halved on purpose", "me", date(2999, 1, 1), cells="ring/lint", measure="P20"
    )
    assert halved(train, monkeypatch, accepted=(one,)).code == 0
    assert halved(train, monkeypatch, accepted=(replace(one, measure="P05"),)).code == 1
    assert halved(train, monkeypatch, accepted=(replace(one, expires=date(2020, 1, 1)),)).code == 1


def test_a_redacted_record_keeps_the_pitfall_and_none_of_its_figures(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model.plain(record.build(halved(train, monkeypatch)))
    out = next(
        o
        for o in (redaction.redact(made, key) for key in "abcdefgh")
        if o["trace"]["links"] != made["trace"]["links"]
    )
    record_file.validate(out)
    (rule,) = [r for r in out["gate"]["rules"] if r["kind"] == "lint"]
    assert rule["says"] == "insufficient noise"
    assert "the noise of 4 nodes" not in json.dumps(out)
    assert out["gate"]["networks"]["ring"]["links"] == out["trace"]["links"]
    assert out["summary"].startswith("Not as declared: ring/lint: insufficient noise. ")
