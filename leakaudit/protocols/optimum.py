"""The optimum of linear least squares over the records of all nodes, with l2 and l1 terms."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.protocols.released import shrink

if TYPE_CHECKING:
    from leakaudit.tasks.task import Problem

LARGEST = 4096  # columns, with which the normal equations take 134 MB and some seconds; a choice
STEPS = 100_000  # of the accelerated proximal gradient method
# Smallest eigenvalue, in units of rounding of the largest one times the columns, at which the
# optimum counts as unique: below, rounding decides where it lies.
UNIQUE = 100.0


def least_squares(problem: Problem, l1: float = 0.0) -> Tensor | None:
    """Return argmin of the mean of the nodes' losses plus l1 |w|_1, (d,) float64.

    Returns:
        The optimum; None if the model is not linear with the squared loss, is too large, or has
        several optima.
    """
    task = problem.task
    if task.spec.model != "linear" or task.spec.loss != "squared":
        return None
    x = task.normalise(problem.x.flatten(0, 1).double()).flatten(1)
    y = problem.y.flatten(0, 1).double().reshape(len(x), -1)
    if len(task.layout.names) > 1:  # an intercept
        x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    if x.shape[1] > LARGEST:
        return None
    h = x.T @ x / len(x)
    h.diagonal().add_(task.l2)
    c = x.T @ y / len(x)
    values = torch.linalg.eigvalsh(h)
    rounding = torch.finfo(h.dtype).eps * len(h) * UNIQUE
    if float(values[0]) <= rounding * float(values[-1]):
        return None
    w = torch.linalg.solve(h, c)
    if l1:
        w = _shrunk(h, c, l1, w, float(values[-1]))
    # The layout has the weights by output, and then the intercepts.
    width = task.layout.slices[task.layout.names[0]].stop // w.shape[1]
    return torch.cat([w[:width].T.flatten(), w[width:].flatten()]).to(problem.x.device)


def _shrunk(h: Tensor, c: Tensor, l1: float, w: Tensor, largest: float) -> Tensor:
    """Minimise tr(w' h w)/2 - tr(c' w) + l1 |w|_1 by accelerated proximal steps with restarts.

    The iteration ends where a step changes nothing.
    """
    v = w
    pace = 1.0
    for _ in range(STEPS):
        new = shrink(v - (h @ v - c) / largest, l1 / largest)
        if torch.equal(new, w):
            break
        if float(((v - new) * (new - w)).sum()) > 0:
            pace = 1.0
            step = 0.0
        else:
            following = (1 + math.sqrt(1 + 4 * pace * pace)) / 2
            step = (pace - 1) / following
            pace = following
        v = new + step * (new - w)
        w = new
    return w
