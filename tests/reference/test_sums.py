"""Objectives that are sums over a node's records: gradients, messages, attacks and bounds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import leakaudit as la
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.reconstruction import Certificate
from leakaudit.core.trace import TaskSpec, Trace, Truth
from leakaudit.protocols import declared, recording, training_curves
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks import clipping
from leakaudit.tasks.task import Task
from leakaudit.views.accounting.view_bound import view_bounds

COUNT = 3


def recorded(**changes: Any) -> tuple[recording.Plan, Trace, Truth]:
    base = {
        "victim": "pdmm",
        "nodes": 4,
        "graph": "ring",
        "rounds": 6,
        "data": "gaussians",
        "samples": COUNT,
        "model": "logistic",
        "dtype": "float64",
        "reduction": "sum",
        "states": True,
    }
    plan = recording.plan(Scenario(**{**base, **changes}))
    done = recording.record(plan, None)
    return plan, done.trace, done.truth_record


def by_hand(theta: Tensor, x: Tensor, y: Tensor, l2: float) -> Tensor:
    """The gradient of sum_k log(1 + exp(..)) + l2/2 |theta|^2, thesis eqs. (3.2) and (3.3)."""
    out = x.double() @ theta[:-1] + theta[-1]
    rest = out.sigmoid() - y.double()
    return torch.cat([rest @ x.double(), rest.sum()[None]]) + l2 * theta


@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_a_gradient_step_is_along_the_sum(l2: float) -> None:
    plan, trace, truth = recorded(victim="single", rounds=1, set={"mu": 0.05, "l2": l2})
    w0 = trace.public["w0"]
    total = sum(by_hand(w0, *truth.of(node), l2) for node in range(4)) / 4
    assert isinstance(total, Tensor)
    torch.testing.assert_close(truth.states["w"][1, 0], w0 - 0.05 * total)
    assert plan.task.l2 == pytest.approx(l2 / COUNT)


def test_every_derivative_of_a_sum_is_so_many_times_that_of_the_mean() -> None:
    for model, loss in (("logistic", "cross_entropy"), ("mlp", "squared"), ("lenet", "binary")):
        shape = (1, 12, 12)
        spec = TaskSpec(model, {"l2": 0.2}, loss, shape, classes=1 if loss == "squared" else 2)
        task = Task.build(spec, dtype=torch.float64)
        total = task.summed(COUNT)
        random = torch.Generator().manual_seed(0)
        thetas = torch.stack([task.init(random) for _ in range(2)])
        x = torch.rand(2, COUNT, *shape, generator=random, dtype=torch.float64)
        y = torch.randint(2, (2, COUNT), generator=random)
        wanted = COUNT * task.gradients(thetas, x, y)
        for found in (
            total.gradients(thetas, x, y),
            total.again(thetas, x, y),
            torch.stack([total.gradient(*one) for one in zip(thetas, x, y, strict=True)]),
            torch.stack([total.grad_fn(*one) for one in zip(thetas, x, y, strict=True)]),
        ):
            torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(total.losses(thetas, x, y), COUNT * task.losses(thetas, x, y))
        clipped = COUNT * clipping.gradients(task, thetas, x, y, 0.1)
        torch.testing.assert_close(clipping.gradients(total, thetas, x, y, 0.1), clipped)
        if model == "logistic":
            wanted = COUNT * task.hessians(thetas, x, y)
            torch.testing.assert_close(total.hessians(thetas, x, y), wanted)


@pytest.mark.parametrize("update", ["gradient", "exact"])
def test_a_sum_is_a_mean_with_other_constants(update: str) -> None:
    """argmin of b f + b rho .. is that of f + rho ..; a gradient step is b times as large."""
    constants = {"update": update, "rho": 0.6, "z0": 0.9, "alpha": 0.1}
    _, sums, _ = recorded(set=constants)
    constants |= {"rho": 0.6 / COUNT, "z0": 0.9 / COUNT, "alpha": 0.1 * COUNT}
    _, means, _ = recorded(reduction="mean", set=constants)
    first, second = sums.messages[0], means.messages[0]
    scale = torch.ones(len(first.payload), 1, dtype=torch.float64)
    for k, kind in enumerate(first.kinds):
        if kind not in ("w", "x"):  # dual variables are in units of the objective
            scale[first.row[first.kind == k].long()] = COUNT
    torch.testing.assert_close(first.payload, scale * second.payload, rtol=1e-9, atol=1e-10)


VICTIMS: list[tuple[str, dict[str, Any]]] = [
    ("pdmm", {"set": {"alpha": 0.05}}),
    ("pdmm", {"set": {"update": "exact"}}),
    ("dpsgd", {"set": {"batch": 1, "alpha": 0.02}}),
    ("dpsgd", {"set": {"steps": 2, "alpha": 0.02, "clip": 0.5}}),
    ("fedavg", {"set": {"lr": 0.02}}),
    ("fedsgd", {"set": {"clip": 0.5}}),
    ("dpnorm", {"set": {"sigma": 0.0, "batch": 1}}),
    ("recal", {}),
    ("nids", {}),
    ("extra", {}),
    ("tracking", {}),
    ("rwadmm", {}),
    ("secured", {"nodes": 9, "graph": "complete"}),
]


@pytest.mark.parametrize(("victim", "others"), VICTIMS)
def test_declared_relations_hold(victim: str, others: dict[str, Any]) -> None:
    _, trace, truth = recorded(victim=victim, **others)
    assert declared.protocol_of(trace).summed == COUNT
    found = declared.check(trace, truth)
    assert found.checked > found.skipped
    assert found.worst < 1e-11
    mean = Trace(**{**vars_of(trace), "params": {**trace.params, "reduction": "mean"}})
    with pytest.raises(LeakauditError, match="relation"):
        declared.check(mean, truth)


def vars_of(value: Trace | Truth) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def test_an_attack_recovers_the_records_of_sums() -> None:
    _, trace, truth = recorded(
        data="faces", model="mlp", samples=2, set={"hidden": 64, "alpha": 0.02}, rounds=5
    )
    leaks = la.leaks(trace, nodes=[0])
    found = la.attack(leaks, "exact", generator=torch.Generator().manual_seed(0))
    assert found[0].certificate is Certificate.EXACT
    (scored,) = la.score(found, truth)
    assert scored.exact == (True, True)


def test_a_bound_counts_the_sum() -> None:
    """One record moves a sum of clipped gradients by 2 C, and a mean by 2 C / b."""
    found = []
    for reduction in ("sum", "mean"):
        plan = recording.plan(
            Scenario(
                "fedsgd",
                nodes=3,
                rounds=1,
                data="gaussians",
                samples=COUNT,
                model="logistic",
                reduction=reduction,
                set={"clip": 0.5, "sigma": 0.1},
            )
        )
        made = plan.declared
        assert made.clipped is not None
        (bound,) = view_bounds(made, Adversary(), [0], made.clipped.sensitivity, 1e-5)
        assert bound.mu is not None
        found.append(bound.mu)
    assert found[0] == pytest.approx(COUNT * found[1])


def test_the_loss_of_curves_is_that_of_sums() -> None:
    _, _, truth = recorded(victim="single", curves=True)
    run = training_curves.kept(truth, "run")
    w = truth.states["w"][6, 0]
    out = truth.x.double() @ w[:-1] + w[-1]
    losses = torch.nn.functional.softplus(-(2 * truth.y - 1) * out)
    assert float(run["loss"][6]) == pytest.approx(float(losses.sum()) / 4, rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"reduction": "total"}, "reduction: expected mean or sum, got 'total'"),
        ({"victim": "dpnorm", "set": {"epsilon": 1.0}}, "epsilon of dpnorm is claimed for means"),
        ({"victim": "diloco"}, "the optimiser of diloco is not linear in gradients"),
    ],
)
def test_what_is_about_means_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(LeakauditError, match=says):
        recorded(**changes)


def test_one_record_is_its_own_sum() -> None:
    _, sums, _ = recorded(samples=1)
    _, means, _ = recorded(samples=1, reduction="mean")
    assert torch.equal(sums.messages[0].payload, means.messages[0].payload)
    assert math.isfinite(float(sums.messages[0].payload.sum()))


def test_a_recording_that_names_no_number_of_records_is_refused() -> None:
    _, trace, _ = recorded()
    for params in ({"reduction": "sum"}, {"reduction": "max", "samples": 2}):
        broken = Trace(**{**vars_of(trace), "params": params})
        with pytest.raises(LeakauditError, match="reduction: expected mean, or sum with"):
            declared.protocol_of(broken)
