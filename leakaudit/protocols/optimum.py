"""The optimum over the records of all nodes: least squares, and logistic regression with l2."""

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
NEWTON = 50  # steps; quadratic convergence reaches the rounding error in about ten
CLOSE = 1e-6  # largest distance from the optimum, relative to its norm, at which it is known


def of(problem: Problem, l1: float = 0.0) -> Tensor | None:
    """Return argmin of the mean of the nodes' losses plus l1 |w|_1, (d,) float64.

    Returns:
        The optimum of linear least squares, or of logistic regression with an l2 term and no l1
        term for two classes; None for other losses, for large models, and if it is not unique.
    """
    if problem.task.spec.model == "logistic" and problem.task.spec.loss == "binary":
        return None if l1 else _logistic(problem)
    return _least_squares(problem, l1)


def _logistic(problem: Problem) -> Tensor | None:
    """Minimise the mean of log(1 + e^z) - y z, z = x w, plus l2/2 |w|^2 by Newton's method."""
    task = problem.task
    x, y = _rows(problem)
    if not task.l2 or min(x.shape) > LARGEST:
        return None
    basis = None
    if len(x) < x.shape[1]:  # with an l2 term, the optimum lies in the span of the records
        basis = torch.linalg.qr(x.T).Q
        x = x @ basis
    w = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    first = (x.T @ (0.5 - y[:, 0]) / len(x)).norm()  # slope at w = 0
    for _ in range(NEWTON):
        p = (x @ w).sigmoid()
        slope = x.T @ (p - y[:, 0]) / len(x) + task.l2 * w
        curvature = (x * (p * (1 - p))[:, None]).T @ x / len(x)
        curvature.diagonal().add_(task.l2)
        step = torch.linalg.solve(curvature, slope)
        if torch.equal(w - step, w):
            break
        w = w - step
    # The curvature is at least l2, which is known without its eigenvalues.
    if not _is_close(w, slope, first, task.l2) and not _is_close(
        w, slope, first, torch.linalg.eigvalsh(curvature)[0]
    ):
        return None
    # One logit, so the layout has the weights and then the intercept, as the columns of x.
    return w if basis is None else basis @ w


def _least_squares(problem: Problem, l1: float) -> Tensor | None:
    """Solve the normal equations; with l1 > 0, continue from there by proximal steps."""
    task = problem.task
    if task.spec.model != "linear" or task.spec.loss != "squared":
        return None
    x, y = _rows(problem)
    if x.shape[1] > LARGEST:
        return None
    h = x.T @ x / len(x)
    h.diagonal().add_(task.l2)
    c = x.T @ y / len(x)
    values = torch.linalg.eigvalsh(h)
    if not values[0] > 0:
        return None
    w = torch.linalg.solve(h, c)
    if l1:
        w = _polished(h, c, l1, _shrunk(h, c, l1, w))
    slope = x.T @ (x @ w - y) / len(x) + task.l2 * w
    if not _is_close(w, _subgradient(slope, w, l1), values[-1] * w.norm(), values[0]):
        return None
    # The layout has the weights by output, and then the intercepts.
    width = task.layout.slices[task.layout.names[0]].stop // w.shape[1]
    return torch.cat([w[:width].T.flatten(), w[width:].flatten()])


def _is_close(w: Tensor, slope: Tensor, size: Tensor, least: Tensor | float) -> bool:
    """Return whether w is the optimum up to `CLOSE`, given the slope and the least curvature there.

    The distance is at most their quotient; rounding hides a slope below that of terms of a `size`.
    """
    hidden = torch.finfo(w.dtype).eps * size
    return bool(slope.norm() + hidden <= CLOSE * least * w.norm())


def _subgradient(slope: Tensor, w: Tensor, l1: float) -> Tensor:
    """Return the smallest subgradient of the loss plus l1 |w|_1."""
    return torch.where(w == 0, shrink(slope, l1), slope + l1 * w.sign())


def _rows(problem: Problem) -> tuple[Tensor, Tensor]:
    """Return features (n, p) of all records, with a one for the intercept, and targets (n, k)."""
    task = problem.task
    x = task.normalise(problem.x.flatten(0, 1).double()).flatten(1)
    y = problem.y.flatten(0, 1).double().reshape(len(x), -1)
    if len(task.layout.names) > 1:  # an intercept
        x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    return x, y


def _shrunk(h: Tensor, c: Tensor, l1: float, w: Tensor) -> Tensor:
    """Minimise tr(w' h w)/2 - tr(c' w) + l1 |w|_1 by accelerated proximal steps with restarts.

    The columns are scaled to curvature 1. The iteration ends where a step changes nothing.
    """
    scale = h.diagonal().sqrt()[:, None]
    h, c, w = h / scale / scale.T, c / scale, w * scale
    largest = torch.linalg.eigvalsh(h)[-1]
    v = w
    pace = 1.0
    for _ in range(STEPS):
        new = shrink(v - (h @ v - c) / largest, l1 / largest / scale)
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
    return w / scale


def _polished(h: Tensor, c: Tensor, l1: float, w: Tensor) -> Tensor:
    """Solve for the numbers that are not zero, with the signs that they have."""
    found = w.clone()
    for k in range(w.shape[1]):
        used = w[:, k] != 0
        signs = w[used, k].sign()
        found[used, k] = torch.linalg.solve(h[used][:, used], c[used, k] - l1 * signs)
    return found.where(found.sign() == w.sign(), w)
