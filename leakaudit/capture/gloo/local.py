"""The part of a problem that lives in one process: the others' inputs are NaN, and so is whatever would be computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakaudit.tasks.task import Problem, Task


@dataclass(frozen=True, eq=False)
class LocalTask(Task):
    """A task whose gradients are computed only for nodes that have inputs here; those of others are NaN."""

    def gradients(
        self,
        thetas: Tensor,
        x: Tensor,
        y: Tensor,
        chunk: int | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Do what `Task.gradients` does, row by row of x that is not NaN."""
        here = x.reshape(len(x), -1)[:, 0].isfinite()
        if bool(here.all()):
            return super().gradients(thetas, x, y, chunk, out)
        out = (
            torch.empty_like(thetas, memory_format=torch.contiguous_format) if out is None else out
        )
        out[~here] = torch.nan
        if bool(here.any()):
            out[here] = super().gradients(thetas[here], x[here], y[here], chunk)
        return out


def problem(task: LocalTask, nodes: int, here: Sequence[int], x: Tensor, y: Tensor) -> Problem:
    """Return the problem of all nodes with the data of some: x (k, b, *shape), y (k, b) of the nodes `here`."""
    rows = torch.tensor(here)
    all_x, all_y = x.new_full((nodes, *x.shape[1:]), torch.nan), y.new_zeros((nodes, *y.shape[1:]))
    all_x[rows], all_y[rows] = x, y
    mask = torch.zeros(nodes, dtype=torch.bool)
    mask[rows] = True
    return Problem(task, all_x, all_y, mask)
