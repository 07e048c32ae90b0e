"""The one residual behind all attacks by optimisation, against autograd, finite differences and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import leakaudit as la
from leakaudit import objectives, optimise, priors
from leakaudit.leak import GradientLeak
from leakaudit.progress import watching

CLASSES = 4


def case(rounds: int = 3, noise: float = 0.0) -> tuple[la.Task, Tensor, Tensor, GradientLeak]:
    g = torch.Generator().manual_seed(0)
    spec = la.TaskSpec("mlp", {"hidden": 6, "act": "tanh"}, shape=(1, 3, 3), classes=CLASSES)
    task = la.Task.build(spec, dtype=torch.float64)
    x, y = torch.rand(2, 1, 3, 3, generator=g, dtype=torch.float64), torch.tensor([1, 3])
    theta = torch.stack([task.init(g) for _ in range(rounds)])
    one = torch.eye(rounds - 1, rounds, dtype=torch.float64)
    combination = one - one.roll(1, dims=1)
    value = combination @ torch.stack([task.gradient(w, x, y) for w in theta])
    std = torch.full((rounds - 1,), noise, dtype=torch.float64)
    return task, x, y, GradientLeak(0, torch.arange(rounds), combination, value, std, (0, task.layout.size), theta=theta, batch=2)


@pytest.mark.parametrize("objective", [objectives.l2, objectives.cosine])
def test_zero_at_the_truth_and_about_one_elsewhere(objective: optimise.Objective) -> None:
    task, x, y, leak = case()
    target = objectives.target(leak, task, 2, torch.float64)
    assert abs(objective(target, task, x, y).item()) < (1e-20 if objective is objectives.l2 else 1e-12)
    assert objective(target, task, torch.rand_like(x), y.flip(0)).item() > 0.05


def test_l2_is_the_plain_relative_residual_where_errors_are_equal() -> None:
    task, x, y, leak = case(noise=1e-3)
    target = objectives.target(leak, task, 2, torch.float64)
    other = x + 0.1
    got = leak.combination @ torch.stack([task.gradient(w, other, y) for w in leak.theta]) if leak.theta is not None else None
    assert got is not None
    expected = float((got - leak.value).norm() / leak.value.norm())
    assert math.isclose(math.sqrt(objectives.l2(target, task, other, y).item()), expected, rel_tol=1e-6)
    assert math.isclose(objectives.misfit(target, task, other, y), expected, rel_tol=1e-6)


@pytest.mark.parametrize("objective", [objectives.l2, objectives.cosine])
def test_slopes_through_both_gradients_are_right(objective: optimise.Objective) -> None:
    """Finite differences in float64; a detached second gradient or a wrong sign would miss by the size of the slope."""
    task, x, y, leak = case()
    target = objectives.target(leak, task, 2, torch.float64)
    soft = torch.nn.functional.one_hot(y, CLASSES).double().requires_grad_()
    start = (x + 0.05).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: objective(target, task, a, b), (start, soft), atol=1e-6)


def test_total_variation_by_hand() -> None:
    x = torch.tensor([[[[0.0, 1.0], [0.5, 0.5]]]])
    assert math.isclose(float(priors.total_variation(x)), (1.0 + 0.0) / 2 + (0.5 + 0.5) / 2)
    assert float(priors.total_variation(torch.rand(3, 5))) == 0


def rosenbrock(x: Tensor) -> Tensor:
    return (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2


def test_lbfgs_finds_a_known_minimum_and_stops() -> None:
    run = optimise.lbfgs(rosenbrock, (torch.tensor([-1.2, 1.0], dtype=torch.float64),), steps=50, goal=1e-16)
    assert run.ended == "fitted"
    assert run.steps < 50
    assert torch.allclose(run.point[0], torch.ones(2, dtype=torch.float64), atol=1e-7)


def test_signed_adam_stays_in_the_box_and_converges() -> None:
    start, aim = torch.zeros(2, dtype=torch.float64), torch.tensor([0.3, 2.0], dtype=torch.float64)
    run = optimise.signed_adam(lambda x: (x - aim).square().sum(), (start,), 2000, 0.1, lambda x: x.clamp(0, 1))
    assert torch.allclose(run.point[0], torch.tensor([0.3, 1.0], dtype=torch.float64), atol=1e-3)
    assert run.ended == "converged"


def test_not_a_number_leads_to_a_smaller_step_and_never_to_nan() -> None:
    def cliff(x: Tensor) -> Tensor:
        return torch.where(x < 1.5, (x - 1) ** 2, torch.tensor(float("nan"), dtype=x.dtype)).sum()

    run = optimise.lbfgs(cliff, (torch.tensor([-30.0], dtype=torch.float64),), steps=20, goal=1e-12)
    assert bool(run.point[0].isfinite().all())
    assert math.isfinite(run.objective)


def test_the_deadline_ends_a_search() -> None:
    with watching(seconds=0.0):
        run = optimise.lbfgs(rosenbrock, (torch.tensor([-1.2, 1.0]),), steps=1000)
    assert run.ended == "out of time"
    assert run.steps == 1


def test_restarts_go_on_until_one_is_good_enough() -> None:
    starts = iter([-4.0, 5.0, 100.0])

    def search(point: optimise.Point) -> optimise.Run:
        return optimise.Run(point, abs(float(point[0]) - 5), 1, 1)

    run = optimise.restarted(search, lambda: (torch.tensor([next(starts)]),), restarts=3, goal=0.5)
    assert float(run.point[0]) == 5.0
    assert run.steps == 2
    assert float(torch.tensor([next(starts)])) == 100.0
