"""GradInversion's priors against plain numpy, its searches, and the attack itself."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from leakaudit._util import assignment
from leakaudit.core import registry
from leakaudit.core.errors import AttackError, LeakauditError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.progress import watching
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.trace import TaskSpec
from leakaudit.inversion.search import adam, priors
from leakaudit.inversion.search.evaluate import Problems
from leakaudit.inversion.search.optimise import Point
from leakaudit.tasks import batch_norm, data
from leakaudit.tasks.task import Task

D = torch.float64


def normed(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A small network with three layers of batch normalisation."""
    layers: list[nn.Module] = []
    for before, after, stride in ((shape[0], 8, 1), (8, 16, 2), (16, 16, 2)):
        layers += [nn.Conv2d(before, after, 3, stride, 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 9, outputs))


def normed_task(bn: str) -> tuple[Task, Tensor]:
    """The middles of faces, 12x12."""
    spec = TaskSpec(
        f"{__name__}:normed",
        {"bn": bn},
        shape=(1, 12, 12),
        classes=4,
        mean=(0.5,),
        std=(0.5,),
        levels=255,
    )
    return Task.build(spec, dtype=D, trusted=True), data.load("faces").x[
        :16, :, 6:18, 6:18
    ].double()


def gradient_leak(task: Task, theta: Tensor, x: Tensor, y: Tensor) -> GradientLeak:
    value, one = task.gradient(theta, x, y)[None], torch.ones(1, 1, dtype=D)
    return GradientLeak(
        0,
        torch.zeros(1),
        one,
        value,
        torch.zeros(1, dtype=D),
        (0, task.layout.size),
        theta=theta[None],
        batch=len(x),
    )


def attacked(
    name: str, leak: GradientLeak, task: Task, seed: int = 0, **settings: object
) -> Reconstruction:
    made = registry.configure(
        registry.get("attacks", name), {k: v for k, v in settings.items() if k != "statistics"}
    )
    made = replace(made, statistics=settings["statistics"]) if "statistics" in settings else made
    found: Reconstruction = made(leak, task, torch.Generator().manual_seed(seed))
    return found


def psnr(found: Tensor, x: Tensor) -> float:
    """Mean over the images, each with its partner."""
    pairs = assignment.match(found, x)
    errors = (found[pairs.found].double() - x[pairs.true]).square().flatten(1).mean(1)
    return float((-10 * errors.log10()).mean())


# --- priors ------------------------------------------------------------------------------------------------------------


def hooks(task: Task) -> int:
    """Hooks on all layers: what a task has of its own, and what a forward pass left behind."""
    return sum(len(layer._forward_pre_hooks) for layer in task.module.modules())


@pytest.mark.parametrize("bn", ["train", "eval"])
def test_batch_statistics_are_means_and_variances_of_what_the_layers_see(bn: str) -> None:
    task, x = normed_task(bn)
    theta = task.init(torch.Generator().manual_seed(0))
    before = hooks(task)
    found = batch_norm.batch_statistics(task, theta, x[:5])
    parts = task.layout.split(theta)
    inside = torch.conv2d((x[:5] - 0.5) / 0.5, parts["0.weight"], parts["0.bias"], 1, 1).numpy()
    assert list(found) == ["1", "4", "7"]
    assert np.allclose(found["1"][0], inside.mean((0, 2, 3)))
    assert np.allclose(found["1"][1], inside.var((0, 2, 3), ddof=1))
    assert hooks(task) == before


def test_the_prior_is_zero_at_the_truth_and_grows_away_from_it() -> None:
    task, x = normed_task("train")
    theta = task.init(torch.Generator().manual_seed(0))
    known = batch_norm.batch_statistics(task, theta, x[:5])
    assert float(priors.apart(batch_norm.batch_statistics(task, theta, x[:5]), known)) < 1e-20
    z = torch.rand(
        x[:5].shape, generator=torch.Generator().manual_seed(0), dtype=D
    ).requires_grad_()
    far = priors.apart(batch_norm.batch_statistics(task, theta, z), known)
    assert float(far.detach()) > 0.1
    (slope,) = torch.autograd.grad(far, z)
    moved = (z - 0.1 * slope / slope.abs().max()).detach()
    nearer = priors.apart(batch_norm.batch_statistics(task, theta, moved), known)
    assert float(nearer) < float(far.detach())
    layers = []
    for name, (a, b) in batch_norm.batch_statistics(task, theta, z.detach()).items():
        mean, var = known[name]
        layers.append(
            float(
                (a - mean).square().mean() / var.mean()
                + (b - var).square().mean() / var.mean() ** 2
            )
        )
    expected = (10 * layers[0] + sum(layers[1:])) / 12
    assert float(far.detach()) == pytest.approx(expected, rel=1e-12)


