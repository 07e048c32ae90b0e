"""Inverting Gradients against the published recipe: stronger at equal steps, and at a lower loss after half of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from leakaudit.core import registry
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.trace import TaskSpec
from leakaudit.inversion.search import adam, local_training, objectives, priors
from leakaudit.inversion.search.evaluate import Problems
from leakaudit.tasks import data
from leakaudit.tasks.task import Task

D = torch.float64


def leaked(task: Task, x: Tensor, y: Tensor, seed: int) -> GradientLeak:
    theta = task.init(torch.Generator().manual_seed(seed))
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


def attacked(task: Task, leak: GradientLeak, seed: int, **settings: Any) -> Reconstruction:
    made = registry.configure(registry.get("attacks", "inverting"), settings)
    found: Reconstruction = made(leak, task, torch.Generator().manual_seed(seed))
    return found


def published(
    task: Task, leak: GradientLeak, y: Tensor, steps: int, tv: float, g: torch.Generator
) -> Tensor:
    """The recipe of Geiping et al. 2020 in plain words, in normalised pixels z = (x - 1/2) / (1/2); tv: weight for pixels x."""
    assert leak.theta is not None
    aim = leak.value[0].float()
    z = torch.randn(len(y), *task.spec.shape, generator=g).requires_grad_()
    optimiser = torch.optim.Adam([z], lr=0.1)
    falls = torch.optim.lr_scheduler.MultiStepLR(
        optimiser, [int(steps * share) for share in (3 / 8, 5 / 8, 7 / 8)], 0.1
    )
    for _ in range(steps):
        g2 = task.gradient(leak.theta[0].float(), z * 0.5 + 0.5, y, create_graph=True)
        smooth = (z[..., 1:] - z[..., :-1]).abs().mean() + (
            z[..., 1:, :] - z[..., :-1, :]
        ).abs().mean()
        cost = 1 - (g2 * aim).sum() / g2.norm() / aim.norm() + tv / 2 * smooth
        z.grad = torch.autograd.grad(cost, z)[0].sign()
        optimiser.step()
        falls.step()
        with torch.no_grad():
            z.clamp_(-1, 1)
    return z.detach() * 0.5 + 0.5


def loss(task: Task, leak: GradientLeak, x: Tensor, y: Tensor, tv: float) -> float:
    """One minus cosine plus total variation, in plain words."""
    assert leak.theta is not None
    g = task.gradient(leak.theta[0], x.double(), y)
    cosine = float(g @ leak.value[0] / g.norm() / leak.value[0].norm())
    return (
        1
        - cosine
        + tv
        * float(
            (x[..., 1:] - x[..., :-1]).abs().mean() + (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
        )
    )


def psnr(found: Tensor, x: Tensor) -> float:
    return -10 * math.log10(float((found - x).square().mean()))


def test_what_is_minimised_is_the_published_loss() -> None:
    photos = data.load("photos")
    task = Task.build(photos.spec("convnet", {"width": 4}), dtype=D)
    x, y = photos.x[5:6].double(), photos.y[5:6]
    leak = leaked(task, x, y, 0)
    other = photos.x[40:41].double()
    mine = objectives.cosine(
        objectives.target(leak, task, 1, D), task, other, y
    ) + 0.3 * priors.total_variation(other)
    assert float(mine.detach()) == pytest.approx(loss(task, leak, other, y, 0.3), rel=1e-12)
    assert loss(task, leak, x, y, 0.0) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("sign", ["hard", "soft"])
def test_more_starts_leave_no_higher_loss(sign: str) -> None:
    spec = TaskSpec(
        "convnet", {"width": 4}, shape=(1, 8, 8), classes=3, mean=(0.5,), std=(0.5,), levels=255
    )
    task = Task.build(spec, dtype=D)
    x, y = data.load("photos").x[5:6, :1, 12:20, 12:20].double(), torch.tensor([2])
    leak = leaked(task, x, y, 1)
    settings: dict[str, Any] = {"sign": sign, "steps": 60, "dtype": "float64"}
    few, many = (
        loss(task, leak, attacked(task, leak, 0, restarts=n, **settings).x, y, 0.02) for n in (1, 4)
    )
    assert many <= few + 1e-3  # the loss of the last step is taken before it is made


def smooth() -> tuple[Task, Tensor, Tensor]:
    """A network without corners, so that rounding does not grow into another picture."""
    spec = TaskSpec(
        "convnet",
        {"width": 4, "act": "tanh"},
        shape=(1, 8, 8),
        classes=3,
        mean=(0.5,),
        std=(0.5,),
        levels=255,
    )
    return (
        Task.build(spec, dtype=D),
        data.load("photos").x[5::17, :1, 12:20, 12:20].double(),
        torch.tensor([2, 0, 1, 1]),
    )


def test_leaks_attacked_together_give_what_each_gives_alone_and_local_trainings_go_their_own_way() -> (
    None
):
    task, x, y = smooth()
    leaks = [leaked(task, x[k : k + 1], y[k : k + 1], k) for k in range(4)]
    theta = leaks[3].theta
    assert theta is not None
    update = local_training.update(
        task, local_training.Local(2, 0.1, 1, 1), theta[0], x[3:4], y[3:4], graph=False
    )
    leaks[3] = replace(leaks[3], value=update[None], inner=2, step=0.1)
    made = registry.configure(
        registry.get("attacks", "inverting"), {"steps": 60, "dtype": "float64", "restarts": 2}
    )
    found = dict(made.many(leaks, task, [torch.Generator().manual_seed(k) for k in range(4)]))
    assert sorted(found) == [0, 1, 2, 3]
    for k, leak in enumerate(leaks):
        alone = made(leak, task, torch.Generator().manual_seed(k))
        assert torch.allclose(found[k].x, alone.x, atol=1e-5)
        assert "(120 evaluations)" in found[k].note
        assert float((found[k].x - x[k]).square().mean()) < 0.05


@pytest.mark.parametrize("slopes", ["raw", "soft", "hard"])
def test_searches_together_take_the_steps_of_one_search(slopes: Any) -> None:
    """Quadratics of their own size and centre, against torch's Adam; one is not a number beyond a wall and turns back."""
    centre = torch.linspace(-2, 2, 12, dtype=D).reshape(3, 4)

    def objective(given: tuple[Tensor, ...], point: tuple[Tensor, ...]) -> Tensor:
        (middle, scale, wall), (z,) = given, point
        return scale * (z - middle).square().sum(1) + torch.where(z.amax(1) > wall, torch.nan, 0.0)

    given = (
        centre,
        torch.tensor([1.0, 3.0, 0.2], dtype=D),
        torch.tensor([9.0, 9.0, 0.25], dtype=D),
    )
    start, schedule = torch.zeros(3, 4, dtype=D), adam.RateSchedule(30, 0.1, slopes)
    problems = Problems(objective, given, torch.zeros(3), True).at((start,))
    runs = adam.minimise(problems, start, schedule, lambda z: z.clamp(-1, 1), "test")
    for k in range(2):
        z = start[k].clone().requires_grad_()
        torchs = torch.optim.Adam([z], lr=schedule.rate)
        for turn in range(30):
            value = objective(tuple(t[k : k + 1] for t in given), (z[None],))[0]
            (slope,) = torch.autograd.grad(value, z)
            z.grad = adam.shaped(slope, slopes)
            torchs.param_groups[0]["lr"] = schedule.at(turn)
            torchs.step()
            with torch.no_grad():
                z.clamp_(-1, 1)
        assert torch.allclose(runs[k].point[0], z.detach(), rtol=1e-9)
        assert runs[k].objective == pytest.approx(value.item(), rel=1e-9)
        assert (runs[k].steps, runs[k].evaluations, runs[k].ended) == (30, 30, "stopped")
    assert math.isfinite(runs[2].objective)
    assert 0.1 < float(runs[2].point[0].max()) < 0.4


