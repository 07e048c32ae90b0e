"""Adam (Kingma and Ba 2015) over dummy inputs, for one or many searches that share evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Generator, Tensor

from leakaudit.core.progress import expired, step
from leakaudit.inversion.linear import positive
from leakaudit.inversion.search.evaluate import Problems
from leakaudit.inversion.search.optimise import Ended, SearchRun

# Each search of a stack can pause individually, which torch's optimiser does not support. The
# equations are the same; results agree with torch up to rounding, because it orders its operations
# differently.

Slopes = Literal["raw", "soft", "hard"]

# Adam's own constants, those of the paper and of torch.
BETAS = (0.9, 0.999)
EPSILON = 1e-8

# Ratio of one rate of `stages` to the previous one, and the shares of the steps after which the
# next one is used (Geiping et al. 2020).
DECAY = 0.1
STAGES = (3 / 8, 5 / 8, 7 / 8)


@dataclass(frozen=True)
class RateSchedule:
    """The schedule of Adam."""

    steps: int  # number of steps of each search
    rate: float  # first and largest step in the data's units
    slopes: Slopes = "raw"  # unchanged (`raw`), s / (|s| + mean |s|) (`soft`), or sign(s) (`hard`)
    # standard deviation of noise added to a point before its slope is computed, relative to the
    # rate
    langevin: float = 0.0
    stages: bool = False  # whether the rate decreases in stages; otherwise along a cosine

    def at(self, k: int) -> float:
        """Return the rate of step k, counted from 0."""
        done = k / self.steps
        if self.stages:
            return self.rate * DECAY ** sum(done >= share for share in STAGES)
        return self.rate * 0.5 * (1 + math.cos(math.pi * done))


def minimise(
    problems: Problems,
    start: Tensor,
    schedule: RateSchedule,
    project: Callable[[Tensor], Tensor],
    what: str,
    between: Callable[[int, Tensor, Tensor], None] = lambda k, x, values: None,
    generator: Generator | None = None,
) -> list[SearchRun]:
    """Minimise every problem from points (K, n), all searches step by step.

    `between` is called before each step with its number, the points, and their last objectives
    (K,); the generator draws the noise of `langevin`. A search with a non-finite objective or slope
    returns to the last point where both were finite.
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
        between(done, x, last)
        rate = schedule.at(done)
        if schedule.langevin:
            x = x + schedule.langevin * rate * _noise(x, generator)
        value, slope = problems(x)
        slope = shape(slope)
        fine = (value.isfinite() & slope.isfinite().all(1))[:, None]
        # Kingma and Ba 2015, algorithm 1: both moments, without their bias towards zero
        first = torch.lerp(slope, mean, b1)
        second = torch.lerp(slope * slope, square, b2)
        root = (second / (1 - b2 ** (done + 1))).sqrt() + EPSILON
        move = first / (1 - b1 ** (done + 1)) / root
        moved = project(x - rate * move)
        stood = x
        x = torch.where(fine, moved, kept)
        kept = torch.where(fine, stood, kept)
        mean = torch.where(fine, first, mean)
        square = torch.where(fine, second, square)
        last = torch.where(fine[:, 0], value.to(last), last)
        done += 1
        step(what, done, schedule.steps)
        late = expired()
    runs: list[SearchRun] = []
    for row, objective in zip(x, last.tolist(), strict=True):
        why: Ended = "out of time" if late else "stopped"
        if math.isinf(objective):
            why = "diverged"
        runs.append(SearchRun(problems.split(row), objective, done, done, why))
    return runs


def _noise(x: Tensor, generator: Generator | None) -> Tensor:
    """Draw normal noise of a point (K, n), one search after the other (Langevin dynamics)."""
    assert generator is not None
    drawn = [
        torch.randn(x.shape[1], generator=generator, dtype=x.dtype, device=generator.device)
        for _ in x
    ]
    return torch.stack(drawn).to(x.device)


def shaped(slope: Tensor, slopes: Slopes) -> Tensor:
    """Change the magnitudes of slopes, so that small ones have an effect."""
    if slopes == "hard":
        return slope.sign()
    if slopes == "soft":
        return slope / positive(slope.abs() + slope.abs().mean())
    return slope
