"""Search for inputs with the leaked gradients, shared by DLG and iDLG.

L-BFGS moves dummy inputs, and dummy labels unless these are known, until their gradients equal
those of the leak.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Generator, Tensor

from leakaudit.core.reconstruction import Reconstruction
from leakaudit.inversion.labels import soft_labels
from leakaudit.inversion.search import batched_search, objectives, priors
from leakaudit.inversion.search.batched_search import ENOUGH, FORMATS, SearchSchedule
from leakaudit.inversion.search.cosine_transform import Spectrum
from leakaudit.inversion.search.evaluate import Problems
from leakaudit.inversion.search.objectives import Gradients
from leakaudit.inversion.search.optimise import Point

if TYPE_CHECKING:
    from leakaudit.core.leak import GradientLeak
    from leakaudit.tasks.task import Task


class _Matching(Protocol):
    """The hyper-parameters that DLG and iDLG have in common."""

    @property
    def steps(self) -> int: ...
    @property
    def restarts(self) -> int: ...
    @property
    def goal(self) -> float: ...
    @property
    def rows(self) -> int: ...
    @property
    def start(self) -> priors.Start: ...
    @property
    def space(self) -> str: ...
    @property
    def dtype(self) -> str: ...


def reconstructions(
    name: str,
    leaks: Sequence[GradientLeak],
    task: Task,
    generators: Sequence[Generator],
    search: _Matching,
    sizes: Sequence[int],
    known: Tensor | None = None,
) -> Iterator[tuple[int, Reconstruction]]:
    """Search for the inputs of several leaks, those of one shape together.

    Labels are searched as well unless `known` (K, b) has them. Yields the index of a leak and its
    reconstruction.
    """
    targets = [objectives.target(leak, task, search.rows, torch.float64) for leak in leaks]
    space = Spectrum.of(task.spec.shape, task.device) if search.space == "spectrum" else None
    schedule = SearchSchedule(search.steps, formats=FORMATS[search.dtype])
    for group in objectives.alike(targets, sizes):
        chosen = [targets[k] for k in group]
        # No search can fit better than the leak's own noise. Objectives are squared residuals.
        goals = [max(search.goal, target.noise) ** 2 for target in chosen]
        problems = Problems(
            task,
            partial(_objective, task, chosen[0].columns, space),
            (*objectives.stacked(chosen), *(() if known is None else (known[group],))),
            torch.tensor(goals, dtype=torch.float64, device=task.device),
        )

        def draw(place: int, group: list[int] = group) -> Point:
            k = group[place]
            x = priors.start(task, sizes[k], generators[k], search.start, torch.float64)
            if space is not None:
                x = space.coordinates(x)
            if known is not None:
                return (x,)
            return x, soft_labels.raw(task, sizes[k], generators[k], torch.float64)

        found = batched_search.restarted(problems, draw, search.restarts, ENOUGH, schedule, name)
        for place, run in found:
            k = group[place]
            z, *variables = run.point
            x = z if space is None else space.image(z)
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
    task: Task,
    columns: slice,
    space: Spectrum | None,
    gradients: Gradients,
    given: Point,
    point: Point,
) -> Tensor:
    """Return the squared relative residual of each problem (see `Problems`)."""
    theta, mixing, aim, *known = given
    z, *variables = point
    x = z if space is None else space.image(z)
    y = known[0] if known else soft_labels.soft(task, variables[0])
    found = objectives.mixed(gradients, columns, theta, mixing, x, y)
    return objectives.squared(found, aim)
