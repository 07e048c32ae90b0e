"""Local trainings: the sum of gradients against a plain loop and against recorded FedAvg, its slope, and Inverting Gradients on it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import leakaudit as la
from leakaudit.core import registry
from leakaudit.core.errors import AttackError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.trace import TaskSpec
from leakaudit.inversion.search import local_training, objectives
from leakaudit.inversion.search.local_training import Local
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks import data
from leakaudit.tasks.task import Task

D = torch.float64


def tiny(act: str = "tanh") -> tuple[Task, Tensor]:
    """A small network and real 8x8 pictures in gray."""
    photos = data.load("photos")
    spec = TaskSpec(
        "convnet",
        {"act": act, "width": 6},
        shape=(1, 8, 8),
        classes=3,
        mean=(0.5,),
        std=(0.5,),
        levels=255,
    )
    return Task.build(spec, dtype=D), photos.x[::17, 1:2, 12:20, 12:20].double()


def trained(
    task: Task,
    theta: Tensor,
    x: Tensor,
    y: Tensor,
    rate: float,
    epochs: int,
    batch: int,
    decay: float,
) -> tuple[Tensor, int]:
    """FedAvg's client in its own words; its last model and how many steps it took."""
    w, steps = theta.clone(), 0
    for _ in range(epochs):
        for begin in range(0, len(x), batch):
            g = task.gradient(w, x[begin : begin + batch], y[begin : begin + batch])
            w, steps = (1 - rate * decay) * w - rate * g, steps + 1
    return w, steps


def update_leak(task: Task, theta: Tensor, x: Tensor, y: Tensor, local: Local) -> GradientLeak:
    end, steps = trained(
        task,
        theta,
        x,
        y,
        local.rate,
        local.steps // local.batches,
        local.batch,
        (1 - local.keep) / local.rate,
    )
    assert steps == local.steps
    value = ((local.keep**steps * theta - end) / local.rate)[None]
    one = torch.ones(1, 1, dtype=D)
    zero = torch.zeros(1, dtype=D)
    return GradientLeak(
        0,
        torch.zeros(1),
        one,
        value,
        zero,
        (0, task.layout.size),
        theta=theta[None],
        batch=local.batch,
        inner=steps,
        step=local.rate,
    )


@pytest.mark.parametrize(
    "local",
    [
        Local(1, 0.1, 5, 5),
        Local(4, 0.1, 5, 5),
        Local(6, 0.05, 5, 2),
        Local(3, 0.2, 5, 2, keep=0.98),
        Local(4, 0.1, 4, 2, keep=0.9),
    ],
)
def test_an_update_is_what_the_client_s_model_says(local: Local) -> None:
    task, x = tiny()
    theta, y = task.init(torch.Generator().manual_seed(0)), torch.arange(5)[: local.samples] % 3
    leak = update_leak(task, theta, x[: local.samples], y, local)
    got = local_training.update(task, local, theta, x[: local.samples], y)
    assert torch.allclose(got, leak.value[0], rtol=1e-10, atol=1e-12)
    assert torch.allclose(
        local_training.update(task, local, theta, x[: local.samples], y, graph=False),
        got,
        atol=1e-14,
    )
    target = objectives.target(leak, task, 1, D)
    assert local_training.misfit(target, task, local, x[: local.samples], y) < 1e-9
    assert local_training.misfit(target, task, local, x[5 : 5 + local.samples], y) > 0.1


@pytest.mark.parametrize("loss", [local_training.cosine, local_training.l2])
def test_the_slope_goes_through_all_steps(loss: object) -> None:
    """Against central differences of the objective, and against the slope with the local models held fixed, which is another one."""
    task, x = tiny()
    local, y, g = Local(4, 0.3, 4, 2), torch.tensor([0, 2, 1, 1]), torch.Generator().manual_seed(0)
    theta = task.init(g)
    target = objectives.target(update_leak(task, theta, x[:4], y, local), task, 1, D)
    z = x[4:8].clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(target, task, local, z, y), z)  # type: ignore[operator]
    for _ in range(3):
        way = torch.randn(z.shape, generator=g, dtype=D)
        ends = [
            float(loss(target, task, local, (z + e * way).detach(), y).detach())  # type: ignore[operator]
            for e in (1e-5, -1e-5)
        ]
        assert float((slope * way).sum()) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5)


