"""Adam (Kingma and Ba 2015) over dummy inputs, in the three forms that searches use."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Generator, Tensor

from leakaudit.core.progress import expired, step
from leakaudit.inversion.linear import positive
from leakaudit.inversion.search.evaluate import Problems
from leakaudit.inversion.search.optimise import Ended, Objective, Point, SearchRun, better

# * `minimise` runs a few searches step by step with a cosine schedule and noise: GradInversion, and
#   the softer form of Inverting Gradients for local trainings.
# * `signed_adam` runs one search with rates that decrease in stages, as Inverting Gradients was
#   published.
# * `together` runs many searches that share every evaluation, with the same schedule as `minimise`.
#
# The first two take their steps with `_Walker`, a wrapper around torch's optimiser. `together`
# implements the same equations for a stack of searches, in which each can pause individually;
# torch's optimiser cannot do this. The two agree up to rounding
# (tests/reference/test_inverting.py), not to the last bit, because torch orders its operations
# differently.

Slopes = Literal["raw", "soft", "hard"]

# Adam's own constants, those of the paper and of torch.
BETAS = (0.9, 0.999)
EPSILON = 1e-8

# Iterations of `signed_adam` without a gain after which it continues with the next, smaller rate,
# ...
STALL = 150
# ... and the share by which the objective must decrease to count as a gain. Both are choices:
# signed steps of a fixed size eventually oscillate, and then the objective hardly decreases.
GAIN = 1e-3

# Ratio of one rate to the previous one, and the eighths of the steps that each is used for at most:
# Geiping et al. 2020 divide by ten after 3/8, 5/8 and 7/8 of the steps.
DECAY = 0.1
SHARES = (3, 2, 2, 1)


@dataclass(frozen=True)
class RateSchedule:
    """The schedule of Adam."""

    steps: int  # number of steps of each search
    rate: float  # first and largest step in the data's units; decreases along a cosine
    slopes: Slopes = "raw"  # unchanged (`raw`), s / (|s| + mean |s|) (`soft`), or sign(s) (`hard`)
    # standard deviation of noise added to a point before its slope is computed, relative to the
    # rate
    langevin: float = 0.0

    def at(self, k: int) -> float:
        """Return the rate of step k, counted from 0."""
        return self.rate * 0.5 * (1 + math.cos(math.pi * k / self.steps))


class _Walker:
    """A point that Adam moves, together with Adam's moments of its slopes."""

    def __init__(self, start: Point, rate: float) -> None:
        """Start at a point, with zero moments."""
        self.x = tuple(t.detach().clone().requires_grad_() for t in start)
        self._adam = torch.optim.Adam(self.x, lr=rate, betas=BETAS)

    def evaluate(self, objective: Objective) -> tuple[float, tuple[Tensor, ...]]:
        """Return the objective and its slopes at the point."""
        value = objective(*self.x)
        slopes = torch.autograd.grad(value, self.x)
        return value.item(), slopes

    def move(
        self, slopes: Sequence[Tensor], project: Callable[[Tensor], Tensor], rate: float
    ) -> None:
        """Take one step with a given rate, and project the first tensor, the inputs, into range."""
        self._adam.param_groups[0]["lr"] = rate
        for t, slope in zip(self.x, slopes, strict=True):
            t.grad = slope
        self._adam.step()
        with torch.no_grad():
            self.x[0].copy_(project(self.x[0]))

    def shake(self, size: float, generator: Generator) -> None:
        """Add Gaussian noise of a given standard deviation to the inputs (Langevin dynamics)."""
        x = self.x[0]
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=generator.device)
        with torch.no_grad():
            x.add_(noise.to(x.device), alpha=size)

    def back(self, point: Point) -> None:
        """Return to a point and keep the moments."""
        with torch.no_grad():
            for t, old in zip(self.x, point, strict=True):
                t.copy_(old)

    def here(self) -> Point:
        """Return a copy of the point."""
        return tuple(t.detach().clone() for t in self.x)


def minimise(
    objective: Callable[[int, int, Tensor], Tensor],
    starts: list[Tensor],
    schedule: RateSchedule,
    project: Callable[[Tensor], Tensor],
    generator: Generator,
    what: str,
    between: Callable[[int, list[SearchRun]], None] = lambda k, runs: None,
) -> list[SearchRun]:
    """Minimise from every start, all searches step by step.

    The objective is a scalar of search, step and x; `between` is called before each step with
    its number and all runs. Returns each search's last finite point, with its last value as
    objective.
    """
    walkers = [_Walker((x,), schedule.rate) for x in starts]
    runs = [SearchRun(walker.here()) for walker in walkers]
    for k in range(schedule.steps):
        between(k, runs)
        for s, walker in enumerate(walkers):
            here = partial(objective, s, k)
            runs[s] = _step(here, walker, schedule, k, generator, project, runs[s])
        step(what, k + 1, schedule.steps)
        if expired():
            return [replace(run, ended="out of time") for run in runs]
    return runs


