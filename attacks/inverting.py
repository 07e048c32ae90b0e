"""Inverting Gradients: cosine between gradients and total variation, minimised with Adam on the sign of the slope, in the box of pixels.

The soft sign shrinks slopes that are small beside the others, and ReLUs are rounded at first (`leakaudit.tasks.smoothed_relu`): a quarter of the
loss that the published recipe ends at, after a quarter of its steps.

Of a local training the cosine is between updates, and all its steps are differentiated (section 6 of the paper).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Generator, Tensor

from leakaudit.errors import AttackError
from leakaudit.inversion.labels import label_signs as labels
from leakaudit.inversion.search import local_training, objectives, optimise, priors
from leakaudit.inversion.search.adam import Schedule, minimise, together
from leakaudit.inversion.search.evaluate import Problems
from leakaudit.inversion.search.objectives import Gradients, Target
from leakaudit.leak import GradientLeak
from leakaudit.reconstruction import Reconstruction
from leakaudit.registry import attack, param
from leakaudit.tasks.smoothed_relu import Rounding

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task


@attack("inverting")
@dataclass(frozen=True)
class Inverting:
    """Cosine and total variation with signed Adam; labels are read where they are not given, single gradients are searched together."""

    exact: ClassVar[bool] = False
    rank: ClassVar[int] = 2
    reads: ClassVar[str] = (
        "plain gradients or local trainings at known models, with the last layer or known labels"
    )
    paper: ClassVar[str] = (
        "Geiping et al. 2020, Inverting Gradients: How easy is it to break privacy in federated learning?"
    )
    cost: ClassVar[str] = (
        "one double backward pass a step, one more for each further local step; 3 to 6 s for a small network on one core"
    )

    labels: str = param(
        "", "known labels, e.g. 3 or 3,1,4; read from the last layer where not given"
    )
    steps: int = param(1200, "most steps of Adam, each restart")
    restarts: int = param(1, "starting points; the best by objective is kept")
    rate: float = param(0.1, "first step in the data's units")
    tv: float = param(2e-2, "weight of total variation", "alpha")
    sign: Literal["hard", "soft"] = param(
        "soft",
        "of slopes; soft: over its size and the mean size, cosine schedule; hard: as published",
    )
    rounding: float = param(
        0.8,
        "width of rounded ReLUs at the start, over their inputs; it falls to a fortieth; 0 or sign=hard: none",
    )
    rows: int = param(1, "most gradients of the leak that are fitted at once")
    batch: int | None = param(
        None, "samples behind each gradient; as the leak says where not given"
    )
    samples: int | None = param(
        None,
        "different records of a local training in mini-batches; as many as one step takes where not given",
    )
    decay: float = param(0.0, "weight decay of the steps of a local training")
    dtype: Literal["float32", "float64"] = param(
        "float32", "number format of the search; signs need no more"
    )

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Need plain gradients at known models, or local trainings from known ones, and labels."""
        return local_training.refused(leak, task, self.labels, self.batch, self.samples)

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the inputs; the certificate says whether they fit."""
        return next(found for _, found in self.many([leak], task, [generator]))

    def many(
        self, leaks: Sequence[GradientLeak], task: Task, generators: Sequence[Generator]
    ) -> Iterator[tuple[int, Reconstruction]]:
        """Reconstruct the inputs of several leaks, single gradients together; yield each one's place and reconstruction."""
        if why := next(filter(None, (self.refuses(leak, task) for leak in leaks)), None):
            raise AttackError(f"inverting cannot use this leak: {why}")
        single = [
            k
            for k, leak in enumerate(leaks)
            if self.sign == "soft" and local_training.of(leak, self.batch, self.samples).steps == 1
        ]
        for k in sorted(set(range(len(leaks))) - set(single)):
            yield k, self._alone(leaks[k], task, generators[k])
        read = [
            labels.given_or_read(self.labels, leaks[k], task, self.batch or leaks[k].batch or 1)
            for k in single
        ]
        targets = [
            objectives.target(leaks[k], task, self.rows, getattr(torch, self.dtype)) for k in single
        ]
        for group in objectives.alike(targets, [len(y) for y, _ in read]):
            for place, run in self._search(
                [(targets[k], read[k][0], generators[single[k]]) for k in group], task
            ):
                at = group[place]
                (y, how), leak, target = read[at], leaks[single[at]], targets[at]
                residual = partial(objectives.misfit, target, task, y=y)
                note = f"{how}signed Adam {run}"
                yield (
                    single[at],
                    objectives.reconstruction(
                        "inverting", leak, task, target, run.point[0], y, residual, note
                    ),
                )

    def _search(
        self, wanted: list[tuple[Target, Tensor, Generator]], task: Task
    ) -> Iterator[tuple[int, optimise.Run]]:
        """Search targets of one shape from all their starts together; yield each one's place and best run."""
        rows = [k for k in range(len(wanted)) for _ in range(self.restarts)]
        targets, labelled = [wanted[k][0] for k in rows], torch.stack([wanted[k][1] for k in rows])
        dtype = targets[0].aim.dtype
        starts = torch.stack(
            [priors.start(task, labelled.shape[1], wanted[k][2], "normal", dtype) for k in rows]
        )
        objective = partial(_objective, targets[0].columns, self.tv)
        rounding = Rounding(self.rounding)
        given = (*objectives.stacked(targets), labelled)
        problems = Problems(
            self._rounded(task, rounding), objective, given, starts.new_zeros(len(rows))
        ).at((starts,))
        soft, box = Schedule(self.steps, self.rate, "soft"), partial(priors.boxed, task)
        runs = together(
            problems,
            starts.flatten(1),
            soft,
            box,
            "inverting",
            lambda k: rounding.at(k / self.steps),
        )
        for k in range(len(wanted)):
            mine = runs[k * self.restarts : (k + 1) * self.restarts]
            best = min(mine, key=lambda run: run.objective)
            yield k, best.after(*(run for run in mine if run is not best))

    def _alone(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the inputs of one leak, which may be a local training."""
        local = local_training.of(leak, self.batch, self.samples, self.decay)
        y, how = labels.given_or_read(self.labels, leak, task, local.samples)
        dtype = getattr(torch, self.dtype)
        target = objectives.target(leak, task, self.rows if local.batches == 1 else 1, dtype)
        rounding = Rounding(self.rounding)
        smooth = self._rounded(task, rounding)

        def objective(x: Tensor) -> Tensor:
            return local_training.cosine(
                target, smooth, local, x, y
            ) + self.tv * priors.total_variation(x)

        def search(start: optimise.Point) -> optimise.Run:
            if self.sign == "hard":
                return optimise.signed_adam(
                    objective,
                    start,
                    self.steps,
                    self.rate,
                    partial(priors.boxed, task),
                    "inverting",
                )
            soft = Schedule(self.steps, self.rate, "soft")
            box, sharpen = partial(priors.boxed, task), lambda k, runs: rounding.at(k / self.steps)
            return minimise(
                lambda s, k, x: objective(x),
                list(start),
                soft,
                box,
                generator,
                "inverting",
                sharpen,
            )[0]

        def draw() -> optimise.Point:
            return (priors.start(task, local.samples, generator, "normal", dtype),)

        run = optimise.restarted(search, draw, self.restarts, -math.inf)
        residual = partial(local_training.misfit, target, task, local, y=y)
        return objectives.reconstruction(
            "inverting", leak, task, target, run.point[0], y, residual, f"{how}signed Adam {run}"
        )

    def _rounded(self, task: Task, rounding: Rounding) -> Task:
        return task.rounded(rounding) if self.rounding and self.sign == "soft" else task


def _objective(
    columns: slice,
    weight: float,
    gradients: Gradients,
    given: optimise.Point,
    point: optimise.Point,
) -> Tensor:
    theta, mixing, aim, y = given
    smooth = torch.vmap(priors.total_variation)(point[0])
    return objectives.angles(gradients, columns, theta, mixing, aim, point[0], y) + weight * smooth
