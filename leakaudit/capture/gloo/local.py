"""The part of a problem that one process holds.

The inputs of other nodes, and all that is computed from them, are NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakaudit.tasks.task import Problem, Task


@dataclass(frozen=True, eq=False)
class LocalTask(Task):
    """A task that computes gradients only for nodes with inputs in this process; others are NaN."""

    def gradients(
        self,
        thetas: Tensor,
        x: Tensor,
        y: Tensor,
        chunk: int | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Compute `Task.gradients` for the rows of x that are not NaN.

        Those of other nodes are NaN.
        """
        here = x.reshape(len(x), -1)[:, 0].isfinite()
        if bool(here.all()):
            return super().gradients(thetas, x, y, chunk, out)
        if out is None:
            out = torch.empty_like(thetas, memory_format=torch.contiguous_format)
        out[~here] = torch.nan
        if bool(here.any()):
            out[here] = super().gradients(thetas[here], x[here], y[here], chunk)
        return out


def problem(task: LocalTask, nodes: int, here: Sequence[int], x: Tensor, y: Tensor) -> Problem:
    """Return the problem of all nodes, with inputs (k, b, *shape) and labels (k, b) of some."""
    rows = torch.tensor(here)
    all_x = x.new_full((nodes, *x.shape[1:]), torch.nan)
    all_y = y.new_zeros((nodes, *y.shape[1:]))
    all_x[rows] = x
    all_y[rows] = y
    mask = torch.zeros(nodes, dtype=torch.bool)
    mask[rows] = True
    return Problem(task, all_x, all_y, mask)
