"""Gradients of single records: their norms, and the mean of the clipped ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from leakaudit.tasks.task import Task

# Numbers of per-record gradients that are held at once, 64 MiB in float32. A choice.
AT_ONCE = 1 << 24


def gradients(task: Task, thetas: Tensor, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """Return the mean gradients (N, d) of batches, those of each record clipped to a norm.

    Abadi et al. 2016, Algorithm 1; without clipping if the norm is 0. A sum of gradients is that of
    clipped ones.
    """
    if not clip:
        return task.gradients(thetas, x, y)
    if task.factor != 1:
        mean = task.summed(1 / task.factor)
        return task.factor * gradients(mean, thetas, x, y, clip)
    total = torch.zeros_like(thetas)
    for each in _each(task, thetas, x, y):
        total += (each * (clip / each.norm(dim=2, keepdim=True).clamp(min=clip))).sum(1)
    return total / x.shape[1]


def norms(task: Task, thetas: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the norms (N, b) of the gradients of single records."""
    return torch.cat([each.norm(dim=2) for each in _each(task, thetas, x, y)], 1)


def _each(task: Task, thetas: Tensor, x: Tensor, y: Tensor) -> Iterator[Tensor]:
    """Yield the gradients (N, some, d) of the next records of all batches."""
    together = max(1, AT_ONCE // thetas.numel())
    for at in range(0, x.shape[1], together):
        xs = x[:, at : at + together]
        ys = y[:, at : at + together]
        models = thetas.repeat_interleave(xs.shape[1], 0)
        g = task.gradients(models, xs.flatten(0, 1)[:, None], ys.flatten(0, 1)[:, None])
        yield g.reshape(len(thetas), xs.shape[1], -1)