def test_one_step_is_the_gradient_s_own_objective() -> None:
    task, x = tiny()
    local, y = Local(1, 0.0, 3, 3), torch.tensor([0, 2, 1])
    theta = task.init(torch.Generator().manual_seed(0))
    leak = replace(update_leak(task, theta, x[:3], y, replace(local, rate=0.1)), step=None)
    target = objectives.target(leak, task, 1, D)
    assert local_training.of(leak, None, None) == local
    for mine, plain in (
        (local_training.cosine, objectives.cosine),
        (local_training.l2, objectives.l2),
    ):
        expected = float(plain(target, task, x[3:6], y).detach())
        assert float(mine(target, task, local, x[3:6], y).detach()) == pytest.approx(
            expected, abs=1e-14
        )
    assert local_training.misfit(target, task, local, x[3:6], y) == pytest.approx(
        objectives.misfit(target, task, x[3:6], y), abs=1e-14
    )


@pytest.mark.parametrize(
    ("epochs", "batch", "decay"), [(3, 0, 0.0), (2, 2, 0.0), (2, 2, 0.3), (1, 3, 0.0)]
)
def test_recorded_fedavg_is_explained_by_its_own_records(
    epochs: int, batch: int, decay: float
) -> None:
    constants = {"epochs": epochs, "batch": batch, "decay": decay, "hidden": "7"}
    scenario = Scenario(
        victim="fedavg",
        nodes=3,
        graph="star",
        rounds=2,
        data="faces",
        samples=4,
        set=constants,
        dtype="float64",
        states=True,
    )
    recorded = recording.record(recording.plan(scenario), None)
    (leak,) = la.leaks(recorded.trace, nodes=[0])
    task = Task.build(recorded.trace.task, dtype=D)
    local = local_training.of(leak, None, 4, decay)
    assert (local.steps, local.batch) == (epochs * -(-4 // (batch or 4)), batch or 4)
    assert local_training.missing(leak, None, 4) is None
    x, y = recorded.truth_record.of(0)
    target = objectives.target(leak, task, 1, D)
    orders = [torch.tensor(o) for o in itertools.permutations(range(4))]
    assert (
        min(local_training.misfit(target, task, local, x[o].double(), y[o]) for o in orders) < 1e-8
    )


def test_what_is_missing_is_said() -> None:
    task, x = tiny()
    theta, y = task.init(torch.Generator().manual_seed(0)), torch.tensor([0, 2, 1, 1])
    leak = update_leak(task, theta, x[:4], y, Local(4, 0.1, 4, 2))
    assert local_training.missing(leak, None, None) is None
    assert "local steps of unknown size" in (
        local_training.missing(replace(leak, step=None), None, None) or ""
    )
    assert "mini-batches" in (local_training.missing(leak, None, 40) or "")
    assert "set batch=N" in (local_training.missing(replace(leak, batch=None), None, None) or "")
    with pytest.raises(AttackError, match="cannot use this leak"):
        attacked(replace(leak, step=None), task)


def attacked(leak: GradientLeak, task: Task, **settings: object) -> Reconstruction:
    found: Reconstruction = registry.configure(registry.get("attacks", "inverting"), settings)(
        leak, task, torch.Generator().manual_seed(0)
    )
    return found


def psnr(found: Tensor, x: Tensor) -> float:
    return -10 * math.log10(float((found - x).square().mean()) + 1e-30)


@pytest.mark.parametrize("sign", ["hard", "soft"])
def test_one_picture_from_three_local_steps(sign: str) -> None:
    """An attack that takes the update for one gradient of the first model does worse."""
    task, x = tiny("relu")
    theta, y, local = (
        task.init(torch.Generator().manual_seed(3)),
        torch.tensor([2]),
        Local(3, 0.5, 1, 1),
    )
    leak = update_leak(task, theta, x[4:5], y, local)
    found = attacked(leak, task, sign=sign, steps=200, tv=1e-4)
    naive = attacked(replace(leak, inner=1, step=None), task, sign=sign, steps=200, tv=1e-4)
    assert found.y is not None
    assert found.y.tolist() == [2]
    assert psnr(found.x, x[4:5]) > 20
    assert psnr(found.x, x[4:5]) > psnr(naive.x, x[4:5]) + 3
    assert found.residual < 0.5 * naive.residual
    assert sign == "soft" or found.certificate is Certificate.APPROXIMATE