@pytest.mark.slow
def test_it_is_stronger_than_the_recipe_at_equal_steps_and_lower_after_half_of_them() -> None:
    """Both with the better of two weights of total variation; means over four pictures and networks."""
    photos = data.load("photos")
    task = Task.build(photos.spec("convnet"), dtype=D)
    theirs, ours, low, lower = ({w: 0.0 for w in (0.02, 0.06)} for _ in range(4))
    for k in range(4):
        x, y = photos.x[5::17][k : k + 1].double(), photos.y[5::17][k : k + 1]
        leak = leaked(task, x, y, k)
        for w in theirs:
            recipe, mine = (
                published(task, leak, y, 300, w, torch.Generator().manual_seed(k)),
                attacked(task, leak, k, steps=300, tv=w).x,
            )
            half = attacked(task, leak, k, steps=150, tv=w).x
            theirs[w], ours[w] = theirs[w] + psnr(recipe, x) / 4, ours[w] + psnr(mine, x) / 4
            low[w], lower[w] = (
                low[w] + loss(task, leak, recipe, y, w),
                lower[w] + loss(task, leak, half, y, w),
            )
    assert max(ours.values()) > max(theirs.values()) + 2
    assert max(lower[w] / low[w] for w in low) < 0.5


def test_a_gradient_that_nearly_vanished_is_no_error() -> None:
    """Its squared rounding is below the least number of float32, in which the search runs."""
    spec = TaskSpec(
        "convnet", {"width": 4}, shape=(1, 8, 8), classes=3, mean=(0.5,), std=(0.5,), levels=255
    )
    task = Task.build(spec, dtype=D)
    x, y = data.load("photos").x[5:6, :1, 12:20, 12:20].double(), torch.tensor([2])
    leak = leaked(task, x, y, 1)
    found = attacked(task, replace(leak, value=1e-8 * leak.value), 0, steps=60)
    assert bool(found.x.isfinite().all())
    assert torch.allclose(found.x, attacked(task, leak, 0, steps=60).x, atol=1e-3)
