"""An attack that refuses on some nodes is no stronger or weaker for it: a node that gave nothing counts as a blind guess."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="call-overload, index, misc, operator"

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest
import torch

from leakaudit.cli import main
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import AttackError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.quantities import QUANTITIES
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.trace import Truth
from leakaudit.inversion import attacking
from leakaudit.judging.auditing import record
from leakaudit.judging.auditing.blind import Blind
from leakaudit.judging.auditing.evidence import OneRun, Successes
from leakaudit.judging.auditing.levels import levels
from leakaudit.judging.auditing.measure import ViewMeasurements, _attacked
from leakaudit.judging.auditing.plan import AuditPlan
from leakaudit.judging.auditing.replays import Replays
from leakaudit.judging.auditing.simulate import SimulationResults, simulate
from leakaudit.protocols.scenario import Scenario
from leakaudit.reporting.results import record_file
from leakaudit.reporting.results.model import statistics
from leakaudit.runs.sweeping import work

SMALL = Scenario(
    "dpsgd",
    nodes=4,
    graph="ring",
    rounds=2,
    data="faces",
    model="mlp",
    set={"hidden": 64, "order": "adapt"},
)
PLAN = AuditPlan(SMALL, attacks=("analytic",), seeds=2, nodes=(0, 1, 2))
Refuse = Callable[[int, int], bool]  # how many attacks were made before, and the node


def refusing(monkeypatch: pytest.MonkeyPatch, refuse: Refuse) -> None:
    """Let `attack_one` refuse some nodes."""
    one, calls = attacking.attack_one, [0]

    def chosen(leak: GradientLeak, *args: Any, **settings: Any) -> Reconstruction:
        calls[0] += 1
        if refuse(calls[0] - 1, leak.node):
            raise AttackError("it needs more than this")
        return one(leak, *args, **settings)

    monkeypatch.setattr(attacking, "attack_one", chosen)


def made(plan: AuditPlan = PLAN) -> SimulationResults:
    return simulate(plan, levels(plan), plan.nodes)


def blind(truth: Truth, node: int) -> list[float]:
    """PSNR of the mean of all other records as a guess, in numpy."""
    x = truth.x.double().numpy()
    own = truth.node.numpy() == node
    mean = np.concatenate([x[~own], truth.pool.double().numpy()]).mean(0)
    return [-10 * math.log10(float(((one - mean) ** 2).mean())) for one in x[own]]


# --- audit --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refused", [{1}, {0, 2}])
def test_refused_nodes_count_as_the_mean_image(
    monkeypatch: pytest.MonkeyPatch, refused: set[int]
) -> None:
    """They dropped out of the mean before: what was left of an attack looked as strong as ever."""
    plan = replace(PLAN, seeds=1)
    whole = made(plan).values(QUANTITIES["psnr"], 0, Adversary(), "analytic")
    assert whole is not None
    assert whole.mean > 60
    refusing(monkeypatch, lambda _, node: node in refused)
    part = made(plan)
    found = part.values(QUANTITIES["psnr"], 0, Adversary(), "analytic")
    values = [v for o in part.outcomes for v in o.score.psnr or () if v is not None]
    assert len(values) == 3 - len(refused)
    wanted = [*values, *(v for node in refused for v in blind(part.truth, node))]
    assert found is not None
    assert (found.best, found.median, found.mean) == pytest.approx(
        (max(wanted), median(wanted), fmean(wanted)), rel=1e-5
    )
    errors = part.values(QUANTITIES["relative_error"], 0, Adversary(), "analytic")
    assert errors is not None
    assert errors.best < 1e-3 < errors.mean  # the smallest: it was the largest before
    assert len(part.refused(0, Adversary(), "analytic")) == len(refused)


def test_the_more_nodes_an_attack_refuses_the_less_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """SSIM and the relative error, too."""
    means: dict[str, list[float]] = {"psnr": [], "ssim": [], "relative_error": []}
    for count in range(3):
        with monkeypatch.context() as patch:
            refusing(patch, lambda _, node, count=count: node < count)
            part = made()
        for metric, column in means.items():
            found = part.values(QUANTITIES[metric], 0, Adversary(), "analytic")
            assert found is not None
            column.append(found.mean)
    assert means["psnr"] == sorted(means["psnr"], reverse=True)
    assert means["ssim"] == sorted(means["ssim"], reverse=True)
    assert means["relative_error"] == sorted(means["relative_error"])


def test_an_attack_that_refuses_everywhere_is_drawn_as_the_blind_guess(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its line in the panels of pictures was missing, as if nothing had been attacked."""
    plan = replace(PLAN, seeds=1)
    refusing(monkeypatch, lambda *_: True)
    part = made(plan)
    assert not part.outcomes
    wanted = median(v for node in (0, 1, 2) for v in blind(part.truth, node))
    found = part.values(QUANTITIES["psnr"], 0, Adversary(), "analytic")
    assert found is not None
    assert found.median == pytest.approx(wanted, rel=1e-5)
    (curve,) = record._curves(plan, levels(plan), part)
    assert statistics(curve, QUANTITIES["psnr"]) == found
    assert (curve.attacked, curve.refused) == (3, 3)


