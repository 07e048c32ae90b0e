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
    # In units in which every column has curvature 1, with v = scale w.
    scale = (x.square().mean(0) + task.l2).sqrt()[:, None]
    if not bool((scale > 0).all()):
        return None
    x = x / scale.T
    h = x.T @ x / len(x) + torch.diag(task.l2 / scale[:, 0].square())
    c = x.T @ y / len(x)
    curvatures = torch.linalg.eigvalsh(h)
    if not curvatures[0] > 0:
        return None
    v = torch.linalg.solve(h, c)
    by = l1 / scale
    if l1:
        v = _polished(h, c, by, _shrunk(h, c, by, v, float(curvatures[-1])))
    w = v / scale
    slope = _subgradient(x.T @ (x @ v - y) / len(x) + task.l2 * w / scale, v, by)
    least = curvatures[0] * scale.min()  # a distance from w is at most that from v / least scale
    if not _is_close(w, slope, curvatures[-1] * v.norm(), least):
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


def _subgradient(slope: Tensor, v: Tensor, by: Tensor) -> Tensor:
    """Return the smallest subgradient of the loss plus by' |v|."""
    return torch.where(v == 0, shrink(slope, by), slope + by * v.sign())


def _rows(problem: Problem) -> tuple[Tensor, Tensor]:
    """Return features (n, p) of all records, with a one for the intercept, and targets (n, k)."""
    task = problem.task
    x = task.normalise(problem.x.flatten(0, 1).double()).flatten(1)
    y = problem.y.flatten(0, 1).double().reshape(len(x), -1)
    if len(task.layout.names) > 1:  # an intercept
        x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    return x, y


def _shrunk(h: Tensor, c: Tensor, by: Tensor, w: Tensor, largest: float) -> Tensor:
    """Minimise tr(w' h w)/2 - tr(c' w) + by' |w| by accelerated proximal steps with restarts.

    The iteration ends where a step changes nothing.
    """
    v = w
    pace = 1.0
    for _ in range(STEPS):
        new = shrink(v - (h @ v - c) / largest, by / largest)
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


def _polished(h: Tensor, c: Tensor, by: Tensor, w: Tensor) -> Tensor:
    """Solve for the numbers that are not zero, with the signs that they have."""
    found = w.clone()
    for k in range(w.shape[1]):
        used = w[:, k] != 0
        shift = by[used, 0] * w[used, k].sign()
        found[used, k] = torch.linalg.solve(h[used][:, used], c[used, k] - shift)
    return found.where(found.sign() == w.sign(), w)
