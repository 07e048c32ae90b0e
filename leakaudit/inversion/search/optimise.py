"""One search with L-BFGS, with convergence checks, time limits and recovery from NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from leakaudit.core.progress import expired, step

# A search minimises `objective(*tensors) -> scalar` from a start and returns the best finite point
# found, as a `SearchRun`. Objectives are normalised: 1 if nothing is explained. `batched_search`
# runs many such searches together; `adam` implements the other method.

Objective = Callable[..., Tensor]
Point = tuple[Tensor, ...]
Ended = Literal["fitted", "converged", "stopped", "out of time", "diverged"]

# Factor by which objectives and slopes are multiplied. torch's L-BFGS discards curvature pairs
# whose product y^T s is at most 1e-10 in absolute value, so a normalised objective must start
# large: with this factor, only pairs that change it by less than 1e-18 are lost.
SCALE = 1e8

# Number of L-BFGS steps, of 20 iterations each, in which the objective must decrease ...
PATIENCE = 15
# ... by this share; otherwise the search has converged. Both are choices.
FALLS = 0.03

# Ratio of step lengths before and after a point that was not finite, and maximum number of such
# restarts.
SHRINK = 0.1
TRIES = 3


@dataclass(frozen=True)
class SearchRun:
    """The result of a search."""

    point: Point
    objective: float = math.inf
    steps: int = 0  # number of steps taken
    # number of evaluations of the objective and its slopes, each one forward and one double
    # backward pass
    evaluations: int = 0
    ended: Ended = "stopped"

    def __str__(self) -> str:
        """Describe the search for the note of a reconstruction."""
        return f"{self.ended} after {self.steps} steps ({self.evaluations} evaluations)"

    def after(self, *earlier: SearchRun) -> SearchRun:
        """Return the run with the steps and evaluations of earlier runs added."""
        steps = sum(run.steps for run in earlier)
        evaluations = sum(run.evaluations for run in earlier)
        return replace(self, steps=self.steps + steps, evaluations=self.evaluations + evaluations)


class _Closure:
    """The closure for `torch.optim.LBFGS`; it keeps the best finite point and the last value."""

    def __init__(self, objective: Objective, best: SearchRun) -> None:
        self.objective = objective
        self.best = best
        self.x = tuple(t.detach().clone().requires_grad_() for t in best.point)
        self.last = math.inf

    def __call__(self) -> Tensor:
        """Evaluate the objective, and store the slopes in `x`."""
        value = self.objective(*self.x)
        slopes = torch.autograd.grad(value * SCALE, self.x)
        for t, slope in zip(self.x, slopes, strict=True):
            t.grad = slope
        self.last = value.item()
        best = better(self.best, self.x, self.last)
        self.best = replace(best, evaluations=self.best.evaluations + 1)
        return value.detach() * SCALE

    def finite(self) -> bool:
        """Return whether the search can continue from the current point."""
        return math.isfinite(self.last) and all(bool(t.isfinite().all()) for t in self.x)


def lbfgs(
    objective: Objective,
    start: Point,
    steps: int,
    goal: float = 0.0,
    what: str = "L-BFGS",
    patience: int = PATIENCE,
) -> SearchRun:
    """Minimise with L-BFGS, history 100 and a strong Wolfe line search.

    The objective is a scalar, normalised to 1 if nothing is explained. A step is 20 iterations,
    torch's default, as in Zhu et al. 2019. A search has converged if its objective decreased by
    less than 3 % in `patience` steps. If a value is not finite, it restarts from its best point
    with fixed steps, a tenth of the steps of L-BFGS, then a hundredth.
    """
    best = SearchRun(tuple(t.detach() for t in start))
    rate = 1.0
    tries = 0
    closure, optimiser = _fresh(objective, best, rate)
    history: list[float] = []
    for done in range(1, steps + 1):
        optimiser.step(closure)
        best = replace(closure.best, steps=done)
        closure.best = best
        history.append(best.objective)
        step(what, done, steps)
        if best.objective <= goal:
            return replace(best, ended="fitted")
        if expired():
            return replace(best, ended="out of time")
        if not closure.finite():
            tries += 1
            rate *= SHRINK
            if tries > TRIES:
                return replace(best, ended="diverged")
            closure, optimiser = _fresh(objective, best, rate)
            history = []
        elif len(history) > patience and history[-1] > (1 - FALLS) * history[-1 - patience]:
            return replace(best, ended="converged")
    return best


def restarted(
    search: Callable[[Point], SearchRun], draw: Callable[[], Point], restarts: int, goal: float
) -> SearchRun:
    """Search from several points, until one run is good enough or time expires."""
    best = search(draw())
    for _ in range(1, restarts):
        if best.objective <= goal or expired():
            break
        run = search(draw())
        best = run.after(best) if run.objective < best.objective else best.after(run)
    return best


def better(best: SearchRun, x: Point, value: float) -> SearchRun:
    """Keep a point if its value is finite and the lowest so far."""
    if not (math.isfinite(value) and value < best.objective):
        return best
    return replace(best, point=tuple(t.detach().clone() for t in x), objective=value)


def _fresh(
    objective: Objective, best: SearchRun, rate: float
) -> tuple[_Closure, torch.optim.LBFGS]:
    closure = _Closure(objective, best)
    line_search = "strong_wolfe" if rate == 1 else None  # a line search would lengthen the steps
    optimiser = torch.optim.LBFGS(
        closure.x, lr=rate, tolerance_grad=0.0, tolerance_change=0.0, line_search_fn=line_search
    )
    return closure, optimiser
