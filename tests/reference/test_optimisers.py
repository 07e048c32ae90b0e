"""Optimisers of local training: equal to torch.optim, declared as they run, and what they leak."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import leakaudit as la
from leakaudit.cli import main
from leakaudit.core.errors import LeakauditError
from leakaudit.protocols import declared, recording
from leakaudit.protocols.optimiser import Optimiser, OptimiserState
from leakaudit.tasks.task import Task

OPTIMISERS = {
    "plain": (Optimiser(), torch.optim.SGD, {}),
    "decay": (Optimiser(decay=0.01), torch.optim.SGD, {"weight_decay": 0.01}),
    "momentum": (
        Optimiser(momentum=0.9, decay=0.01),
        torch.optim.SGD,
        {"momentum": 0.9, "weight_decay": 0.01},
    ),
    "nesterov": (
        Optimiser(momentum=0.8, nesterov=True),
        torch.optim.SGD,
        {"momentum": 0.8, "nesterov": True},
    ),
    "adam": (Optimiser("adam", decay=0.01), torch.optim.Adam, {"weight_decay": 0.01}),
    "adamw": (Optimiser("adamw", decay=0.01), torch.optim.AdamW, {"weight_decay": 0.01}),
    "rmsprop": (Optimiser("rmsprop", decay=0.01), torch.optim.RMSprop, {"weight_decay": 0.01}),
    "adagrad": (Optimiser("adagrad", decay=0.01), torch.optim.Adagrad, {"weight_decay": 0.01}),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_steps_are_those_of_torch(name: str) -> None:
    ours, theirs, constants = OPTIMISERS[name]
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    expected = [torch.nn.Parameter(row.clone()) for row in w]
    optimisers = [theirs([row], lr=0.03, **constants) for row in expected]
    memory = OptimiserState()
    for _ in range(6):
        g = torch.randn(3, 7, generator=generator, dtype=torch.float64)
        for row, optimiser, gradient in zip(expected, optimisers, g, strict=True):
            row.grad = gradient.clone()
            optimiser.step()
        w = ours.step(memory, 0.03, w, g)
        torch.testing.assert_close(
            w, torch.stack([row.data for row in expected]), atol=1e-14, rtol=1e-12
        )


def scenario(
    victim: str, constants: dict[str, Any], dtype: str = "float64", **more: Any
) -> la.Scenario:
    return la.Scenario(
        victim=victim,
        nodes=4,
        graph="star" if victim != "dpsgd" else "ring",
        rounds=5,
        data="faces",
        samples=2,
        model="mlp",
        dtype=dtype,
        states=True,
        set={"hidden": 8, **constants},
        **more,
    )


LINEAR: list[dict[str, Any]] = [
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True, "decay": 0.01},
]
CLIENTS = [
    ("fedavg", {"epochs": 3}),
    ("fedavg", {"batch": 1, "keep": True}),
    ("dpsgd", {"steps": 2}),
]
RUNS = [
    *((v, {**a, **b}) for (v, a), b in itertools.product(CLIENTS, LINEAR)),
    *(("dpsgd", {"order": "adapt", **b}) for b in LINEAR),
    *(("fedsgd", b) for b in (*LINEAR, {"clip": 0.5, "sigma": 0.1})),
    ("fedsgd", {"clip": 0.5, "sigma": 0.1, "noisy": "first"}),
    ("fedavg", {"clip": 0.5, "sigma": 0.1, "epochs": 2, "momentum": 0.9}),
    ("dpsgd", {"sigma": 0.2, "momentum": 0.9, "own": "plain"}),
]


@pytest.mark.parametrize(("victim", "constants"), RUNS)
def test_the_declaration_describes_the_run(victim: str, constants: dict[str, Any]) -> None:
    recorder = recording.record(recording.plan(scenario(victim, constants)), None)
    found = declared.check(recorder.trace, recorder.truth_record)
    assert found.skipped == 0
    assert found.checked >= 15
    assert found.worst < 1e-12


def test_noise_of_the_first_client_hides_no_other() -> None:
    """As with Opacus: mu of client 0 is 2 C sqrt(T) / sigma, that of the others infinite."""
    constants = {"clip": 0.5, "sigma": 2.0, "noisy": "first"}
    views = la.bound(scenario("fedsgd", constants), [la.Adversary()])
    assert [one.bound.mu for one in views] == [pytest.approx(math.sqrt(5) / 2)] + 3 * [math.inf]


RECOVERED: list[tuple[str, dict[str, Any]]] = [
    *itertools.product(("fedavg", "dpsgd", "fedsgd"), [{}, {"decay": 0.01}, *LINEAR]),
    *(("dpsgd", {"slow": 0.5, **one}) for one in ({}, *LINEAR)),  # a schedule of step sizes
    *((victim, {"clip": 0.5, "momentum": 0.9}) for victim in ("fedavg", "dpsgd", "fedsgd")),
]


@pytest.mark.parametrize(("victim", "constants"), RECOVERED, ids=str)
def test_gradients_behind_the_steps_are_recovered(victim: str, constants: dict[str, Any]) -> None:
    """In float32, against automatic differentiation in float64 at the same models."""
    keep = {"keep": True} if victim == "fedavg" else {}
    trace, truth = la.record(scenario(victim, {**constants, **keep}, "float32"))
    task = Task.build(trace.task, dtype=torch.float64)
    leaks = la.leaks(trace)
    assert len(leaks) == len(truth.node.unique())
    for leak in leaks:
        assert leak.theta is not None
        values = torch.linalg.pinv(leak.combination) @ leak.value
        x, y = truth.of(leak.node)
        for theta, value in zip(leak.theta, values, strict=True):
            own = mean_gradient(task, theta.double(), x.double(), y, constants.get("clip", 0.0))
            assert float((value - own).norm() / own.norm()) < 1e-4


def mean_gradient(
    task: Task, theta: torch.Tensor, x: torch.Tensor, y: torch.Tensor, clip: float
) -> torch.Tensor:
    """The mean over records of their gradients, which are clipped to a norm unless it is 0."""
    single = [task.gradient(theta, x[k : k + 1], y[k : k + 1]) for k in range(len(x))]
    if clip:
        single = [g * min(1.0, clip / float(g.norm())) for g in single]
    return torch.stack(single).mean(0)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_sum_of_the_gradients_of_local_steps_is_recovered(momentum: float) -> None:
    """Step k of a round counts 1 + momentum + ... + momentum^(3 - k) times."""
    trace, truth = la.record(scenario("fedavg", {"epochs": 3, "momentum": momentum}, "float32"))
    task = Task.build(trace.task, dtype=torch.float64)
    lr = float(str(trace.params["lr"]))
    leaks = la.leaks(trace)
    assert len(leaks) == len(truth.node.unique())
    for leak in leaks:
        assert leak.theta is not None
        values = torch.linalg.pinv(leak.combination) @ leak.value
        x, y = truth.of(leak.node)
        for theta, value in zip(leak.theta, values, strict=True):
            w = theta.double().requires_grad_(True)
            optimiser = torch.optim.SGD([w], lr=lr, momentum=momentum)
            own = torch.zeros_like(theta, dtype=torch.float64)
            for k in (1, 2, 3):
                w.grad = task.gradient(w.detach(), x.double(), y)
                own += sum(momentum**j for j in range(4 - k)) * w.grad
                optimiser.step()
            assert float((value - own).norm() / own.norm()) < 1e-4


@pytest.mark.parametrize("kind", ["adam", "adamw", "adagrad"])
@pytest.mark.parametrize("victim", ["fedavg", "dpsgd"])
def test_what_adam_hides_is_said(victim: str, kind: str) -> None:
    trace, _ = la.record(scenario(victim, {"optimiser": kind}))
    leaks = la.leaks(trace)
    assert len(leaks) == 0
    clients = [why for why in leaks.undetermined.values() if "server" not in why]
    assert clients
    assert all("show signs but not sizes" in why for why in clients)


WRITTEN = """
name = "written-steps"
start = "w[i] = w0\\nv[i] = 0"
round = '''
a = alpha / (1 + slow * (t - 1))
v[i] = momentum * v[i] + grad(w[i])
h[i -> neighbours] = (1 - a * decay) * w[i] - a * v[i]
w[i] = sum(j in closed_neighbours: W[i,j] * h[j -> i])
'''
[constants]
alpha = 0.1
slow = 0
momentum = 0
decay = 0
[matrices]
W = "uniform"
"""


@pytest.mark.parametrize(
    "constants",
    [{"slow": 0.5}, {"momentum": 0.9, "decay": 0.01}, {"slow": 0.5, "momentum": 0.9}],
    ids=str,
)
def test_steps_of_a_program_that_a_file_describes_are_recovered(
    tmp_path: Path, constants: dict[str, float]
) -> None:
    """Nodes on a ring: SGD of torch.optim with a scheduler, or with decoupled weight decay."""
    (tmp_path / "written.toml").write_text(WRITTEN)
    graph = la.Graph(4, ((0, 1), (0, 3), (1, 2), (2, 3)))
    task = Task.build(la.TaskSpec("mlp", {"hidden": "8"}, shape=(1, 4, 4), classes=3))
    random = torch.Generator().manual_seed(0)
    x = torch.rand(4, 1, 1, 4, 4, generator=random)
    w0 = task.init(random)
    models = [torch.nn.Parameter(w0.clone()) for _ in range(4)]
    decay = constants.get("decay", 0.0)
    slow = constants.get("slow", 0.0)
    optimisers = [
        torch.optim.SGD([w], lr=0.1, momentum=constants.get("momentum", 0.0)) for w in models
    ]
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(one, lambda t: 1 / (1 + slow * t)) for one in optimisers
    ]
    own: dict[tuple[int, int], torch.Tensor] = {}
    with la.Recorder(
        tmp_path / "own.pt",
        protocol=str(tmp_path / "written.toml"),
        task=task,
        graph=graph,
        params=constants,
        rounds=5,
        public={"w0": w0},
    ) as recorder:
        for t in range(1, 6):
            for i, w in enumerate(models):
                w.grad = task.gradient(w.detach(), x[i], torch.tensor([i % 3]))
                own[i, t] = w.grad.double()
                w.data.mul_(1 - optimisers[i].param_groups[0]["lr"] * decay)
                optimisers[i].step()
                schedules[i].step()
                recorder.send(round=t, src=i, dst=graph.neighbours[i], kind="h", value=w.detach())
            sent = torch.stack([w.detach().clone() for w in models])
            for i, near in enumerate(graph.neighbours):
                models[i].data = sent[[i, *near]].mean(0)
    leaks = la.leaks(la.load(tmp_path / "own.pt"))
    assert sorted(leak.node for leak in leaks) == [0, 1, 2, 3]
    for leak in leaks:
        values = torch.linalg.pinv(leak.combination) @ leak.value
        assert len(values) == 5
        for k, value in enumerate(values):
            exact = own[leak.node, k + 1]
            assert float((value - exact).norm() / exact.norm()) < 1e-4


def test_attack_and_report_say_what_adam_hides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "trace.pt")
    la.record(scenario("fedavg", {"optimiser": "adam"}), path)
    found = str(tmp_path / "out")
    assert main(["attack", path, "-o", found, "--progress", "none"]) == 0
    assert main(["report", found, "-f", "markdown"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("show signs but not sizes") >= 2


def test_the_weights_of_local_steps_are_part_of_a_leak() -> None:
    """With momentum .5, the update of three steps is 1.75 g_1 + 1.5 g_2 + g_3, times lr."""
    trace, _ = la.record(scenario("fedavg", {"epochs": 3, "momentum": 0.5}))
    leak = la.leaks(trace)[0]
    assert leak.inner == 3
    assert leak.inner_weight == pytest.approx(1.75 + 1.5 + 1)
    assert leak.step is None  # an attack that repeats plain steps would be wrong


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        ({"momentum": 1.0}, "expected 0 <= momentum < 1, got 1"),
        ({"nesterov": True}, "nesterov needs momentum > 0"),
        ({"optimiser": "adam", "momentum": 0.9}, "momentum and nesterov belong to optimiser=sgd"),
        ({"optimiser": "lion"}, "sgd, adam, adamw"),
    ],
)
def test_constants_that_an_optimiser_does_not_have_are_refused(
    constants: dict[str, Any], words: str
) -> None:
    with pytest.raises(LeakauditError, match=words):
        la.record(scenario("dpsgd", constants))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_noise_in_gradients_is_accounted_whatever_the_optimiser_does_with_it(
    momentum: float,
) -> None:
    """The Gaussian mechanism in 5 rounds: a record moves the mean of 2 by at most 2 C / 2."""
    constants = {"clip": 0.5, "sigma": 0.25, "momentum": momentum, "keep": True}
    views = la.bound(scenario("fedavg", constants))
    worst = max(view.bound.mu or 0.0 for view in views)
    assert worst == pytest.approx(5**0.5 * (2 * 0.5 / 2) / 0.25, rel=1e-9)
