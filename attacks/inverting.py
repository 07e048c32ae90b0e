"""Inverting Gradients (Geiping et al. 2020): cosine similarity of gradients, and a smooth image."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Generator, Tensor

from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.registry import attack, param
from leakaudit.inversion.attack import Attack
from leakaudit.inversion.labels import read_labels
from leakaudit.inversion.search import adam, local_training, objectives, optimise, priors
from leakaudit.inversion.search.adam import RateSchedule
from leakaudit.inversion.search.evaluate import Problems
from leakaudit.inversion.search.objectives import Gradients, Target
from leakaudit.inversion.search.optimise import Point, SearchRun
from leakaudit.tasks.smoothed_relu import Rounding

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# The published loss is 1 - cos(g', g) + alpha TV(x) (eq. 4), minimised with Adam on the sign of the
# slope, within the range of pixels. The cosine ignores the length of gradients, which changes by
# orders of magnitude during training.
#
# Two things are new, and ``sign=hard`` reverts both. The soft sign shrinks slopes that are small
# compared with the others, and ReLUs are rounded at first (`leakaudit.tasks.smoothed_relu`). This
# reaches a quarter of the final loss of the published recipe, in a quarter of its steps.
#
# For a local training, the cosine compares updates, and all local steps are differentiated (section
# 6 of the paper).


@dataclass(frozen=True)
class _Wanted:
    """One leak of single gradients to be searched together with others."""

    place: int  # index of the leak
    target: Target  # what its gradients are compared with
    y: Tensor  # (b,) labels
    how: str  # how the labels were found, for the note
    generator: Generator  # draws the starts


@attack("inverting")
@dataclass(frozen=True)
class Inverting(Attack):
    """Cosine and total variation, minimised with signed Adam.

    Labels are read from the last layer if they are not given. Single gradients are searched in one
    batch.
    """

    exact: ClassVar[bool] = False
    rank: ClassVar[int] = 2
    reads: ClassVar[str] = (
        "plain gradients or local trainings at known models, with the last layer or known labels"
    )
    paper: ClassVar[str] = (
        "Geiping et al. 2020, Inverting Gradients: "
        "How easy is it to break privacy in federated learning?"
    )
    cost: ClassVar[str] = (
        "one double backward pass per step and one more per further local step; "
        "3 to 6 s for a small network on one core"
    )

    labels: Sequence[int] = param(
        (), "known labels, e.g. 3 or 3,1,4; default: read from the last layer"
    )
    steps: int = param(1200, "maximum number of Adam steps per restart")
    restarts: int = param(1, "number of starting points; the one with the best objective is kept")
    rate: float = param(0.1, "first step in the data's units")
    tv: float = param(2e-2, "weight of total variation", "alpha")
    sign: Literal["hard", "soft"] = param(
        "soft",
        "sign of slopes; soft: slope divided by its size plus the mean size, with a cosine "
        "schedule; hard: as published",
    )
    rounding: float = param(
        0.8,
        "initial width of rounded ReLUs, relative to their inputs; "
        "decreases to a fortieth; 0 or sign=hard: no rounding",
    )
    rows: int = param(1, "maximum number of gradients of the leak to fit at once")
    batch: int | None = param(
        None, "number of samples behind each gradient; default: as stated by the leak"
    )
    samples: int | None = param(
        None,
        "number of different records in a local training with mini-batches; "
        "default: the size of one mini-batch",
    )
    decay: float = param(0.0, "weight decay of the local steps")
    dtype: Literal["float32", "float64"] = param(
        "float32", "number format of the search; float32 is sufficient for signs"
    )

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Require labels, and plain gradients or local trainings that start from known models."""
        return local_training.refused(leak, task, self.labels, self.batch, self.samples)

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the inputs; the certificate states whether they fit."""
        return next(found for _, found in self.many([leak], task, [generator]))

    def many(
        self, leaks: Sequence[GradientLeak], task: Task, generators: Sequence[Generator]
    ) -> Iterator[tuple[int, Reconstruction]]:
        """Reconstruct the inputs of several leaks; local trainings and hard signs come first."""
        single: list[int] = []
        for k, leak in enumerate(leaks):
            local = local_training.of(leak, self.batch, self.samples)
            if self.sign == "soft" and local.steps == 1:
                single.append(k)
            else:
                yield k, self._one_by_one(leak, task, generators[k])
        wanted: list[_Wanted] = []
        for k in single:
            batch = self.batch or leaks[k].batch or 1
            y, how = read_labels.given_or_read(self.labels, leaks[k], task, batch)
            target = objectives.target(leaks[k], task, self.rows, getattr(torch, self.dtype))
            wanted.append(_Wanted(k, target, y, how, generators[k]))
        targets = [one.target for one in wanted]
        for group in objectives.alike(targets, [len(one.y) for one in wanted]):
            for one, run in self._search([wanted[k] for k in group], task):
                residual = partial(objectives.misfit, one.target, task, y=one.y)
                note = f"{one.how}signed Adam {run}"
                leak = leaks[one.place]
                found = objectives.reconstruction(
                    "inverting", leak, task, one.target, run.point[0], one.y, residual, note
                )
                yield one.place, found

    def _search(self, wanted: list[_Wanted], task: Task) -> Iterator[tuple[_Wanted, SearchRun]]:
        """Search targets of one shape together from all starts; yield the best run of each."""
        each = [one for one in wanted for _ in range(self.restarts)]
        targets = [one.target for one in each]
        y = torch.stack([one.y for one in each])
        dtype = targets[0].aim.dtype
        drawn = [priors.start(task, y.shape[1], one.generator, "normal", dtype) for one in each]
        starts = torch.stack(drawn)
        rounding = Rounding(self.rounding)
        problems = Problems(
            self._rounded(task, rounding),
            partial(_objective, targets[0].columns, self.tv),
            (*objectives.stacked(targets), y),
            starts.new_zeros(len(each)),
        ).at((starts,))
        runs = adam.together(
            problems,
            starts.flatten(1),
            RateSchedule(self.steps, self.rate, "soft"),
            partial(priors.boxed, task),
            "inverting",
            lambda k: rounding.at(k / self.steps),
        )
        for k, one in enumerate(wanted):
            mine = runs[k * self.restarts : (k + 1) * self.restarts]
            best = min(mine, key=lambda run: run.objective)
            yield one, best.after(*(run for run in mine if run is not best))

    def _one_by_one(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the inputs of a single leak, which may be a local training."""
        local = local_training.of(leak, self.batch, self.samples, self.decay)
        y, how = read_labels.given_or_read(self.labels, leak, task, local.samples)
        dtype = getattr(torch, self.dtype)
        rows = self.rows if local.batches == 1 else 1
        target = objectives.target(leak, task, rows, dtype)
        rounding = Rounding(self.rounding)
        smooth = self._rounded(task, rounding)
        box = partial(priors.boxed, task)

        def objective(x: Tensor) -> Tensor:
            cosine = local_training.cosine(target, smooth, local, x, y)
            return cosine + self.tv * priors.total_variation(x)

        def hard(start: Point) -> SearchRun:
            return adam.signed_adam(objective, start, self.steps, self.rate, box, "inverting")

        def soft(start: Point) -> SearchRun:
            (run,) = adam.minimise(
                lambda search, step, x: objective(x),
                list(start),
                RateSchedule(self.steps, self.rate, "soft"),
                box,
                generator,
                "inverting",
                lambda k, runs: rounding.at(k / self.steps),
            )
            return run

        def draw() -> Point:
            return (priors.start(task, local.samples, generator, "normal", dtype),)

        search = hard if self.sign == "hard" else soft
        run = optimise.restarted(search, draw, self.restarts, -math.inf)
        residual = partial(local_training.misfit, target, task, local, y=y)
        note = f"{how}signed Adam {run}"
        return objectives.reconstruction(
            "inverting", leak, task, target, run.point[0], y, residual, note
        )

    def _rounded(self, task: Task, rounding: Rounding) -> Task:
        return task.rounded(rounding) if self.rounding and self.sign == "soft" else task


def _objective(
    columns: slice, weight: float, gradients: Gradients, given: Point, point: Point
) -> Tensor:
    """Return cosine and total variation of each problem (see `Problems`)."""
    theta, mixing, aim, y = given
    smooth = torch.vmap(priors.total_variation)(point[0])
    found = objectives.mixed(gradients, columns, theta, mixing, point[0], y)
    return objectives.angles(found, aim) + weight * smooth
