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
from leakaudit.inversion.search import batched_search, objectives, priors
from leakaudit.inversion.search.batched_search import ENOUGH, FORMATS, SearchSchedule
from leakaudit.inversion.search.cosine_transform import Transform, coordinates, image, transform
from leakaudit.inversion.search.evaluate import Problems
from leakaudit.inversion.search.optimise import Point

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
    dtype: Literal["mixed", "float32", "float64"] = param(
        "mixed", "number format of the search; mixed: float32, then float64"
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

        def draw(place: int, group: list[int] = group) -> Point:
            k = group[place]
            x = priors.start(task, sizes[k], generators[k], search.start, torch.float64)
            if space is not None:
                x = coordinates(space, x)
            if known is not None:
                return (x,)
            return x, soft_labels.raw(task, sizes[k], generators[k], torch.float64)

        found = batched_search.restarted(problems, draw, search.restarts, ENOUGH, schedule, name)
        for place, run in found:
            k = group[place]
            z, *variables = run.point
            x = z if space is None else image(space, z)
            if known is None:
                soft = soft_labels.soft(task, variables[0])
                y = soft_labels.hard(task, variables[0])
            else:
                soft = y = known[k]
            residual = partial(objectives.misfit, targets[k], task, y=soft)
            note = f"L-BFGS {run}"
            yield (
                k,
                objectives.reconstruction(name, leaks[k], task, targets[k], x, y, residual, note),
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
