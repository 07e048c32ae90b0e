"""What the wires of the first victims give away, against autograd in float64 at the true models."""

# JSON is looked up by keys here: a wrong key fails when the test runs.
# mypy: disable-error-code="operator"

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import leakaudit as la
from leakaudit.core.errors import NotDetermined
from leakaudit.core.leak import GradientLeak
from leakaudit.core.trace import Trace, Truth
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario

MODES = list(itertools.product((1.0, 0.5, 0.3), ("exact", "gradient", "quadratic")))


Recorded = tuple[recording.Plan, Trace, Truth]


def recorded(
    victim: str = "pdmm",
    dtype: str = "float64",
    samples: int = 3,
    rounds: int = 12,
    model: str = "logistic",
    **settings: Any,
) -> Recorded:
    steps = {"alpha": 0.1, "mu": 10.0} if victim == "pdmm" else {}
    scenario = Scenario(
        victim=victim,
        nodes=8,
        graph="er",
        rounds=rounds,
        data="gaussians",
        samples=samples,
        model=model,
        set={"l2": 0.1, **steps, **settings},
        dtype=dtype,
        seed=3,
        states=True,
    )
    plan = recording.plan(scenario)
    recorder = recording.record(plan, None)
    return plan, recorder.trace, recorder.truth_record


def gradients(plan: recording.Plan, truth: Truth, leak: GradientLeak, shift: int = 0) -> Tensor:
    """Gradients of the node at its true models, float64."""
    x, y = truth.of(leak.node)
    w = truth.states["w"].double()
    models = [w[t + shift][leak.node] for t in leak.theta_rounds.tolist()]
    return torch.stack([plan.task.gradient(m, x.double(), y) for m in models])


def error(plan: recording.Plan, truth: Truth, leak: GradientLeak, shift: int = 0) -> float:
    true = leak.combination @ gradients(plan, truth, leak, shift)
    return float((leak.value - true).norm() / true.norm())


@pytest.mark.parametrize(("theta", "update"), MODES)
@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-10), ("float32", 1e-4)])
def test_one_step_differences_equal_autograd(
    theta: float, update: str, dtype: str, limit: float
) -> None:
    plan, trace, truth = recorded(theta=theta, update=update, dtype=dtype)
    leaks = la.leaks(trace)
    assert [leak.node for leak in leaks] == list(range(8))
    assert all(
        leak.kind == "difference" and leak.theta is None and len(leak.value) >= 10 for leak in leaks
    )
    assert max(error(plan, truth, leak) for leak in leaks) < limit


@pytest.mark.parametrize(("theta", "update"), MODES)
@pytest.mark.parametrize("how", [{"z0": 0.0}, {"differential": False}])
def test_known_start_or_plain_messages_give_every_gradient_and_the_models(
    theta: float, update: str, how: dict[str, Any]
) -> None:
    plan, trace, truth = recorded(theta=theta, update=update, **how)
    for leak in la.leaks(trace):
        assert leak.kind == "gradient"
        assert error(plan, truth, leak) < 5e-12
        true = torch.stack([truth.states["w"][t, leak.node] for t in leak.theta_rounds.tolist()])
        assert leak.theta is not None
        assert torch.allclose(leak.theta, true, rtol=0, atol=1e-12)


def test_a_curious_neighbour_adds_the_models_and_all_of_them_the_gradients() -> None:
    plan, trace, truth = recorded()
    node = 0
    around = trace.graph.neighbours[node]
    (one,) = la.leaks(trace, la.Adversary(corrupt=frozenset(around[:1])), [node])
    assert one.kind == "difference"
    true = torch.stack([truth.states["w"][t, node] for t in one.theta_rounds.tolist()])
    assert one.theta is not None
    assert torch.allclose(one.theta, true, rtol=0, atol=1e-13)
    (every,) = la.leaks(trace, la.Adversary(hears="none", corrupt=frozenset(around)), [node])
    assert every.kind == "gradient"
    assert error(plan, truth, every) < 1e-12


def test_a_deaf_wire_is_made_up_for_by_the_others() -> None:
    plan, trace, truth = recorded(rounds=10)
    arcs = frozenset(a for a in trace.graph.arcs if a != (0, trace.graph.neighbours[0][0]))
    (leak,) = la.leaks(trace, la.Adversary(hears=arcs), [0])
    assert error(plan, truth, leak) < 1e-9
    assert leak.scope.startswith("lower bound")


