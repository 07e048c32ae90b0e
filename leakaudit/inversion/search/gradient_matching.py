"""Search for inputs with the leaked gradients, shared by DLG and iDLG.

L-BFGS moves dummy inputs, and in DLG also dummy labels, until their gradients equal those of the
leak. Several leaks of one shape are searched together, and each from further starts as long as it
does not fit. The two attacks differ only in what they search in addition to the inputs, and pass it
as functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from leakaudit.inversion.search import batched_search, objectives
from leakaudit.inversion.search.batched_search import ENOUGH, FORMATS, SearchSchedule
from leakaudit.inversion.search.cosine_transform import Spectrum
from leakaudit.inversion.search.evaluate import Problems
from leakaudit.inversion.search.objectives import Gradients, Target
from leakaudit.inversion.search.optimise import Point, SearchRun

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

Space = Literal["spectrum", "pixels"]
Format = Literal["mixed", "float32", "float64"]


@dataclass(frozen=True)
class MatchingParameters:
    """Parameters of gradient matching."""

    steps: int  # maximum number of L-BFGS steps of 20 iterations, from each start
    restarts: int  # maximum number of starting points
    goal: float  # relative residual at which a search stops
    space: Space  # coordinates in which an image moves: scaled frequencies, or pixels
    dtype: Format  # number format; `mixed` is float32 and then float64


@dataclass(frozen=True)
class SearchVariables:
    """What to search for, and the labels that belong to it."""

    # draws a new start for a leak, given its index: the inputs (b, *shape), followed by any other
    # tensors to search for
    start: Callable[[int], Point]
    # for the indices of some leaks, tensors with one row per leak that the labels depend on
    constants: Callable[[list[int]], Point]
    # computes labels from these constants and from the other tensors
    labels: Callable[[Point, Point], Tensor]


@dataclass(frozen=True)
class BestMatch:
    """The best search for one leak."""

    place: int  # index of the leak
    x: Tensor  # (b, *shape) the inputs in the data's units
    others: Point
    run: SearchRun


def matched(
    task: Task,
    targets: Sequence[Target],
    sizes: Sequence[int],
    search: MatchingParameters,
    unknowns: SearchVariables,
    what: str,
) -> Iterator[BestMatch]:
    """Search for the inputs of several leaks, those of one shape together."""
    space = Spectrum.of(task.spec.shape, task.device) if search.space == "spectrum" else None
    schedule = SearchSchedule(search.steps, formats=FORMATS[search.dtype])
    for group in objectives.alike(targets, sizes):
        chosen = [targets[k] for k in group]
        # No search can fit better than the leak's own noise. Objectives are squared residuals.
        goals = [max(search.goal, target.noise) ** 2 for target in chosen]
        problems = Problems(
            task,
            partial(_objective, chosen[0].columns, space, unknowns.labels),
            (*objectives.stacked(chosen), *unknowns.constants(group)),
            torch.tensor(goals, dtype=torch.float64, device=task.device),
        )

        def draw(place: int, group: list[int] = group) -> Point:
            x, *others = unknowns.start(group[place])
            return (x if space is None else space.coordinates(x), *others)

        found = batched_search.restarted(problems, draw, search.restarts, ENOUGH, schedule, what)
        for place, run in found:
            z, *others = run.point
            x = z if space is None else space.image(z)
            yield BestMatch(group[place], x, tuple(others), run)


def _objective(
    columns: slice,
    space: Spectrum | None,
    labels: Callable[[Point, Point], Tensor],
    gradients: Gradients,
    given: Point,
    point: Point,
) -> Tensor:
    """Return the squared relative residual of each problem (see `Problems`)."""
    theta, mixing, aim, *constants = given
    z, *others = point
    x = z if space is None else space.image(z)
    y = labels(tuple(constants), tuple(others))
    found = objectives.mixed(gradients, columns, theta, mixing, x, y)
    return objectives.squared(found, aim)
