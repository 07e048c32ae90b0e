"""Exact local updates of splitting methods: batched proximal points of convex losses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from leakaudit.tasks.task import Problem, Task

# The update minimises f_i(w) + <linear, w> + weight/2 |w|^2, which is strongly convex. Newton's
# method converges in a few steps if each step is shortened until the value decreases sufficiently
# (Armijo). All nodes step together, each with its own step size.

LARGEST = 2048  # parameters; Newton stores one (d, d) matrix per node, 32 MiB each in float64
STEPS = 100
HALVINGS = 30  # per step; 2^-30 is below the resolution of float32
ARMIJO = 1e-4  # fraction of the predicted decrease that a step must reach, the textbook's choice
# Rounding units of the value. A predicted decrease below this many of them cannot be distinguished
# from the rounding of a sum over records, so the full step is taken.
DROWNED = 1e3


def exact(task: Task) -> None:
    """Check that a model has an exact update."""
    if not task.convex or task.layout.size > LARGEST:
        raise LeakauditError(
            "the exact update needs a convex model (linear, logistic) of at most "
            f"{LARGEST} parameters, got {task.spec.model} with {task.layout.size}; "
            "use update=gradient if the protocol has it, or another model"
        )


def prox(problem: Problem, start: Tensor, linear: Tensor, weight: Tensor) -> Tensor:
    """Return argmin_w f_i(w) + <linear_i, w> + weight_i/2 |w|^2 for every node i.

    The gradient at the result is zero to rounding.

    Args:
        start: Initial point of the Newton steps, (N, d).
        linear: The linear term, (N, d).
        weight: Weight of the quadratic term, (N, 1), positive.

    Returns:
        The minimisers, (N, d); NaN for nodes without data in this process.
    """
    task = problem.task
    exact(task)
    here = problem.here
    if here is not None:
        out = torch.full_like(start, torch.nan)
        if bool(here.any()):
            ours = replace(problem, x=problem.x[here], y=problem.y[here], here=None)
            out[here] = prox(ours, start[here], linear[here], weight[here])
        return out
    w = start.clone()
    eye = torch.eye(start.shape[1], dtype=start.dtype, device=start.device)
    scale = linear.abs().amax() + 1
    eps = torch.finfo(w.dtype).eps

    def value(u: Tensor) -> Tensor:
        quadratic = (linear * u).sum(1) + 0.5 * (weight * u * u).sum(1)
        return task.losses(u, problem.x, problem.y) + quadratic

    for _ in range(STEPS):
        slope = task.gradients(w, problem.x, problem.y) + linear + weight * w
        if slope.abs().max() <= 4 * eps * scale:
            return w
        curvature = task.hessians(w, problem.x, problem.y) + weight[:, :, None] * eye
        step = torch.linalg.solve(curvature, slope)
        size = torch.ones_like(weight)
        now = value(w)
        fall = (slope * step).sum(1)
        for _ in range(HALVINGS):
            too_little = value(w - size * step) > now - ARMIJO * size[:, 0] * fall
            bad = too_little & (fall > DROWNED * eps * (now.abs() + 1))
            if not bad.any():
                break
            size[bad] /= 2
        moved = w - size * step
        if torch.equal(moved, w):
            return w
        w = moved
    # A choice between eps, which the test above requires, and sqrt(eps): at such a slope the value
    # is minimal up to rounding and cannot be used to judge a step.
    if slope.abs().max() > eps**0.75 * scale:
        worst = float(slope.abs().max())
        raise LeakauditError(
            f"the exact update did not converge in {STEPS} Newton steps (slope {worst:.1e}); "
            "use update=gradient"
        )
    return w