def test_too_few_wires_and_an_unknown_constant_are_said() -> None:
    _, trace, _ = recorded()
    leaks = la.leaks(trace, la.Adversary(hears=frozenset({(0, trace.graph.neighbours[0][0])})), [0])
    assert not len(leaks)
    assert "not observed" in leaks.undetermined[0]
    with pytest.raises(la.LeakauditError, match="does not know 'alpha'"):
        la.leaks(
            trace,
            la.Adversary(
                knows=frozenset({"rho", "theta", "update", "differential", "k_max", "quantize"})
            ),
        )


def test_a_late_start_needs_no_first_round() -> None:
    plan, trace, truth = recorded()
    (leak,) = la.leaks(trace, la.Adversary(window=range(5, 10)), [2])
    assert leak.theta_rounds.tolist() == [5, 6, 7, 8]
    assert error(plan, truth, leak) < 1e-10


def test_k_max_steps_give_their_weighted_sum() -> None:
    plan, trace, truth = recorded(k_max=4)
    problem_x, problem_y = (torch.stack([truth.of(i)[k] for i in range(8)]) for k in (0, 1))
    alpha, rho = trace.params["alpha"], trace.params["rho"]
    for leak in la.leaks(trace, nodes=[1]):
        q, sums = 1 - alpha * rho * trace.graph.degree(1), []
        for t in leak.theta_rounds.tolist():
            w, after = (
                truth.states["w"][t, 1].clone(),
                truth.states["w"][t + 1, 1] if t < 12 else None,
            )
            total, pull = torch.zeros_like(w), _pull(trace, 1, t)
            for s in range(4):
                g = plan.task.gradient(w, problem_x[1].double(), problem_y[1])
                total += q ** (3 - s) * g
                w = w - alpha * (g + pull + rho * trace.graph.degree(1) * w)
            assert after is None or torch.allclose(w, after, atol=1e-12)
            sums.append(total)
        true = leak.combination @ torch.stack(sums)
        assert (leak.inner, leak.step) == (4, alpha)
        assert float((leak.value - true).norm() / true.norm()) < 1e-10


def _pull(trace: Trace, node: int, t: int) -> Tensor:
    """sum_j B z_{i|j}^t from the private z^0 and all that travelled."""
    view = la.Adversary(corrupt=frozenset(range(8))).view(trace)
    total = torch.zeros(trace.layout.size, dtype=torch.float64)
    for j in trace.graph.neighbours[node]:
        z = view.message(0, j, node, "z0") + sum(
            view.message(s, j, node, "dz") for s in range(1, t + 1)
        )
        total += z if node < j else -z
    return total


@pytest.mark.parametrize("theta", [1.0, 0.5, 0.3])
def test_two_step_identities_of_the_paper_hold_for_theta_one_only(theta: float) -> None:
    """Yu 2023, eq. (2.13): rho d (w^t + w^{t+2}) - 2 rho sum_j w_j^{t+1}, for exact updates."""
    plan, trace, truth = recorded(theta=theta, update="exact")
    w, rho = truth.states["w"], trace.params["rho"]
    x, y = truth.of(0)
    d, around = trace.graph.degree(0), list(trace.graph.neighbours[0])
    errors = []
    for t in range(1, 9):
        true = plan.task.gradient(w[t, 0], x.double(), y) - plan.task.gradient(
            w[t + 2, 0], x.double(), y
        )
        printed = rho * d * (w[t, 0] + w[t + 2, 0]) - 2 * rho * w[t + 1, around].sum(0)
        errors.append(float((printed - true).norm() / true.norm()))
    assert max(errors) < 1e-9 if theta == 1 else min(errors) > 1e-3


