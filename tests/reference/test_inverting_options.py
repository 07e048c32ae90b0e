"""Layer weights and L-BFGS of Inverting Gradients, as in the published code (inversefed)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from leakaudit.core import registry
from leakaudit.core.leak import GradientLeak
from leakaudit.core.trace import TaskSpec
from leakaudit.inversion.search import objectives, priors
from leakaudit.tasks.task import Task


def planted() -> tuple[Task, Tensor, GradientLeak]:
    spec = TaskSpec("mlp", {"hidden": (8,), "act": "sigmoid"}, shape=(1, 6, 6), classes=3)
    task = Task.build(spec, dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    theta = 2 * task.init(generator)
    x = torch.rand(1, 1, 6, 6, generator=generator, dtype=torch.float64)
    leak = GradientLeak(
        0,
        torch.tensor([1]),
        torch.ones(1, 1, dtype=torch.float64),
        task.gradient(theta, x, torch.tensor([2]))[None],
        torch.full((1,), 1e-18, dtype=torch.float64),
        (0, task.layout.size),
        theta=theta[None],
        batch=1,
    )
    return task, x, leak


def published_cost(trial: list[Tensor], given: list[Tensor], weights: str) -> Tensor:
    """`reconstruction_costs` of inversefed, with cost_fn='sim' and all indices."""
    if weights == "linear":
        factor = torch.arange(len(given), 0, -1, dtype=torch.float64) / len(given)
    elif weights == "exp":
        factor = torch.arange(len(given), 0, -1, dtype=torch.float64).softmax(dim=0)
        factor = factor / factor[0]
    else:
        factor = given[0].new_ones(len(given))
    pnorm = [torch.zeros(()), torch.zeros(())]
    costs = torch.zeros(())
    for i in range(len(given)):
        costs = costs - (trial[i] * given[i]).sum() * factor[i]
        pnorm[0] = pnorm[0] + trial[i].pow(2).sum() * factor[i]
        pnorm[1] = pnorm[1] + given[i].pow(2).sum() * factor[i]
    return 1 + costs / pnorm[0].sqrt() / pnorm[1].sqrt()


def split(task: Task, flat: Tensor) -> list[Tensor]:
    return list(task.layout.split(flat).values())


@pytest.mark.parametrize("weights", ["equal", "linear", "exp"])
def test_the_cosine_is_that_of_the_published_code(weights: Any) -> None:
    task, x, leak = planted()
    target = objectives.target(leak, task, 1, torch.float64)
    factors = objectives.factors(task, target.columns, weights, torch.float64)
    target = replace(target, factors=factors)
    assert leak.theta is not None
    other = task.gradient(leak.theta[0], 1 - x, torch.tensor([2]))
    expected = published_cost(split(task, other), split(task, leak.value[0]), weights)
    assert float(target.cosine(other[None])) == pytest.approx(float(expected), rel=1e-10)


@pytest.mark.parametrize("weights", ["equal", "exp"])
def test_lbfgs_is_that_of_the_published_code(weights: str) -> None:
    """Its loop: torch's L-BFGS on the cost and total variation, boxed after every step."""
    task, _, leak = planted()
    assert leak.theta is not None
    theta = leak.theta[0]
    x = torch.randn(
        1, 1, 6, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    ).requires_grad_()
    optimizer = torch.optim.LBFGS([x])
    given = split(task, leak.value[0])

    def closure() -> Tensor:
        optimizer.zero_grad()
        gradient = task.gradient(theta, x, torch.tensor([2]), create_graph=True)
        loss = published_cost(split(task, gradient), given, weights)
        loss = loss + 1e-3 * priors.total_variation(x)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
        x.data.clamp_(0, 1)
    settings = {
        "optimiser": "lbfgs", "weights": weights, "steps": 2, "tv": 1e-3, "labels": (2,),
        "dtype": "float64",
    }  # fmt: skip
    attack = registry.configure(registry.get("attacks", "inverting"), settings)
    found = attack(leak, task, torch.Generator().manual_seed(5))
    assert torch.allclose(found.x.double(), x.detach(), rtol=1e-5, atol=1e-6)
    assert "L-BFGS stopped after 2 steps" in found.note


def test_weights_change_a_search_by_adam() -> None:
    task, x, leak = planted()
    errors = {}
    for weights in ("equal", "linear", "exp"):
        settings = {"weights": weights, "steps": 150, "tv": 1e-4, "labels": (2,)}
        attack = registry.configure(registry.get("attacks", "inverting"), settings)
        found = attack(leak, task, torch.Generator().manual_seed(5))
        errors[weights] = float((found.x.double() - x).square().mean())
    assert len(set(errors.values())) == 3
    assert max(errors.values()) < 0.05
