"""L-BFGS without a line search, as the code of DLG, iDLG and Inverting Gradients uses it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from leakaudit.core.progress import expired, step
from leakaudit.inversion.search.optimise import Ended, Point, SearchRun

# torch.optim.LBFGS with its defaults: rate 1, 20 iterations a step, 100 pairs, no line search. The
# first iteration moves by at most 1 in all coordinates together, and every other one by the whole
# quasi-Newton step, so that a search may diverge. The last point is the result, not the best one.


def minimise(
    objective: Callable[..., Tensor],
    start: Point,
    steps: int,
    goal: float,
    what: str,
    project: Callable[[Tensor], Tensor] | None = None,
) -> SearchRun:
    """Minimise one scalar of the tensors of a point.

    Args:
        goal: Value at which the search ends.
        project: What is applied to the first tensor after each step; None for nothing.
    """
    point = tuple(tensor.detach().clone().requires_grad_() for tensor in start)
    optimiser = torch.optim.LBFGS(point)
    evaluations = 0

    def closure() -> Tensor:
        nonlocal evaluations
        evaluations += 1
        optimiser.zero_grad()
        loss = objective(*point)
        for tensor, slope in zip(point, torch.autograd.grad(loss, point), strict=True):
            tensor.grad = slope
        return loss

    ended: Ended = "stopped"
    value = math.inf
    done = 0
    for done in range(1, steps + 1):
        before = tuple(tensor.detach().clone() for tensor in point)
        optimiser.step(closure)
        if project is not None:
            point[0].data.copy_(project(point[0].detach()))
        value = float(objective(*point).detach())
        evaluations += 1
        step(what, done, steps)
        if not math.isfinite(value):
            for tensor, last in zip(point, before, strict=True):
                tensor.data.copy_(last)
            value = float(objective(*point).detach())
            ended = "diverged"
            break
        if value <= goal:
            ended = "fitted"
            break
        if expired():
            ended = "out of time"
            break
    return SearchRun(tuple(tensor.detach() for tensor in point), value, done, evaluations, ended)
