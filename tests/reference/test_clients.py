"""Who takes part in a round of FedAvg, FedSGD and secure aggregation, local training, and SecureD-FL's local steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import leakaudit as la
from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Trace, Truth
from leakaudit.protocols import declared, recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks.task import Task
from leakaudit.theory.relations import account, know

NODES = 7


def record(victim: str, rounds: int = 6, **constants: Any) -> tuple[recording.Plan, Trace, Truth]:
    scenario = Scenario(
        victim=victim,
        nodes=9 if victim == "secured" else NODES,
        graph="complete" if victim in ("secagg", "secured") else "ring",
        rounds=rounds,
        data="gaussians",
        model="logistic",
        samples=4,
        dtype="float64",
        states=True,
        seed=3,
        set={"l2": 0.05, **constants},
    )
    plan = recording.plan(scenario)
    found = recording.record(plan, None)
    return plan, found.trace, found.truth_record


def gradient(task: Task, truth: Truth, node: int, w: Tensor) -> Tensor:
    x, y = truth.of(node)
    return task.gradient(w, x.double(), y)


def sent(trace: Trace, t: int, kind: str) -> dict[tuple[int, int], Tensor]:
    found = {}
    for table in trace.messages:
        if kind in table.kinds:
            right = (table.round == t) & (table.kind == table.kinds.index(kind))
            for k in right.nonzero().flatten().tolist():
                ends = int(table.src[k]), int(table.dst[k])
                found[ends] = table.payload[table.row[k]]
    return found


@pytest.mark.parametrize(("fraction", "m"), [(0.5, 3), (0.01, 1), (0.99, 6)])
def test_fedavg_is_the_published_loop(fraction: float, m: int) -> None:
    """m = max(C N, 1); S_t random; w_i by E = 2 full steps from w; w = mean over S_t."""
    plan, trace, truth = record("fedavg", fraction=fraction, epochs=2, lr=0.3)
    active = trace.public["active"]
    assert active.shape == (6, m)
    w = trace.public["w0"]
    for t in range(1, 7):
        chosen = active[t - 1].tolist()
        assert sorted(set(chosen)) == chosen
        down, up = sent(trace, t, "w"), sent(trace, t, "up")
        assert set(down) == {(NODES, i) for i in chosen}
        assert set(up) == {(i, NODES) for i in chosen}
        local = []
        for i in chosen:
            torch.testing.assert_close(down[NODES, i], w, rtol=0, atol=1e-14)
            mine = w
            for _ in range(2):
                mine = mine - 0.3 * gradient(plan.task, truth, i, mine)
            torch.testing.assert_close(up[i, NODES], mine, rtol=0, atol=1e-13)
            local.append(mine)
        w = torch.stack(local).mean(0)
    assert len({tuple(row) for row in active.tolist()}) > 1
    assert plan.messages == len(trace) == 2 * 6 * m


def test_fedsgd_is_the_published_loop() -> None:
    plan, trace, truth = record("fedsgd", fraction=0.5, lr=0.4)
    w = trace.public["w0"]
    for t in range(1, 7):
        chosen = trace.public["active"][t - 1].tolist()
        g = [gradient(plan.task, truth, i, w) for i in chosen]
        up = sent(trace, t, "g")
        assert set(up) == {(i, NODES) for i in chosen}
        for i, own in zip(chosen, g, strict=True):
            torch.testing.assert_close(up[i, NODES], own, rtol=0, atol=1e-13)
        w = w - 0.4 * torch.stack(g).mean(0)
    assert plan.messages == len(trace) == 2 * 6 * 3


@pytest.mark.parametrize(("fraction", "m"), [(0.5, 3), (0.01, 1), (0.99, 6)])
def test_masks_cancel_among_the_peers_of_a_round(fraction: float, m: int) -> None:
    """y_i = x_i + sum_{j > i} m_ij - sum_{j < i} m_ji over S_t, to all; w = mean over S_t."""
    plan, trace, truth = record("secagg", fraction=fraction, local_steps=2, lr=0.3, mask=3.0)
    active = trace.public["active"]
    assert active.shape == (6, m)
    w = trace.public["w0"]
    for t in range(1, 7):
        peers = active[t - 1].tolist()
        masks, y = sent(trace, t, "mask"), sent(trace, t, "y")
        assert set(masks) == {(j, i) for i in peers for j in peers if i < j}
        assert set(y) == {(i, j) for i in peers for j in range(NODES) if i != j}
        local = {}
        for i in peers:
            mine = w
            for _ in range(2):
                mine = mine - 0.3 * gradient(plan.task, truth, i, mine)
            local[i] = mine
            for j in peers:
                mine = mine + masks.get((j, i), 0.0) - masks.get((i, j), 0.0)
            for j in set(range(NODES)) - {i}:
                torch.testing.assert_close(y[i, j], mine, rtol=0, atol=1e-13)
        w = torch.stack(list(local.values())).mean(0)
        torch.testing.assert_close(truth.states["w"][t, 0], w, rtol=0, atol=1e-13)
    assert len({tuple(row) for row in active.tolist()}) > 1
    assert plan.messages == len(trace) == 6 * (m * (NODES - 1) + m * (m - 1) // 2)


@pytest.mark.parametrize(
    ("victim", "constants"),
    [
        ("secagg", {"fraction": 0.5, "local_steps": 2, "batch": 2, "sigma": 0.1, "clip": 0.5}),
        ("secagg", {"fraction": 0.3}),
        ("fedavg", {"fraction": 0.5, "epochs": 2}),
        ("fedavg", {"fraction": 0.5, "epochs": 2, "batch": 2, "sigma": 0.1, "clip": 0.5}),
        ("fedavg", {"fraction": 0.3, "steps": 3, "batch": 3, "momentum": 0.5}),
        ("fedsgd", {"fraction": 0.5, "sigma": 0.1, "clip": 1.0}),
        ("fedsgd", {"fraction": 0.5, "sigma": 0.1, "noisy": "first", "momentum": 0.9}),
        ("single", {"local": True, "inner": 3, "batch": 2, "momentum": 0.9}),
        ("single", {"local": True, "inner": 2}),
        ("secured", {"momentum": 0.9, "keep": True, "local_steps": 2, "batch": 2}),
        ("secured", {"spread": 0.3, "local_steps": 2}),
    ],
)
def test_the_declaration_describes_the_run(victim: str, constants: dict[str, Any]) -> None:
    _, trace, truth = record(victim, **constants)
    found = declared.check(trace, truth)
    assert found.skipped == 0
    assert found.checked > 10
    assert found.worst < 100 * torch.finfo(torch.float64).eps


def test_a_client_is_hidden_only_in_rounds_in_which_it_sends_nothing() -> None:
    """Every gradient of a client is known, one for each of its rounds, and no other."""
    _, trace, _ = record("fedsgd", fraction=0.5)
    active = trace.public["active"]
    leaks = la.leaks(trace)
    assert len(leaks) == len(active.unique())
    for leak in leaks:
        assert len(leak.value) == int((active == leak.node).sum())


def test_the_bound_counts_the_rounds_in_which_a_client_takes_part() -> None:
    """mu = S sqrt(rounds of the client) / sigma: nothing is credited for a public schedule."""
    plan, trace, _ = record("fedsgd", fraction=0.5, sigma=0.5, clip=1.0)
    protocol = declared.protocol_of(trace)
    assert protocol.turns is None
    p = protocol.whole
    for node in range(NODES):
        times = int((trace.public["active"] == node).sum())
        if times:
            found = account(know(p, Adversary()), p.gradients(node), 2.0)
            assert found.mu == pytest.approx(2.0 * times**0.5 / 0.5, rel=1e-9)
    assert plan.victim.stationary is False


def test_the_wires_of_some_clients_are_recorded() -> None:
    scenario = Scenario(
        victim="fedavg",
        nodes=NODES,
        rounds=5,
        data="gaussians",
        model="logistic",
        wires="node:2",
        set={"fraction": 0.6},
    )
    trace = recording.record(recording.plan(scenario), None).trace
    times = int((trace.public["active"] == 2).sum())
    assert len(trace) == 2 * times


def test_all_clients_need_no_schedule() -> None:
    plan, trace, _ = record("fedavg", fraction=1.0)
    assert set(trace.public) == {"w0"}
    assert plan.victim.stationary
    assert trace.params["fraction"] == 1.0


def test_a_recording_that_states_no_fraction_has_no_schedule_and_so_all_clients() -> None:
    _, trace, _ = record("fedsgd", sigma=0.5, clip=1.0)
    protocol = declared.protocol_of(trace)
    assert not protocol.depends_on("fraction")
    assert protocol.depends_on("sigma")


@pytest.mark.parametrize(
    ("victim", "constants", "says"),
    [
        ("fedavg", {"fraction": 0.0}, "0 < fraction <= 1"),
        ("fedsgd", {"fraction": 1.5}, "0 < fraction <= 1"),
        ("secagg", {"fraction": 0.0}, "0 < fraction <= 1"),
        ("fedavg", {"fraction": 0.5, "keep": True}, "set fraction=1"),
        ("single", {"momentum": 0.9}, "local=true"),
        ("secured", {"spread": -1.0}, "spread >= 0"),
        ("secured", {"momentum": 1.0}, "momentum < 1"),
    ],
)
def test_wrong_constants_are_one_line(victim: str, constants: dict[str, Any], says: str) -> None:
    with pytest.raises(LeakauditError, match=says) as error:
        record(victim, **constants)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["sgd", "adam", "rmsprop"])
def test_local_only_trains_every_node_by_itself(kind: str) -> None:
    plan, trace, truth = record("single", local=True, optimiser=kind, inner=2, mu=0.02)
    assert len(trace) == 0
    torch_kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}
    for node in range(NODES):
        w = torch.nn.Parameter(trace.public["w0"].clone())
        theirs = torch_kinds[kind]([w], lr=0.02)
        for _ in range(12):
            w.grad = gradient(plan.task, truth, node, w.detach())
            theirs.step()
        torch.testing.assert_close(truth.states["w"][6, node], w.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("keep", [False, True])
def test_secured_trains_with_rmsprop(keep: bool) -> None:
    """Two FL rounds of I = 2: w_k^r = Update(k, w^{r-1}), with the optimiser of torch."""
    plan, trace, truth = record(
        "secured", 4, optimiser="rmsprop", keep=keep, lr=0.01, local_steps=3, lam0=0.0
    )
    assert trace.params["iterations"] == 2
    for k in range(9):
        w = torch.nn.Parameter(trace.public["w0"].clone())
        theirs = torch.optim.RMSprop([w], lr=0.01)
        for t in (1, 3):
            if t == 3:
                w.data = z_of(trace, 2)
                if not keep:
                    theirs = torch.optim.RMSprop([w], lr=0.01)
            for _ in range(3):
                w.grad = gradient(plan.task, truth, k, w.detach())
                theirs.step()
            torch.testing.assert_close(truth.states["w"][t, k], w.detach(), rtol=0, atol=1e-11)


def z_of(trace: Trace, t: int) -> Tensor:
    """The sum of the groups' sums of an iteration, and of the group that nobody is told of."""
    groups = trace.public["groups"]
    partition = groups[((t - 1) % 2 + 1) % len(groups)]
    told = sent(trace, t, "sum")
    total = torch.zeros_like(trace.public["w0"])
    for group in partition.tolist():
        total = total + next(value for (src, _), value in told.items() if src in group)
    return total


def test_secured_first_aggregates_models_that_differ() -> None:
    """Algorithm 3: w^0 = SecureAggregation(k, w_k^0), then FL round 1 trains from it."""
    plan, trace, truth = record("secured", 4, spread=0.5, lam0=0.0, rho=0.01, local_steps=1, lr=0.2)
    first = truth.states["w"][0]
    assert first.std(0).mean() > 0.1
    torch.testing.assert_close(truth.states["w"][1], first)
    z = z_of(trace, 2)
    torch.testing.assert_close(z, first.mean(0), rtol=0, atol=1e-3)
    for k in range(9):
        trained = z - 0.2 * gradient(plan.task, truth, k, z)
        torch.testing.assert_close(truth.states["w"][3, k], trained, rtol=0, atol=1e-12)
