"""Every verb of the command line has its function, and gives the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import leakaudit as la
from leakaudit.cli import main
from leakaudit.core import registry
from leakaudit.reporting.results.model import plain

SCENARIO = la.Scenario(
    victim="dpsgd",
    nodes=4,
    graph="ring",
    rounds=3,
    data="gaussians",
    model="logistic",
    set={"order": "adapt", "noise": "message", "sigma": 0.5, "clip": 1.0},
)
AUDIT = """
[audit]
epsilon = [8.0]
attacks = ["analytic"]
seeds = 2
replays = 6
canary = 8
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_a_recording_in_memory_is_the_one_on_disk(place: Path) -> None:
    trace, truth = la.record(SCENARIO)
    la.record(SCENARIO, place / "trace.pt")
    stored = la.load(place / "trace.pt")
    (sent,), (read) = trace.messages, stored.messages[0]
    assert torch.equal(sent.payload, read.payload)
    assert torch.equal(truth.x, la.load_truth(place / "trace.truth.pt").x)
    assert trace.id != stored.id


def test_an_attack_is_a_value_or_a_name() -> None:
    trace, truth = la.record(SCENARIO)
    leaks = la.leaks(trace, la.Adversary.parse("node:1"), nodes=[0])
    by_name = la.attack(leaks, "analytic", generator=generator(), numbers=10_000)
    by_value = la.attack(leaks, la.attacks.Analytic(numbers=10_000), generator=generator())
    assert torch.equal(by_name[0].x, by_value[0].x)
    assert by_value[0].attack == "analytic"
    (score,) = la.score(by_value, truth)
    assert isinstance(score, la.Score)
    assert isinstance(by_value[0].certificate, la.Certificate)


def test_settings_belong_to_a_name(place: Path) -> None:
    trace, _ = la.record(SCENARIO)
    leaks = la.leaks(trace, nodes=[0])
    with pytest.raises(la.LeakauditError, match="pass steps to its constructor"):
        la.attack(leaks, la.attacks.DLG(), generator=generator(), steps=3)


def test_a_bound_is_that_of_the_command_line(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "scenario.toml").write_text(SCENARIO.to_toml())
    assert main(["bound", "scenario.toml", "-f", "json", "-q"]) == 0
    printed = json.loads(capsys.readouterr().out)
    for source in (SCENARIO, "scenario.toml", la.record(SCENARIO)[0]):
        found = la.bound(source)
        assert [one.to_json()["mu"] for one in found] == [one["mu"] for one in printed]
    (named,) = la.bound(SCENARIO, [la.Adversary.parse("node:1")], [0])
    assert named.bound.node == 0
    with pytest.raises(la.LeakauditError, match="--delta between 0 and 1"):
        la.bound(SCENARIO, delta=2.0)


def test_an_explanation_is_that_of_the_command_line(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, _ = la.record(SCENARIO, "trace.pt")
    assert main(["explain", "trace.pt", "--as", "node:1", "-f", "json", "-q"]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = la.explain(trace, la.Adversary.parse("node:1"))
    said = [{**one.to_json(), "unclear": []} for one in found]
    assert json.loads(json.dumps(said)) == printed


def test_an_audit_writes_what_it_returns(place: Path) -> None:
    (place / "audit.toml").write_text(
        f"[scenario]\n{SCENARIO.to_toml()}".replace("[set]", "[scenario.set]") + AUDIT
    )
    found = la.audit("audit.toml", "out")
    assert found.audit.verdicts
    assert plain(found) == json.loads((place / "out/results.json").read_text())
    assert la.report("out", "markdown") == (place / "out/report.md").read_text()
    assert la.report("out", "pdf").startswith(b"%PDF-")
    assert la.table("out", "curves") == la.table(found, "curves")
    with pytest.raises(la.LeakauditError, match="there is no report 'docx'"):
        la.report("out", "docx")


def test_a_gate_runs(place: Path) -> None:
    assert main(["init", "--no-baseline", "-q", "--example"]) == 0
    text = (place / "leakaudit.toml").read_text().replace("seeds = 16", "seeds = 2")
    (place / "leakaudit.toml").write_text(
        text.replace('baseline = "leakage-baseline.json"', 'baseline = ""')
    )
    judged = la.check(".")
    assert judged.code in (0, 1, 3)
    assert [cell.check.name for cell in judged.cells] == ["main"]
    assert "Privacy gate" in judged._repr_html_()


def test_a_claim_is_reproduced() -> None:
    (claim,) = la.claims(rows=[1])
    assert claim.row.number == 1


def test_an_item_is_reproduced(place: Path) -> None:
    (found,) = la.reproduce("dp-norm/theorem1", "reproduced", executor=la.Executor())
    assert found.item.full_name == "dp-norm/theorem1"
    assert found.claims
    assert found.sentence in found._repr_html_()
    assert (place / "reproduced/dp-norm/theorem1/index.html").is_file()


def test_a_sweep_runs(place: Path) -> None:
    plan = f"[scenario]\n{SCENARIO.to_toml()}".replace("[set]", "[scenario.set]")
    (place / "sweep.toml").write_text(f'{plan}\n[sweep]\nattacks = ["analytic"]\nseeds = 2\n')
    swept = la.sweep("sweep.toml", "swept", executor=la.Executor())
    assert swept.cells == 2
    assert swept.left == 0
    assert "rel. error" in swept._repr_html_()


def test_theory_loads_no_scores(place: Path) -> None:
    """One process for both verbs: what either of them had loaded would still be there."""
    la.record(SCENARIO, "trace.pt")
    code = (
        "import sys; from leakaudit.cli import main; "
        "assert main(['bound', 'trace.pt', '-q']) == 0; "
        "assert main(['explain', 'trace.pt', '-q']) == 0; "
        "own = ('leakaudit.scoring', 'leakaudit.reporting.results', 'leakaudit.inversion'); "
        "heavy = (*own, 'skimage', 'lpips'); "
        "print('loaded', [m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("loaded []\n"), done.stdout + done.stderr


def test_every_attack_of_the_registry_is_a_value_of_the_package() -> None:
    registered = {
        kind
        for _, kind in registry.everything("attacks")
        if kind.__module__.startswith("leakaudit.attacks.")
    }
    assert {getattr(la.attacks, name) for name in la.attacks.__all__} == registered
    with pytest.raises(AttributeError, match="has no attribute 'Private'"):
        la.attacks.Private  # noqa: B018 - the access is the test


def test_a_half_written_attack_is_refused_by_what_it_lacks() -> None:
    class Half(la.Attack):
        def refuses(self, leak: la.GradientLeak, task: la.Task) -> None:
            return None

    with pytest.raises(la.LeakauditError, match=r"the attack Half of .* does not define __call__"):
        Half()  # type: ignore[abstract]
