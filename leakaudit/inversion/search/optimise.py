"""Searches over dummy inputs: L-BFGS and signed Adam with a convergence test, a deadline and a way out of NaN.

A search minimises `objective(*tensors) -> scalar` from `start` and returns the best finite point that it met. Objectives are
normalised: 1 where nothing is explained.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from leakaudit.progress import expired, step

Objective = Callable[..., Tensor]
Point = tuple[Tensor, ...]
Ended = Literal["fitted", "converged", "stopped", "out of time", "diverged"]

SCALE = 1e8  # torch's L-BFGS forgets curvature pairs below 1e-10 in absolute size, so a normalised objective must start large
PATIENCE = 15  # L-BFGS steps, where nothing else is said, over which the objective must fall ...
FALLS = 0.03  # ... by this share, else the search has converged
SHRINK = 0.1  # share of its own step that L-BFGS takes after a point that was not finite, over the one before
TRIES = 3  # such restarts before it gives up
STALL = 150  # signed-Adam iterations without an objective lower by ...
GAIN = 1e-3  # ... this share before the next, smaller rate
DECAY = 0.1  # that rate over the one before
SHARES = (
    3,
    2,
    2,
    1,
)  # eighths of the steps that each rate has at most (Geiping et al. 2020 decay at 3/8, 5/8 and 7/8)


@dataclass(frozen=True)
class Run:
    """A search's best point and objective, its steps and evaluations (forward and double backward each), and why it ended."""

    point: Point
    objective: float = math.inf
    steps: int = 0
    evaluations: int = 0
    ended: Ended = "stopped"

    def __str__(self) -> str:
        """For the note of a reconstruction."""
        return f"{self.ended} after {self.steps} steps ({self.evaluations} evaluations)"

    def after(self, *earlier: Run) -> Run:
        """The same with the steps and evaluations of earlier runs counted."""
        steps, evaluations = sum(r.steps for r in earlier), sum(r.evaluations for r in earlier)
        return replace(self, steps=self.steps + steps, evaluations=self.evaluations + evaluations)


class _Closure:
    """What `torch.optim.LBFGS` calls; it keeps the best finite point and the last value."""

    def __init__(self, objective: Objective, best: Run) -> None:
        self.objective, self.best = objective, best
        self.x = tuple(t.detach().clone().requires_grad_() for t in best.point)
        self.last = math.inf

    def __call__(self) -> Tensor:
        """Evaluate, and leave the slopes in `x`."""
        value = self.objective(*self.x)
        slopes = torch.autograd.grad(value * SCALE, self.x)
        for t, slope in zip(self.x, slopes, strict=True):
            t.grad = slope
        self.last = value.item()
        self.best = replace(
            _better(self.best, self.x, self.last), evaluations=self.best.evaluations + 1
        )
        return value.detach() * SCALE

    def finite(self) -> bool:
        """Whether the search can go on from where it is."""
        return math.isfinite(self.last) and all(bool(t.isfinite().all()) for t in self.x)


def lbfgs(
    objective: Objective,
    start: Point,
    steps: int,
    goal: float = 0.0,
    what: str = "L-BFGS",
    patience: int = PATIENCE,
) -> Run:
    """Minimise with L-BFGS, history 100 and a strong Wolfe line search.

    steps: at most; one is 20 iterations, torch's default, as in Zhu et al. 2019. goal: an objective that is good enough. It has
    converged once the objective fell by less than 3 % in `patience` steps. Where something is not finite, the search starts again from
    its best point with fixed steps, a tenth of L-BFGS's own, then a hundredth.
    """
    best, rate, tries = Run(tuple(t.detach() for t in start)), 1.0, 0
    closure, optimiser, history = _fresh(objective, best, rate)
    for done in range(1, steps + 1):
        optimiser.step(closure)
        best = closure.best = replace(closure.best, steps=done)
        history.append(best.objective)
        step(what, done, steps)
        if best.objective <= goal:
            return replace(best, ended="fitted")
        if expired():
            return replace(best, ended="out of time")
        if not closure.finite():
            tries, rate = tries + 1, rate * SHRINK
            if tries > TRIES:
                return replace(best, ended="diverged")
            closure, optimiser, history = _fresh(objective, best, rate)
        elif len(history) > patience and history[-1] > (1 - FALLS) * history[-1 - patience]:
            return replace(best, ended="converged")
    return best


def signed_adam(
    objective: Objective,
    start: Point,
    steps: int,
    rate: float,
    project: Callable[[Tensor], Tensor],
    what: str = "signed Adam",
) -> Run:
    """Minimise with Adam on the sign of the slope and `project` after each step (Geiping et al. 2020, section 5).

    steps: at most. rate: of the first steps, in the data's units; it falls to a tenth three times, each time once 150 steps
    brought no gain, or after 3/8, 5/8 and 7/8 of the steps.
    """
    best, total, converged = Run(tuple(t.detach() for t in start)), steps, True
    for level, share in enumerate(SHARES):
        stalled, x = 0, tuple(t.clone().requires_grad_() for t in best.point)
        optimiser = torch.optim.Adam(x, lr=rate * DECAY**level)
        for _ in range(max(1, steps * share // 8)):
            value = objective(*x)
            slopes = torch.autograd.grad(value, x)
            gained = value.item() < (1 - GAIN) * best.objective
            stalled = 0 if gained else stalled + 1
            best = replace(
                _better(best, x, value.item()),
                steps=best.steps + 1,
                evaluations=best.evaluations + 1,
            )
            step(what, best.steps, total)
            if expired():
                return replace(best, ended="out of time")
            if stalled >= STALL or not all(bool(s.isfinite().all()) for s in slopes):
                break
            for t, slope in zip(x, slopes, strict=True):
                t.grad = slope.sign()
            optimiser.step()
            with torch.no_grad():
                x[0].copy_(project(x[0]))
        converged = converged and stalled >= STALL
    return replace(
        best,
        ended="diverged" if math.isinf(best.objective) else "converged" if converged else "stopped",
    )


def restarted(
    search: Callable[[Point], Run], draw: Callable[[], Point], restarts: int, goal: float
) -> Run:
    """Search from up to `restarts` points, until one run is good enough or the time is over; the best one, with all steps counted.

    search: from a start. draw: a new start; called only where it is needed.
    """
    best = search(draw())
    for _ in range(1, restarts):
        if best.objective <= goal or expired():
            break
        run = search(draw())
        best = run.after(best) if run.objective < best.objective else best.after(run)
    return best


def _fresh(
    objective: Objective, best: Run, rate: float
) -> tuple[_Closure, torch.optim.LBFGS, list[float]]:
    """A search that starts from `best` without memory."""
    closure = _Closure(objective, best)
    line_search = "strong_wolfe" if rate == 1 else None  # it would lengthen the steps again
    optimiser = torch.optim.LBFGS(
        closure.x, lr=rate, tolerance_grad=0.0, tolerance_change=0.0, line_search_fn=line_search
    )
    return closure, optimiser, []


def _better(best: Run, x: Point, value: float) -> Run:
    """Keep x where its value is finite and the lowest."""
    if not (math.isfinite(value) and value < best.objective):
        return best
    return replace(best, point=tuple(t.detach().clone() for t in x), objective=value)