def test_running_statistics_count_where_they_say_something() -> None:
    assert priors.running_statistics(normed_task("train")[0]) is None
    task, _ = normed_task("eval")
    assert priors.running_statistics(task) is None
    worn = replace(
        task, buffers={n: b + 0.5 if n.endswith("mean") else b for n, b in task.buffers.items()}
    )
    found = priors.running_statistics(worn)
    assert found is not None
    assert bool((found["1"][0] == 0.5).all())
    assert batch_norm.normalises(task)


@pytest.mark.parametrize("by", [(0, 0), (2, -1), (-3, 3)])
def test_a_moved_picture_is_moved_back(by: tuple[int, int]) -> None:
    x = data.load("photos").x[40].double()
    moved = torch.roll(x, by, (1, 2))
    back = priors.shift(moved, x, 3)
    assert torch.allclose(back[:, 4:-4, 4:-4], x[:, 4:-4, 4:-4])


def test_the_consensus_orders_and_moves_each_search_and_keeps_classes_apart() -> None:
    x = data.load("photos").x[[3, 60, 120]].double()
    y = torch.tensor([1, 1, 0])
    other = torch.stack([torch.roll(x[1], (1, 0), (1, 2)), x[0], x[2]])
    middle = priors.consensus(torch.stack([x, other]), y, 0, 2)
    inside = (..., slice(3, -3), slice(3, -3))
    assert torch.allclose(middle[0][inside], x[inside])
    assert torch.allclose(middle[1][inside], x[[1, 0, 2]][inside])
    crossed = priors.consensus(torch.stack([x, x[[2, 1, 0]]]), y, 0, 0)
    assert not torch.allclose(crossed[0][0], x[0])


# --- Adam -----------------------------------------------------------------------------------------------------------------


def test_the_schedule_falls() -> None:
    plan = adam.RateSchedule(100, 0.2)
    assert [plan.at(k) for k in (0, 99)] == pytest.approx(
        [0.2, 0.2 * 0.5 * (1 + math.cos(0.99 * math.pi))]
    )
    slope = torch.tensor([3.0, -1.0, 0.0])
    assert adam.shaped(slope, "hard").tolist() == [1, -1, 0]
    assert torch.allclose(
        adam.shaped(slope, "soft"), torch.tensor([3 / (3 + 4 / 3), -1 / (1 + 4 / 3), 0])
    )


def test_several_searches_reach_their_minimum_and_survive_nan() -> None:
    steps: list[int] = []

    def objective(search: Point, point: Point) -> Tensor:
        value = (point[0] - search[0][:, None]).square().sum(1)
        return value * (torch.nan if steps[-1] == 7 else 1.0)

    def between(k: int, x: Tensor, values: Tensor) -> None:
        steps.append(k)

    starts, g = torch.tensor([[0.0] * 3, [4.0] * 3], dtype=D), torch.Generator().manual_seed(0)
    problems = Problems(objective, (torch.arange(2),), torch.zeros(2)).at((starts,))
    noisy = adam.RateSchedule(300, 0.1, langevin=0.01)
    runs = adam.minimise(problems, starts, noisy, lambda x: x, "here", between, g)
    assert [run.steps for run in runs] == [300, 300]
    for search, run in enumerate(runs):
        assert torch.allclose(run.point[0], torch.full((3,), float(search), dtype=D), atol=0.02)
    with watching(seconds=0.0):
        plan = adam.RateSchedule(300, 0.1)
        runs = adam.minimise(problems, starts, plan, lambda x: x, "here", between)
    assert [(run.steps, run.ended) for run in runs] == [(1, "out of time")] * 2


# --- attacks --------------------------------------------------------------------------------------------------------------


def test_batch_statistics_and_their_absence_are_told() -> None:
    task, x = normed_task("train")
    theta, y = task.init(torch.Generator().manual_seed(0)), torch.tensor([0, 2, 2])
    leak = gradient_leak(task, theta, x[:3], y)
    found = attacked("gradinversion", leak, task, steps=4, seeds=2)
    assert found.x.shape == (3, 1, 12, 12)
    assert found.y is not None
    assert found.y.tolist() == [0, 2, 2]
    assert "labels by pooled counts" in found.note
    assert "no batch statistics" in found.note
    known = {
        n: (m.detach(), v.detach())
        for n, (m, v) in batch_norm.batch_statistics(task, theta, x[:3]).items()
    }
    assert (
        "no batch statistics"
        not in attacked("gradinversion", leak, task, steps=4, seeds=1, statistics=known).note
    )


