"""Adam with a cosine schedule for several searches at once: what GradInversion and the softer form of Inverting Gradients share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Generator, Tensor

from leakaudit.inversion.search.evaluate import Problems
from leakaudit.inversion.search.optimise import Ended, Run
from leakaudit.progress import expired, step

Slopes = Literal["raw", "soft", "hard"]


@dataclass(frozen=True)
class Schedule:
    """How Adam goes.

    steps: of each search. rate: largest step in the data's units; it rises over `warmup` steps and falls along a cosine. slopes: as they
    are, s / (|s| + mean |s|), or sign(s). langevin: deviation of noise added to a point before its slope is taken, over the rate.
    betas: of Adam.
    """

    steps: int
    rate: float
    slopes: Slopes = "raw"
    warmup: int = 0
    langevin: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)

    def at(self, k: int) -> float:
        """Rate of step k, counted from 0."""
        rise = min(1.0, (k + 1) / self.warmup) if self.warmup else 1.0
        return self.rate * rise * 0.5 * (1 + math.cos(math.pi * k / self.steps))


def minimise(
    objective: Callable[[int, int, Tensor], Tensor],
    starts: list[Tensor],
    schedule: Schedule,
    project: Callable[[Tensor], Tensor],
    generator: Generator,
    what: str,
    between: Callable[[int, list[Run]], None] = lambda k, runs: None,
) -> list[Run]:
    """Minimise ``objective(search, step, x)`` from every start, all searches step by step; each one's last finite point comes back.

    between: called with the step's number and all searches as they stand, before each step. The objective of a run is its last value.
    """
    xs = [x.detach().clone().requires_grad_() for x in starts]
    optimisers = [torch.optim.Adam([x], lr=schedule.rate, betas=schedule.betas) for x in xs]
    runs = [Run((x.detach().clone(),)) for x in xs]
    for k in range(schedule.steps):
        between(k, runs)
        for s, (x, optimiser) in enumerate(zip(xs, optimisers, strict=True)):
            optimiser.param_groups[0]["lr"] = schedule.at(k)
            runs[s] = _step(
                partial(objective, s, k), x, optimiser, schedule, k, generator, project, runs[s]
            )
        step(what, k + 1, schedule.steps)
        if expired():
            return [replace(run, ended="out of time") for run in runs]
    return runs


def together(
    problems: Problems,
    start: Tensor,
    schedule: Schedule,
    project: Callable[[Tensor], Tensor],
    what: str,
    between: Callable[[int], None] = lambda k: None,
) -> list[Run]:
    """Minimise every problem from its start (K, n), as `minimise` does without noise; all share an evaluation.

    A search whose objective or slope is not finite returns to the last point where both were. between: called before each step.
    """
    x, kept, last = (
        start,
        start,
        torch.full((len(start),), math.inf, dtype=torch.float64, device=start.device),
    )
    mean, square = torch.zeros_like(x), torch.zeros_like(x)
    (b1, b2), done, late = schedule.betas, 0, False
    while done < schedule.steps and not late:
        between(done)
        value, slope = problems(x)
        slope = torch.vmap(partial(shaped, slopes=schedule.slopes))(slope)
        fine = (value.isfinite() & slope.isfinite().all(1))[:, None]
        first, second = torch.lerp(slope, mean, b1), torch.lerp(slope * slope, square, b2)
        move = first / (1 - b1 ** (done + 1)) / ((second / (1 - b2 ** (done + 1))).sqrt() + 1e-8)
        moved = project(x - schedule.at(done) * move)
        x, kept = torch.where(fine, moved, kept), torch.where(fine, x, kept)
        mean, square = torch.where(fine, first, mean), torch.where(fine, second, square)
        last = torch.where(fine[:, 0], value.to(last), last)
        done += 1
        step(what, done, schedule.steps)
        late = expired()
    why: Ended = "out of time" if late else "stopped"
    return [
        Run(problems.split(row), float(f), done, done, why) for row, f in zip(x, last, strict=True)
    ]


def _step(
    objective: Callable[[Tensor], Tensor],
    x: Tensor,
    optimiser: torch.optim.Adam,
    schedule: Schedule,
    k: int,
    generator: Generator,
    project: Callable[[Tensor], Tensor],
    run: Run,
) -> Run:
    """One step of one search; a point without a finite slope is left for the search's last one."""
    if schedule.langevin:
        noise = torch.randn(
            x.shape, generator=generator, dtype=x.dtype, device=generator.device
        ).to(x.device)
        with torch.no_grad():
            x.add_(noise, alpha=schedule.langevin * schedule.at(k))
    value = objective(x)
    (slope,) = torch.autograd.grad(value, x)
    if not (math.isfinite(value.item()) and bool(slope.isfinite().all())):
        with torch.no_grad():
            x.copy_(run.point[0])
        return replace(run, steps=run.steps + 1, evaluations=run.evaluations + 1)
    x.grad = shaped(slope, schedule.slopes)
    optimiser.step()
    with torch.no_grad():
        x.copy_(project(x))
    return replace(
        run,
        point=(x.detach().clone(),),
        objective=value.item(),
        steps=run.steps + 1,
        evaluations=run.evaluations + 1,
    )


def shaped(slope: Tensor, slopes: Slopes) -> Tensor:
    """Return slopes as `Schedule` says."""
    if slopes == "hard":
        return slope.sign()
    return (
        slope / (slope.abs() + slope.abs().mean()).clamp_min(torch.finfo(slope.dtype).tiny)
        if slopes == "soft"
        else slope
    )
