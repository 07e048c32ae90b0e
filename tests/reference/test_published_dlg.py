"""DLG and iDLG exactly as published, by settings: against the published loop, run independently."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from leakaudit.core import registry
from leakaudit.core.leak import GradientLeak
from leakaudit.core.trace import TaskSpec
from leakaudit.inversion import attacking
from leakaudit.tasks.task import Task

PUBLISHED: dict[str, Any] = {
    "search": "published",
    "space": "pixels",
    "start": "normal",
    "restarts": 1,
    "goal": 0.0,
}


def planted(model: str) -> tuple[Task, Tensor, GradientLeak]:
    """A task in which inputs are not normalised, one record, and its gradient."""
    args: dict[str, Any] = {"hidden": (16,), "act": "sigmoid"} if model == "mlp" else {}
    spec = TaskSpec(model, args, shape=(1, 12, 12), classes=5)
    task = Task.build(spec, dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    theta = 3 * task.init(generator)
    x = torch.rand(1, 1, 12, 12, generator=generator, dtype=torch.float64)
    gradient = task.gradient(theta, x, torch.tensor([2]))
    leak = GradientLeak(
        0,
        torch.tensor([1]),
        torch.ones(1, 1, dtype=torch.float64),
        gradient[None],
        torch.full((1,), 1e-18, dtype=torch.float64),
        (0, task.layout.size),
        theta=theta[None],
        batch=1,
    )
    return task, x, leak


def published(
    task: Task, leak: GradientLeak, generator: Generator, steps: int, label: int | None
) -> tuple[Tensor, float]:
    """The loop of github.com/mit-han-lab/dlg (and iDLG, with a known label)."""
    assert leak.theta is not None
    torch.nn.utils.vector_to_parameters(leak.theta[0], task.module.double().parameters())
    parameters = list(task.module.parameters())
    original = [g.reshape(p.shape) for g, p in zip(
        leak.value[0].split([p.numel() for p in parameters]), parameters, strict=True
    )]  # fmt: skip
    dummy = torch.randn(1, 1, 12, 12, generator=generator, dtype=torch.float64).requires_grad_()
    variables = [dummy]
    if label is None:
        soft = torch.randn(1, 5, generator=generator, dtype=torch.float64).requires_grad_()
        variables.append(soft)
    optimizer = torch.optim.LBFGS(variables)

    def closure() -> Tensor:
        optimizer.zero_grad()
        pred = task.module(dummy)
        if label is None:
            loss = torch.mean(torch.sum(-F.softmax(soft, -1) * F.log_softmax(pred, -1), 1))
        else:
            loss = F.cross_entropy(pred, torch.tensor([label]))
        grads = torch.autograd.grad(loss, parameters, create_graph=True)
        diff = torch.zeros((), dtype=torch.float64)
        for gx, gy in zip(grads, original, strict=True):
            diff = diff + ((gx - gy) ** 2).sum()
        diff.backward()
        return diff

    for _ in range(steps):
        optimizer.step(closure)
    return dummy.detach(), float(closure().detach())


@pytest.mark.parametrize("name", ["dlg", "idlg"])
@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_the_search_is_that_of_the_published_loop(name: str, model: str) -> None:
    task, _, leak = planted(model)
    for steps in (1, 2):
        generator = torch.Generator().manual_seed(steps)
        label = None if name == "dlg" else 2
        x, loss = published(task, leak, generator, steps, label)
        settings = {**PUBLISHED, "steps": steps, "dtype": "float64"}
        chosen = registry.configure(registry.get("attacks", name), settings)
        ours = chosen(leak, task, torch.Generator().manual_seed(steps))
        # A report shows pixels within their range.
        assert torch.allclose(ours.x.double(), x.clamp(0, 1), rtol=1e-5, atol=1e-6), (steps, model)
        relative = loss**0.5 / float(leak.value.norm())
        if bool((x == x.clamp(0, 1)).all()):
            assert ours.residual == pytest.approx(relative, rel=1e-4)


def test_published_settings_depend_on_the_start() -> None:
    """Without a line search most starts of a small network fail, and others recover the record."""
    task, x, leak = planted("mlp")
    errors = []
    for seed in range(1, 4):
        random = torch.Generator().manual_seed(seed)
        found = attacking.attack_one(leak, task, "idlg", random, **PUBLISHED, steps=60)
        errors.append(float((found.x.double() - x).square().mean()))
        assert "after 60 steps" in found.note
    assert min(errors) < 1e-8
    assert max(errors) > 0.1


def test_a_search_that_diverges_ends_with_finite_numbers() -> None:
    """Without a line search L-BFGS may leave the range of numbers, as the published code does."""
    task, _, leak = planted("lenet")
    assert leak.theta is not None
    wild = GradientLeak(
        0, leak.rounds, leak.combination, 1e6 * leak.value, leak.std, leak.columns,
        theta=100 * leak.theta, batch=1,
    )  # fmt: skip
    found = attacking.attack_one(
        wild, task, "dlg", torch.Generator().manual_seed(0), **PUBLISHED, steps=5
    )
    assert bool(found.x.isfinite().all())


def test_settings_are_checked() -> None:
    with pytest.raises(Exception, match="search"):
        registry.configure(registry.get("attacks", "dlg"), {"search": "none"})
