"""Gradients of known images at known models, without a recording."""

from __future__ import annotations

import lookalikes
import torch
from torch import Generator, Tensor

from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks.task import Task

# Rounding of a gradient of sums over thousands of terms, in units of the number format.
ROUNDING = 8.0


def leak_of(
    task: Task, x: Tensor, y: Tensor, dtype: torch.dtype, thetas: list[Tensor] | None = None
) -> GradientLeak:
    """Plant the gradient at one model, or the difference of the gradients at two."""
    models = torch.stack(thetas or [task.init(Generator().manual_seed(0))]).to(dtype)
    combination = torch.tensor([[1.0, -1.0][: len(models)]], dtype=torch.float64)
    gradients = torch.stack([task.gradient(w, x.to(dtype), y) for w in models]).double()
    size = float(gradients.square().mean().sqrt())
    return GradientLeak(
        0,
        torch.arange(1, len(models) + 1),
        combination,
        combination @ gradients,
        torch.tensor([ROUNDING * torch.finfo(dtype).eps * size]),
        (0, task.layout.size),
        theta=models.double(),
        batch=len(x),
        wire=torch.finfo(dtype).eps,
    )


def faces(count: int, seed: int) -> Tensor:
    """Ordinary faces."""
    plan = lookalikes.planned(
        Scenario(victim="fedsgd", nodes=2, data="faces", samples=count, seed=seed), "ordinary", seed
    )
    found: Tensor = (plan.source.x[plan.rows[-1]].double() * 255).round() / 255
    return found


def check(found: Reconstruction, x: Tensor, y: Tensor) -> None:
    """All images are exact, bit for bit, with their labels."""
    assert found.certificate is Certificate.EXACT, found.note
    assert len(found.x) == len(x)
    order = [int((x - one).abs().flatten(1).amax(1).argmin()) for one in found.x.double()]
    assert sorted(order) == list(range(len(x)))
    assert bool((found.x == x[order].to(found.x.dtype)).all())
    assert found.y is not None
    assert found.y.tolist() == y[order].tolist()
