"""Search for inputs with the leaked gradients, shared by DLG and iDLG.

L-BFGS moves dummy inputs, and dummy labels unless these are known, until their gradients equal
those of the leak.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Generator, Tensor

from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.registry import param
from leakaudit.inversion.attack import Attack
from leakaudit.inversion.labels import soft_labels
from leakaudit.inversion.search import (
    batched_search,
    objectives,
    optimise,
    priors,
    published_lbfgs,
)
from leakaudit.inversion.search.batched_search import ENOUGH, FORMATS, SearchSchedule
from leakaudit.inversion.search.cosine_transform import Transform, coordinates, image, transform
from leakaudit.inversion.search.evaluate import Problems
from leakaudit.inversion.search.objectives import Target
from leakaudit.inversion.search.optimise import Point, SearchRun
from leakaudit.inversion.search.priors import Start

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.tasks.task import Task


@dataclass(frozen=True)
class GradientMatching(Attack):
    """An attack that searches for inputs with the leaked gradients by L-BFGS."""

    exact: ClassVar[bool] = False

    steps: int = param(300, "maximum number of L-BFGS steps (20 iterations each) per restart")
    restarts: int = param(
        3,
        "maximum number of starting points; more are tried, in groups of 1, 2, 4, ..., "
        "if ten times the goal is missed",
    )
    goal: float = param(3e-5, "relative residual at which the search stops")
    rows: int = param(1, "maximum number of gradients of the leak to fit at once")
    start: Literal["gray", "uniform", "normal"] = param(
        "gray", "dummy inputs: near 0.5, uniform in [0, 1], or N(0, 1) as published"
    )
    space: Literal["spectrum", "pixels"] = param(
        "spectrum", "variables of L-BFGS: scaled frequencies of the image, or pixels as published"
    )
    search: Literal["wolfe", "published"] = param(
        "wolfe",
        "L-BFGS with a line search (weak Wolfe conditions), or as published: torch's L-BFGS with "
        "its defaults, without a line search, on the squared distance",
    )
    dtype: Literal["mixed", "float32", "float64"] = param(
        "mixed",
        "number format of the search; mixed: float32, then float64 (search=published: float32)",
    )

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the inputs; the certificate states whether they fit."""
        return next(found for _, found in self.many([leak], task, [generator]))

    @abstractmethod
    def many(
        self, leaks: Sequence[GradientLeak], task: Task, generators: Sequence[Generator]
    ) -> Iterator[tuple[int, Reconstruction]]:
        """Reconstruct the inputs of several leaks in one batch."""


def reconstructions(
    name: str,
    leaks: Sequence[GradientLeak],
    task: Task,
    generators: Sequence[Generator],
    search: GradientMatching,
    sizes: Sequence[int],
    known: Tensor | None = None,
) -> Iterator[tuple[int, Reconstruction]]:
    """Search for the inputs of several leaks, those of one shape together.

    Labels are searched as well unless `known` (K, b) has them. Yields the index of a leak and its
    reconstruction.
    """
    targets = [objectives.target(leak, task, search.rows, torch.float64) for leak in leaks]
    space = transform(task.spec.shape, task.device) if search.space == "spectrum" else None
    if search.search == "published":
        for k, leak in enumerate(leaks):
            labels = None if known is None else known[k]
            one = _Problem(task, leak, targets[k], sizes[k], labels, space, generators[k])
            yield k, one.reported(name, one.published(name, search))
        return
    schedule = SearchSchedule(search.steps, formats=FORMATS[search.dtype])
    for group in objectives.alike(targets, sizes):
        chosen = [targets[k] for k in group]
        # No search can fit better than the leak's own noise. Objectives are squared residuals.
        goals = [max(search.goal, target.noise) ** 2 for target in chosen]
        problems = Problems(
            partial(_objective, task, chosen[0].columns, space),
            (*objectives.stacked(chosen), *(() if known is None else (known[group],))),
            torch.tensor(goals, dtype=torch.float64, device=task.device),
            task.vectorised,
        )

        each = {}
        for k in group:
            labels = None if known is None else known[k]
            each[k] = _Problem(task, leaks[k], targets[k], sizes[k], labels, space, generators[k])

        def draw(place: int, group: list[int] = group, each: dict[int, _Problem] = each) -> Point:
            return each[group[place]].draw(search.start)

        found = batched_search.restarted(problems, draw, search.restarts, ENOUGH, schedule, name)
        for place, run in found:
            k = group[place]
            yield k, each[k].reported(name, run)


@dataclass(frozen=True)
class _Problem:
    """The search for the inputs of one leak."""

    task: Task
    leak: GradientLeak
    target: Target
    size: int  # number of samples
    known: Tensor | None  # (b,) labels that are known
    space: Transform | None  # the variables of the image; None for pixels
    generator: Generator

    def draw(self, kind: Start) -> Point:
        """Draw a start: the variables of the image, and those of labels unless they are known."""
        x = priors.start(self.task, self.size, self.generator, kind, torch.float64)
        if self.space is not None:
            x = coordinates(self.space, x)
        if self.known is not None:
            return (x,)
        return x, soft_labels.raw(self.task, self.size, self.generator, torch.float64)

    def parts(self, point: Point) -> tuple[Tensor, Tensor]:
        """Return the images of a point, and its labels as the loss takes them."""
        z, *variables = point
        x = z if self.space is None else image(self.space, z)
        if self.known is not None:
            return x, self.known
        return x, soft_labels.soft(self.task, variables[0])

    def published(self, name: str, search: GradientMatching) -> SearchRun:
        """Search without a line search, on the squared distance of the gradients (eq. 2)."""
        dtype = FORMATS[search.dtype][0]
        target = self.target.to(dtype)
        size = float(self.target.value.square().sum())

        def objective(*point: Tensor) -> Tensor:
            return size * objectives.l2(target, self.task, *self.parts(point))

        def run(start: Point) -> SearchRun:
            start = tuple(tensor.to(dtype) for tensor in start)
            return published_lbfgs.minimise(objective, start, search.steps, goal, name)

        goal = size * max(search.goal, self.target.noise) ** 2
        draw = partial(self.draw, search.start)
        return optimise.restarted(run, draw, search.restarts, ENOUGH * goal)

    def reported(self, name: str, run: SearchRun) -> Reconstruction:
        """Return the result of a search."""
        point = tuple(tensor.double() for tensor in run.point)
        x, soft = self.parts(point)
        y = soft if self.known is not None else soft_labels.hard(self.task, point[1])
        residual = partial(objectives.misfit, self.target, self.task, y=soft)
        note = f"L-BFGS {run}"
        return objectives.reconstruction(
            name, self.leak, self.task, self.target, x, y, residual, note
        )


def _objective(
    task: Task, columns: slice, space: Transform | None, given: Point, point: Point
) -> Tensor:
    """Return the squared relative residual of each problem (see `Problems`)."""
    theta, mixing, aim, *known = given
    z, *variables = point
    x = z if space is None else image(space, z)
    y = known[0] if known else soft_labels.soft(task, variables[0])
    found = objectives.mixed(task.again, columns, theta, mixing, x, y)
    return objectives.squared(found, aim)
