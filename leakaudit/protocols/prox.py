"""Exact local updates of splitting methods: batched proximal points of convex losses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.tasks.task import Problem, Task

LARGEST = 2048  # parameters; Newton keeps one (d, d) matrix a node
STEPS = 100


def exact(task: Task) -> None:
    """Raise LeakauditError where a model has no exact update: it is not convex, or has more than `LARGEST` parameters."""
    if not task.convex or task.layout.size > LARGEST:
        raise LeakauditError(
            f"the exact update needs a convex model (linear, logistic) of at most {LARGEST} parameters, "
            f"got {task.spec.model} with {task.layout.size}; use update=gradient where the protocol has it, or another model"
        )


def prox(problem: Problem, start: Tensor, linear: Tensor, weight: Tensor) -> Tensor:
    """Return argmin_w f_i(w) + <linear_i, w> + weight_i/2 |w|^2 for every node i, by damped Newton steps.

    start, linear: (N, d); weight: (N, 1), positive. The gradient at the result is zero to rounding.
    Raises LeakauditError as `exact` does, and where the steps do not converge.
    """
    task = problem.task
    exact(task)
    if (here := problem.here) is not None:
        out = torch.full_like(start, torch.nan)
        if bool(here.any()):
            out[here] = prox(
                replace(problem, x=problem.x[here], y=problem.y[here], here=None),
                start[here],
                linear[here],
                weight[here],
            )
        return out
    w, eye = start.clone(), torch.eye(start.shape[1], dtype=start.dtype, device=start.device)
    scale = linear.abs().amax() + 1

    def value(u: Tensor) -> Tensor:
        quadratic = (linear * u).sum(1) + 0.5 * (weight * u * u).sum(1)
        return task.losses(u, problem.x, problem.y) + quadratic

    for _ in range(STEPS):
        slope = task.gradients(w, problem.x, problem.y) + linear + weight * w
        if slope.abs().max() <= 4 * torch.finfo(w.dtype).eps * scale:
            return w
        step = torch.linalg.solve(
            task.hessians(w, problem.x, problem.y) + weight[:, :, None] * eye, slope
        )
        size, now, fall = torch.ones_like(weight), value(w), (slope * step).sum(1)
        for _ in range(
            30
        ):  # Armijo, every node by itself; near the optimum the test drowns in rounding and full steps are right
            bad = (value(w - size * step) > now - 1e-4 * size[:, 0] * fall) & (
                fall > 1e3 * torch.finfo(w.dtype).eps * (now.abs() + 1)
            )
            if not bad.any():
                break
            size[bad] /= 2
        moved = w - size * step
        if torch.equal(moved, w):
            return w
        w = moved
    if slope.abs().max() > torch.finfo(w.dtype).eps ** 0.75 * scale:
        raise LeakauditError(
            f"the exact update did not converge in {STEPS} Newton steps (slope {float(slope.abs().max()):.1e}); use update=gradient"
        )
    return w
