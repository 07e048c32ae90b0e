"""The view of somebody who sees one gradient of a model that is known."""

from __future__ import annotations

import torch
from torch import Tensor

import leakaudit as la
from leakaudit.tasks.task import Task


def leaked(task: Task, gradient: Tensor, theta: Tensor, batch: int = 1) -> la.Leaks:
    """The leaks of a node whose gradient (d,) at `theta` (d,) over `batch` records is seen."""
    leak = la.GradientLeak(
        node=0,
        rounds=torch.tensor([1]),
        combination=torch.ones(1, 1),
        value=gradient[None],
        std=torch.zeros(1),
        columns=(0, task.layout.size),
        theta=theta[None],
        batch=batch,
    )
    return la.Leaks(task.spec, (leak,))