def test_a_seed_that_was_refused_is_a_trial_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of four seeds refused and two identified: 2 of 4, not 2 of 2, which refuted promises that hold."""
    plan = replace(PLAN, seeds=4, nodes=(0,))
    refusing(monkeypatch, lambda before, _: before % 2 == 0)
    part = made(plan)
    none = Replays(torch.empty(0), torch.empty(0, 0))
    view = ViewMeasurements(0, Adversary(), 0, none, none, OneRun(0, 0, 0), "", 0.0)
    blind = Blind.of(levels(plan)[0].ready)
    counted = [evidence for _, _, evidence, _ in _attacked(plan, blind, view, part)]
    assert {(e.hits, e.trials) for e in counted if isinstance(e, Successes)} == {(2, 4)}


TOML = """
[scenario]
victim = "dpsgd"
nodes = 3
graph = "ring"
rounds = 2
data = "faces"
model = "mlp"
[scenario.set]
hidden = 8
order = "adapt"
sigma = 0.5
"""


def text_of(folder: Path, capsys: pytest.CaptureFixture[str], format: str) -> str:
    capsys.readouterr()
    assert main(["report", str(folder), "-f", format, "-q"]) == 0
    return " ".join(capsys.readouterr().out.replace("\\", "").split())


def test_every_report_of_an_audit_shows_how_many_nodes_were_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = '[audit]\nepsilon = [inf]\nattacks = ["analytic"]\nreplays = 2\ncanary = 4\ncandidates = 2\nsensitivity = 2.0\n'
    (tmp_path / "a.toml").write_text(TOML + audit)
    refusing(monkeypatch, lambda _, node: node == 1)
    out = tmp_path / "out"
    assert main(["audit", str(tmp_path / "a.toml"), "-o", str(out), "-q"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    (curve,) = record_file.read(out / "results.json")["audit"]["curves"]
    assert (curve["attacked"], curve["refused"], curve["psnr"]["images"]) == (3, 1, 3)
    mean = f"{curve['psnr']['mean']:.1f}"
    pages = {
        "printed": printed,
        "report.md": " ".join((out / "report.md").read_text().replace("\\", "").split()),
    }
    pages |= {format: text_of(out, capsys, format) for format in ("text", "markdown", "html")}
    for name, page in pages.items():
        assert "1 of 3" in page, name
        assert "refused: attacks on a node in one run that returned nothing to score" in page, name
        if name != "html":  # draws it
            assert mean in page, name
    held = json.loads(text_of(out, capsys, "json"))["audit"]["curves"]
    assert held == [curve]


# --- sweep --------------------------------------------------------------------------------------------------------------


def test_a_sweep_counts_refused_nodes_as_the_mean_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.toml").write_text(
        TOML.replace("sigma = 0.5", "") + '[sweep]\nattacks = ["analytic"]\nseeds = 2\n'
    )
    usable = work._usable

    def some(cell: Any, leaks: Any, task: Any) -> Any:
        fit, why = usable(cell, leaks, task)
        refused = {leak.node for leak in fit if leak.node == 1 or cell.scenario.seed == 1}
        return [leak for leak in fit if leak.node not in refused], why | dict.fromkeys(
            refused, "it needs more than this"
        )

    points = {}
    for name, patched in (("whole", usable), ("part", some)):
        monkeypatch.setattr(work, "_usable", patched)
        assert (
            main(
                [
                    "sweep",
                    str(tmp_path / "s.toml"),
                    "-o",
                    str(tmp_path / name),
                    "--workers",
                    "0",
                    "-q",
                ]
            )
            == 0
        )
        (points[name],) = record_file.read(tmp_path / name / "results.json")["sweep"]["points"]
    whole, part = points["whole"], points["part"]
    assert (whole["attacked"], whole["refused"], whole["records"], whole["recovered"]) == (
        6,
        0,
        6,
        6,
    )
    assert (part["attacked"], part["refused"], part["records"], part["recovered"]) == (6, 4, 6, 2)
    cells = [json.loads(p.read_text()) for p in (tmp_path / "part" / "cells").glob("*.json")]
    kept = [v for c in cells for f in c["findings"] for v in f["scores"]["psnr"]["per_image"]]
    missed = [v for c in cells for s in c["refused"] for v in s["psnr"]["missed"]]
    assert (len(kept), len(missed)) == (2, 4)
    assert all(5 < v < 25 for v in missed)
    assert part["psnr"]["mean"] == pytest.approx(fmean([*kept, *missed]))
    assert part["psnr"]["median"] < whole["psnr"]["median"]
    assert part["labels_found"] == pytest.approx(whole["labels_found"] / 3)
    for format in ("text", "markdown"):
        page = text_of(tmp_path / "part", capsys, format)
        assert "4 of 6" in page
        assert "refused: attacks on a node in one run that returned nothing to score" in page
    assert "4 of 6" in (tmp_path / "part" / "report.md").read_text()


def test_a_sweep_in_which_every_node_is_refused_has_no_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.toml").write_text(TOML + '[sweep]\nattacks = ["analytic"]\nseeds = 1\n')
    monkeypatch.setattr(
        work, "_usable", lambda cell, leaks, task: ([], {leak.node: "no" for leak in leaks})
    )
    assert (
        main(
            ["sweep", str(tmp_path / "s.toml"), "-o", str(tmp_path / "out"), "--workers", "0", "-q"]
        )
        == 0
    )
    (point,) = record_file.read(tmp_path / "out" / "results.json")["sweep"]["points"]
    assert (point["attacked"], point["refused"], point["recovered"], point["labels_found"]) == (
        3,
        3,
        0,
        None,
    )
    assert "psnr" not in point