def _step(
    objective: Objective,
    walker: _Walker,
    schedule: RateSchedule,
    k: int,
    generator: Generator,
    project: Callable[[Tensor], Tensor],
    run: SearchRun,
) -> SearchRun:
    """Take one step of one search; a point without a finite slope is replaced by the last one."""
    if schedule.langevin:
        walker.shake(schedule.langevin * schedule.at(k), generator)
    value, (slope,) = walker.evaluate(objective)
    counted = replace(run, steps=run.steps + 1, evaluations=run.evaluations + 1)
    if not (math.isfinite(value) and bool(slope.isfinite().all())):
        walker.back(run.point)
        return counted
    walker.move((shaped(slope, schedule.slopes),), project, schedule.at(k))
    return replace(counted, point=walker.here(), objective=value)


def signed_adam(
    objective: Objective,
    start: Point,
    steps: int,
    rate: float,
    project: Callable[[Tensor], Tensor],
    what: str = "signed Adam",
) -> SearchRun:
    """Minimise with Adam on the sign of the slope (Geiping et al. 2020, section 5).

    The rate is in the data's units. It decreases to a tenth three times, each time after 150
    steps without a gain, or after 3/8, 5/8 and 7/8 of the steps.
    """
    best = SearchRun(tuple(t.detach() for t in start))
    converged = True
    for level, share in enumerate(SHARES):
        stalled = 0
        lower = rate * DECAY**level
        walker = _Walker(best.point, lower)
        for _ in range(max(1, steps * share // 8)):
            value, slopes = walker.evaluate(objective)
            gained = value < (1 - GAIN) * best.objective
            stalled = 0 if gained else stalled + 1
            best = better(best, walker.x, value)
            best = replace(best, steps=best.steps + 1, evaluations=best.evaluations + 1)
            step(what, best.steps, steps)
            if expired():
                return replace(best, ended="out of time")
            if stalled >= STALL or not all(bool(s.isfinite().all()) for s in slopes):
                break
            walker.move([shaped(s, "hard") for s in slopes], project, lower)
        converged = converged and stalled >= STALL
    if math.isinf(best.objective):
        return replace(best, ended="diverged")
    return replace(best, ended="converged" if converged else "stopped")


def together(
    problems: Problems,
    start: Tensor,
    schedule: RateSchedule,
    project: Callable[[Tensor], Tensor],
    what: str,
    between: Callable[[int], None] = lambda k: None,
) -> list[SearchRun]:
    """Minimise every problem from (K, n) as `minimise` does without noise, evaluated together.

    A search with a non-finite objective or slope returns to the last point where both were
    finite.
    """
    x = start
    kept = start  # the last points with finite slopes
    last = torch.full((len(start),), math.inf, dtype=torch.float64, device=start.device)
    mean = torch.zeros_like(x)
    square = torch.zeros_like(x)
    b1, b2 = BETAS
    shape = torch.vmap(partial(shaped, slopes=schedule.slopes))
    done = 0
    late = False
    while done < schedule.steps and not late:
        between(done)
        value, slope = problems(x)
        slope = shape(slope)
        fine = (value.isfinite() & slope.isfinite().all(1))[:, None]
        # Kingma and Ba 2015, algorithm 1: both moments, without their bias towards zero
        first = torch.lerp(slope, mean, b1)
        second = torch.lerp(slope * slope, square, b2)
        root = (second / (1 - b2 ** (done + 1))).sqrt() + EPSILON
        move = first / (1 - b1 ** (done + 1)) / root
        moved = project(x - schedule.at(done) * move)
        stood = x
        x = torch.where(fine, moved, kept)
        kept = torch.where(fine, stood, kept)
        mean = torch.where(fine, first, mean)
        square = torch.where(fine, second, square)
        last = torch.where(fine[:, 0], value.to(last), last)
        done += 1
        step(what, done, schedule.steps)
        late = expired()
    why: Ended = "out of time" if late else "stopped"
    runs: list[SearchRun] = []
    for row, objective in zip(x, last, strict=True):
        runs.append(SearchRun(problems.split(row), float(objective), done, done, why))
    return runs


def shaped(slope: Tensor, slopes: Slopes) -> Tensor:
    """Change the magnitudes of slopes, so that small ones have an effect."""
    if slopes == "hard":
        return slope.sign()
    if slopes == "soft":
        return slope / positive(slope.abs() + slope.abs().mean())
    return slope
