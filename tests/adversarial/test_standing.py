"""A mu or an epsilon is never printed without what it is: exact, at most, as declared, or none."""

# Only the parts of a record that a function reads are given to it.
# mypy: disable-error-code="arg-type"

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import leakaudit as la
from leakaudit.cli import main
from leakaudit.cli.bound import _row
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.evidence import Evidence, Origin
from leakaudit.core.verdict import Holds, Verdict
from leakaudit.judging.gate import rules
from leakaudit.judging.gate.cells import GateCell
from leakaudit.judging.gate.config import Budget, Check
from leakaudit.judging.gate.rule import PricedView
from leakaudit.judging.papers import runs
from leakaudit.judging.papers.dp_norm import claims as dpnorm
from leakaudit.judging.papers.runs import protocol
from leakaudit.reporting.findings.findings import trained
from leakaudit.reporting.rendering import cards
from leakaudit.reporting.rendering.html import bounded
from leakaudit.reporting.results.model import RuleStatus
from leakaudit.reporting.trackers import content
from leakaudit.theory.relations import account, know
from leakaudit.views.accounting.compare import Comparison
from leakaudit.views.accounting.footnotes import footnotes

SAYS = {
    Holds.EXACT: "3.2",
    Holds.AT_MOST: "at most 3.2",
    Holds.DECLARED: "3.2 as declared, which the recording contradicts",
}
PLAN = """
victim = "fedavg"
nodes = 3
rounds = 2
data = "gaussians"
model = "logistic"
samples = 3

[set]
sigma = 0.5
clip = 1.0
batch = {batch}

[audit]
adversaries = ["eavesdropper"]
attacks = ["analytic"]
sensitivity = 2.0
"""


@pytest.fixture
def noisy(tmp_path: Path) -> la.Trace:
    data = ["--rounds", "2", "--nodes", "3", "--data", "gaussians", "--model", "logistic"]
    settings = ["--set", "clip=1", "--set", "sigma=0.5", "--set", "noise=step"]
    assert main(["record", "dpsgd", "-q", *data, *settings, "-o", str(tmp_path / "a.pt")]) == 0
    return la.load(tmp_path / "a.pt")


@pytest.mark.parametrize("holds", SAYS)
def test_the_budget_line_of_a_gate(holds: Holds) -> None:
    cell = GateCell(Check("ring", "m:f"), "node:1", "analytic", [0])
    for most in (8.0, 1.0):
        priced = PricedView(3.2, (2,), 1.0, holds)
        (rule,) = rules.budgets(cell, [Budget("epsilon", most)], priced)
        if holds is Holds.DECLARED and most == 8.0:
            assert rule.status is RuleStatus.VOID
            assert rule.says == f"a budget on epsilon cannot be judged: {SAYS[holds]}"
            continue
        assert rule.status is (RuleStatus.OK if most == 8.0 else RuleStatus.OVER)
        assert rule.says.startswith(f"epsilon of one record: {SAYS[holds]}, at most {most:g}")


def test_every_table_of_bounds_shows_that_a_recording_contradicts_them(noisy: la.Trace) -> None:
    honest: Comparison = la.bound(noisy, "eavesdropper", nodes=[0], sensitivity=2.0)[0]
    assert honest.holds is Holds.EXACT
    wrong = Evidence("messages", Origin.CONTRADICTED, "they contain no noise")
    refuted = replace(honest, rests=(*honest.rests, wrong))
    mu = f"{honest.bound.mu:.4g}"
    epsilon = f"{honest.bound.epsilon:.4g}"
    for one, how in ((honest, ""), (refuted, "declared ")):
        assert _row(one, "")[2:4] == [how + mu, how + epsilon]
        assert f">{how}{mu}<" in cards._compared(one)
        remarks, marks = footnotes([one], begun=False)
        page = bounded.page([one], trained(noisy), marks, remarks, ())
        for value in (mu, epsilon):
            assert f'<td class="number">{how}{value}</td>' in page


def test_no_cell_is_at_most_nothing(noisy: la.Trace) -> None:
    """Without a sensitivity, mu is a multiple of it, and there is no epsilon."""
    bare = replace(noisy, params={**noisy.params, "clip": 0.0})
    (found, *_) = la.bound(bare, "node:1", nodes=[0])
    assert found.bound.per_unit
    assert found.epsilon_in_words == "-"
    assert found.mu_in_words.endswith(" S")


@pytest.mark.parametrize(("batch", "holds"), [(0, "exact"), (1, "at most")])
def test_the_dry_run_of_an_audit(
    batch: int, holds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The models between local steps are not observed, so records need not attain the bound."""
    plan = tmp_path / "a.toml"
    plan.write_text(PLAN.format(batch=batch))
    assert main(["audit", str(plan), "--dry-run", "-q"]) == 0
    (point,) = json.loads(capsys.readouterr().out)["grid"]
    assert point["record"]["eavesdropper"] > 0
    assert point["holds"] == {"eavesdropper": holds}


def test_a_tracker_stores_it_in_the_name_of_the_number() -> None:
    def view(holds: str | None) -> SimpleNamespace:
        return SimpleNamespace(exact=3.2, epsilon=3.2, node=1, adversary="node:0", holds=holds)

    for holds, suffix in (
        ("exact", ""),
        ("at most", "_at_most"),
        (None, "_at_most"),
        (str(Holds.DECLARED), "_as_declared"),
    ):
        point = SimpleNamespace(epsilon=8.0, read_views=lambda holds=holds: [view(holds)])
        audit = SimpleNamespace(verdicts=[], grid=[point])
        assert dict(content._of_audit(audit)) == {
            f"view/epsilon_8/node1/node:0/epsilon{suffix}": 3.2
        }


def test_rows_of_the_claims_use_values_that_are_attained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where hidden noise moves a node's models: linear losses attain the mu."""
    about = {"nodes": 3, "graph": "ring", "rounds": 2, "data": "gaussians", "model": "logistic"}
    for noise in ("step", "message"):
        made = protocol(victim="dpsgd", set={"sigma": 0.5, "clip": 1.0, "noise": noise}, **about)
        view, gradients = know(made.whole, Adversary()), made.whole.gradients(0)
        mu = runs.attained_mu(view, gradients, 1.0)
        assert 0 < mu == pytest.approx(account(view, gradients, 1.0).attained)
        larger = replace(account(view, gradients, 1.0), mu=2 * mu)
        monkeypatch.setattr(runs, "account", lambda *_, larger=larger: larger)
        with pytest.raises(LeakauditError, match="mu is at most"):
            runs.attained_mu(view, gradients, 1.0)
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("mu", "verdict"), [(0.01, Verdict.NOT_REFUTED), (5.0, Verdict.INCONCLUSIVE)]
)
def test_an_upper_bound_refutes_no_claim(
    mu: float, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dpnorm, "record", lambda *_: mu)
    (found,) = dpnorm._claimed_one()
    assert found.verdict is verdict
    assert "the view bound is at most" in found.says