def test_it_needs_images() -> None:
    task = Task.build(TaskSpec("logistic", {}, shape=(5,), classes=3), dtype=D)
    g = torch.Generator().manual_seed(0)
    leak = gradient_leak(
        task, task.init(g), torch.randn(1, 5, generator=g, dtype=D), torch.tensor([1])
    )
    with pytest.raises(AttackError, match="recovers images"):
        attacked("gradinversion", leak, task)


@pytest.mark.slow
def test_batch_statistics_help_a_batch_of_four() -> None:
    """GradInversion with the victim's batch statistics against Inverting Gradients at the same number of evaluations."""
    task, x = normed_task("train")
    theirs, ours = [], []
    for k in range(2):
        theta, y = task.init(torch.Generator().manual_seed(k)), torch.tensor([0, 1, 2, 3])
        images = x[4 * k : 4 * k + 4]
        leak = gradient_leak(task, theta, images, y)
        known = {
            n: (m.detach(), v.detach())
            for n, (m, v) in batch_norm.batch_statistics(task, theta, images).items()
        }
        ours.append(
            psnr(
                attacked("gradinversion", leak, task, k, steps=150, seeds=2, statistics=known).x,
                images,
            )
        )
        theirs.append(psnr(attacked("inverting", leak, task, k, steps=300).x, images))
    assert sum(ours) / 2 > sum(theirs) / 2 + 2


# --- statistics from a trace, or from a file --------------------------------------------------


def test_statistics_of_the_trace_are_read_and_used() -> None:
    """Public tensors of the trace that belong to a node's gradient of one round."""
    import leakaudit as la
    from leakaudit.core.adversary import Adversary
    from leakaudit.protocols import recording
    from leakaudit.protocols.scenario import Scenario
    from leakaudit.views.extraction import batch_statistics

    scenario = Scenario("fedsgd", 2, "star", 2, "faces", 2, model="resnet10")
    plan = recording.plan(scenario)
    trace = recording.record(plan, None).trace
    (leak, _) = la.leaks(trace)
    assert leak.theta is not None
    x = torch.rand(2, 1, 25, 25)
    at = int(leak.rounds[1])
    own = batch_norm.batch_statistics(plan.task, leak.theta[1], x)
    public = dict(trace.public)
    for layer, (mean, var) in own.items():
        public[f"statistics.0.{at}.{layer}.mean"] = mean.float()
        public[f"statistics.0.{at}.{layer}.var"] = var.float()
    public["statistics.1.1.alone.mean"] = torch.zeros(3)  # without its variance it is none
    told = replace(trace, public=public)
    (mine, other) = la.leaks(told)
    assert set(mine.statistics) == {at}
    assert set(mine.statistics[at]) == set(own)
    assert other.statistics == {}
    attack = registry.configure(registry.get("attacks", "gradinversion"), {"steps": 1, "seeds": 1})
    assert attack.idle(mine, plan.task) is None
    assert "no batch statistics" in attack.idle(other, plan.task)
    found = attack(mine, plan.task, torch.Generator().manual_seed(0))
    assert found.note.count("batch statistics of the trace") == 1
    secret = Adversary(knows=frozenset({"w0", "samples"}))
    assert batch_statistics.disclosed(secret.view(told), 0, [at]) == {}


def test_statistics_of_a_file(tmp_path: Path) -> None:
    task, x = normed_task("train")
    theta = task.init(torch.Generator().manual_seed(0))
    y = torch.arange(4)
    leak = gradient_leak(task, theta, x[:4], y)
    own = batch_norm.batch_statistics(task, theta, x[:4])
    arrays: dict[str, Any] = {}
    for name, (mean, var) in own.items():
        arrays[f"{name}.mean"] = mean.numpy()
        arrays[f"{name}.var"] = var.numpy()
    path = tmp_path / "bn.npz"
    np.savez(path, **arrays)
    settings: dict[str, Any] = {"steps": 60, "seeds": 1, "labels": (0, 1, 2, 3)}
    by_file = attacked("gradinversion", leak, task, file=str(path), **settings)
    by_value = attacked("gradinversion", leak, task, statistics=own, **settings)
    assert torch.allclose(by_file.x, by_value.x, atol=1e-6)
    assert "batch statistics of" in by_file.note
    arrays.pop("4.var")
    np.savez(path, **arrays)
    with pytest.raises(LeakauditError, match=r"arrays 4\.mean and 4\.var of 16 numbers"):
        attacked("gradinversion", leak, task, file=str(path), **settings)
    path.write_bytes(b"no archive")
    with pytest.raises(LeakauditError, match="cannot be read"):
        attacked("gradinversion", leak, task, file=str(path), **settings)
