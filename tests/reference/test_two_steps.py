"""The thesis' two-step estimate (Yu 2023, eqs. 2.10, 2.13, 4.3, 4.22) as an attack, against its
equations evaluated on the private models."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor

import leakaudit as la
from leakaudit.cli import main
from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate
from leakaudit.core.trace import Trace, Truth
from leakaudit.inversion import attacking
from leakaudit.protocols import recording
from leakaudit.protocols.declared import constant
from leakaudit.protocols.scenario import Scenario
from leakaudit.scoring.scoring import score
from leakaudit.views.extraction import hearing

NODE = "eavesdropper+node:1"


def run(rounds: int = 12, **changes: Any) -> tuple[Trace, Truth, Any]:
    values: dict[str, Any] = {
        "nodes": 8,
        "graph": "ring",
        "data": "gaussians",
        "samples": 1,
        "model": "logistic",
        "alpha": 0.1,
        "rho": 0.4,
        **changes,
    }
    names = ("nodes", "graph", "data", "samples", "model")
    shared = {name: values.pop(name) for name in names}
    scenario = Scenario("pdmm", rounds=rounds, dtype="float64", states=True, set=values, **shared)
    plan = recording.plan(scenario)
    recorder = recording.record(plan, None)
    return recorder.trace, recorder.truth_record, plan


def estimate(trace: Trace, assumed: str = "auto", who: str = NODE) -> list[GradientLeak]:
    return list(la.leaks(trace, Adversary.parse(who), estimator=assumed))


def printed(trace: Trace, own: Tensor, others: Tensor, t: int, update: str) -> Tensor:
    """The right sides of the thesis, for models (R, c) of a node and the sum of its neighbours."""
    rho, d = constant(trace, "rho"), 2
    if update == "exact":
        return rho * d * (own[t] + own[t + 2]) - 2 * rho * others[t + 1]
    pull = 2 * rho * others[t + 2]
    if update == "gradient":
        a = 1 / constant(trace, "alpha")
        return (
            (rho * d - a) * (own[t + 2] - own[t])
            + a * own[t + 3]
            + (2 * rho * d - a) * own[t + 1]
            - pull
        )
    mu = constant(trace, "mu")
    return (
        (rho * d - mu) * own[t + 1]
        + (mu + rho * d) * own[t + 3]
        + mu * (own[t] - own[t + 2])
        - pull
    )


@pytest.mark.parametrize("update", ["exact", "gradient", "quadratic"])
@pytest.mark.parametrize("differential", [True, False])
def test_the_estimate_is_the_thesis_equation_with_equal_last_models(
    update: str, differential: bool
) -> None:
    trace, truth, _ = run(update=update, differential=differential)
    w = truth.states["w"] - truth.states["w"][-1]  # every node's own last model as w*
    for leak in estimate(trace):
        around = list(trace.graph.neighbours[leak.node])
        for value, t in zip(leak.value, leak.theta_rounds.tolist(), strict=False):
            true = printed(trace, w[:, leak.node], w[:, around].sum(1), t, update)
            assert torch.allclose(value, true, rtol=1e-9, atol=1e-11)
        # The models: the node's changes, from the last model of the corrupt node.
        last = truth.states["w"][-1, 1]
        assert leak.theta is not None
        assert torch.allclose(leak.theta, w[leak.theta_rounds, leak.node] + last, atol=1e-11)
        assert "their error is not known" in leak.estimate


def test_early_stopping_and_its_window() -> None:
    """The error falls as the last models come closer; only the observed rounds count."""
    trace, truth, plan = run(400)
    errors = []
    for stop in (6, 40, 400):
        who = Adversary.parse(NODE, range(stop + 1))
        leaks = hearing.leaks(trace, who, rounds=4, estimator="auto")
        found = [
            attacking.attack_one(leak, plan.task, "twostep", torch.Generator()) for leak in leaks
        ]
        assert all(one.certificate is not Certificate.EXACT for one in found)
        assert all(one.certificate is not Certificate.INTERVAL for one in found)
        scores = score(found, truth)
        errors.append(median((one.relative_error or (9.0,))[0] or 9.0 for one in scores))
    assert min(errors[:2]) > 0.1
    assert errors[2] < 0.05 * min(errors[:2])


def test_a_wrong_update_is_worse_the_fewer_steps_are_taken() -> None:
    """Figure 6.2: eq. (2.13) on inexact updates, with models that have converged."""
    errors = []
    for steps in (1, 40):
        trace, truth, plan = run(1500, k_max=steps)
        true = []
        for leak in la.leaks(trace, Adversary.parse(NODE), rounds=2, estimator="exact"):
            x, y = truth.of(leak.node)
            w = truth.states["w"][leak.theta_rounds, leak.node]
            g = torch.stack([plan.task.gradient(m, x.double(), y) for m in w])
            miss = (leak.value - leak.combination @ g).norm() / (leak.combination @ g).norm()
            true.append(float(miss))
        errors.append(median(true))
    assert errors[0] > 1
    assert errors[1] < 0.5 * errors[0]


def test_a_network_is_searched_at_the_estimated_models() -> None:
    shape = {"model": "mlp", "hidden": 8, "data": "faces", "alpha": 0.05, "nodes": 4}
    trace, truth, plan = run(200, **shape)
    attack = registry.configure(registry.get("attacks", "twostep"), {"invert": "differential"})
    leak = estimate(trace)[0]
    assert attack.refuses(leak, plan.task) is None
    outsider = estimate(trace, who="eavesdropper")[0]
    assert outsider.theta is None
    assert "--as eavesdropper+node:1" in (attack.refuses(outsider, plan.task) or "")
    found = attacking.attack_one(outsider, plan.task, "twostep", torch.Generator().manual_seed(0))
    assert found.attack == "twostep"
    assert found.certificate in (Certificate.APPROXIMATE, Certificate.FAILED)
    assert len(score([found], truth)[0].mse or ()) == 1


def test_relations_are_not_an_estimate_and_other_protocols_have_none() -> None:
    trace, _, plan = run()
    ordinary = la.leaks(trace)[0]
    attack = registry.get("attacks", "twostep")()
    assert "its own estimate of gradients" in (attack.refuses(ordinary, plan.task) or "")
    with pytest.raises(LeakauditError, match="expected one of"):
        la.leaks(trace, estimator="two")
    other = recording.record(
        recording.plan(Scenario("dpsgd", 4, "ring", 4, "gaussians", model="logistic")), None
    ).trace
    with pytest.raises(LeakauditError, match="those of pdmm, not of dpsgd"):
        la.leaks(other, estimator="exact")
    short, _, _ = run(3)
    assert "need 4 observed rounds" in la.leaks(short, estimator="gradient").undetermined[0]


def test_it_is_an_attack_of_the_command_line_and_of_sweeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = str(tmp_path / "k.pt"), str(tmp_path / "out")
    logistic = ["--data", "gaussians", "--model", "logistic", "--set", "alpha=0.1"]
    ring = ["--nodes", "4", "--graph", "ring", "--rounds", "60"]
    assert main(["record", "pdmm", "-o", path, *ring, *logistic, "-q"]) == 0
    chosen = ["--attack", "twostep", "--set", "assumes=gradient", "--gradients", "4"]
    assert main(["attack", path, *chosen, "-o", out, "-q"]) == 0
    assert "An eavesdropper recovered" in capsys.readouterr().out
    assert "eq. (4.3)" in Path(out, "results.json").read_text(encoding="utf-8")
    plan = tmp_path / "plan.toml"
    plan.write_text(
        '[scenario]\nnodes = 4\ngraph = "ring"\nrounds = 30\ndata = "gaussians"\n'
        'model = "logistic"\n[sweep]\nattacks = ["twostep", "analytic"]\n'
        '[sweep.set.twostep]\nassumes = "exact"\n',
        encoding="utf-8",
    )
    assert main(["sweep", str(plan), "-o", str(tmp_path / "sweep"), "-q"]) == 0
    cells = json.loads((tmp_path / "sweep" / "results.json").read_text(encoding="utf-8"))
    assert "twostep" in json.dumps(cells)