@pytest.mark.parametrize("theta", [1.0, 0.5])
@pytest.mark.parametrize("update", ["gradient", "quadratic"])
def test_two_step_identities_of_inexact_updates(theta: float, update: str) -> None:
    """Yu 2023, eqs. (4.3) and (4.22)."""
    plan, trace, truth = recorded(theta=theta, update=update)
    w, rho, d = truth.states["w"], trace.params["rho"], trace.graph.degree(0)
    x, y = truth.of(0)
    around, errors = list(trace.graph.neighbours[0]), []
    for t in range(1, 8):
        own = w[:, 0]
        true = plan.task.gradient(own[t], x.double(), y) - plan.task.gradient(
            own[t + 2], x.double(), y
        )
        pull = 2 * rho * w[t + 2, around].sum(0)
        if update == "gradient":
            a = 1 / trace.params["alpha"]
            printed = (
                (rho * d - a) * (own[t + 2] - own[t])
                + a * own[t + 3]
                + (2 * rho * d - a) * own[t + 1]
                - pull
            )
        else:
            mu = trace.params["mu"]
            printed = (
                (rho * d - mu) * own[t + 1]
                + (mu + rho * d) * own[t + 3]
                + mu * (own[t] - own[t + 2])
                - pull
            )
        errors.append(float((printed - true).norm() / true.norm()))
    assert max(errors) < 1e-9 if theta == 1 else min(errors) > 1e-3


@pytest.mark.parametrize(
    ("victim", "settings", "shift"),
    [
        ("fedsgd", {}, -1),
        ("fedavg", {}, -1),
        ("fedsplit", {}, 0),
        ("fedsplit", {"update": "exact"}, 0),
    ],
)
@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-12), ("float32", 5e-6)])
def test_protocols_with_a_server_give_every_gradient(
    victim: str, settings: dict[str, Any], shift: int, dtype: str, limit: float
) -> None:
    plan, trace, truth = recorded(victim, dtype, **settings)
    leaks = la.leaks(trace)
    assert [leak.node for leak in leaks] == list(range(8))
    for leak in leaks:
        assert error(plan, truth, leak, shift) < limit
        assert leak.theta is not None
    with pytest.raises(NotDetermined, match="server"):
        raise NotDetermined(la.leaks(trace, nodes=[8]).undetermined[8])


def test_recording_less_does_not_change_the_training_or_the_leak() -> None:
    base = Scenario(
        nodes=6,
        graph="ring",
        rounds=6,
        data="faces",
        model="mlp",
        set={"hidden": 8},
        dtype="float64",
        states=True,
    )
    changes: tuple[dict[str, Any], ...] = ({}, {"wires": "node:2"}, {"layers": "first"})
    whole, part, first = (
        recording.record(recording.plan(replace(base, **kw)), None) for kw in changes
    )
    assert torch.equal(whole.truth_record.states["w"], part.truth_record.states["w"])
    assert torch.equal(whole.truth_record.states["w"], first.truth_record.states["w"])
    (a,), (b,), (c,) = (la.leaks(r.trace, nodes=[2]) for r in (whole, part, first))
    assert torch.equal(a.value, b.value)
    assert torch.equal(a.value[:, slice(*c.columns)], c.value)
    assert c.columns[1] < len(a.value[0])
    assert part.trace.messages[0].payload.shape[0] == 2 * 2 * 7


def test_the_quantizer_sends_multiples_and_its_noise_is_predicted() -> None:
    cell = 1e-3
    plan, trace, truth = recorded(quantize=cell, samples=1)
    sent = trace.messages[0]
    travelled = sent.payload[sent.round > 0]
    assert float((travelled / cell - (travelled / cell).round()).abs().max()) < 1e-9
    ratios = []
    for leak in la.leaks(trace):
        true = leak.combination @ gradients(plan, truth, leak)
        ratios.append(float((leak.value - true).std() / leak.std.median()))
    assert 0.4 < sum(ratios) / len(ratios) < 2.5


@pytest.mark.parametrize(
    ("victim", "settings"),
    [
        ("pdmm", {"update": "exact"}),
        pytest.param("pdmm", {"update": "exact", "theta": 0.5}, marks=pytest.mark.slow),
        pytest.param("pdmm", {"alpha": 0.2}, marks=pytest.mark.slow),
        ("fedsplit", {"update": "exact"}),
    ],
)
def test_pdmm_and_fedsplit_reach_the_optimum(victim: str, settings: dict[str, Any]) -> None:
    """Without noise the nodes agree on the minimiser of the sum of all losses."""
    plan, _, truth = recorded(victim, rounds=600, **settings)
    w = truth.states["w"][-1]
    slope = torch.stack(
        [plan.task.gradient(w.mean(0), truth.of(i)[0].double(), truth.of(i)[1]) for i in range(8)]
    ).sum(0)
    assert float((w - w.mean(0)).abs().max()) < 1e-8
    assert float(slope.norm()) < 1e-7
