"""Deep leakage from gradients: dummy inputs and dummy soft labels are moved together until their gradient is the one that leaked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Generator, Tensor

from leakaudit.errors import AttackError
from leakaudit.inversion.labels import label_signs
from leakaudit.inversion.search import batched_search, objectives, optimise, priors
from leakaudit.inversion.search.batched_search import ENOUGH, FORMATS, Schedule
from leakaudit.inversion.search.cosine_transform import Spectrum
from leakaudit.inversion.search.evaluate import Problems
from leakaudit.inversion.search.objectives import Gradients
from leakaudit.leak import GradientLeak
from leakaudit.reconstruction import Reconstruction
from leakaudit.registry import attack, param

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task


@attack("dlg")
@dataclass(frozen=True)
class Dlg:
    """L2 between gradients, minimised over inputs and soft labels with L-BFGS; several leaks and starts are searched together."""

    exact: ClassVar[bool] = False
    rank: ClassVar[int] = 1
    reads: ClassVar[str] = "plain gradients at known models"
    paper: ClassVar[str] = "Zhu et al. 2019, Deep Leakage from Gradients"
    cost: ClassVar[str] = "20 double backward passes a step; 3 to 20 s for a LeNet on one core"

    steps: int = param(300, "most L-BFGS steps of 20 iterations, each restart")
    restarts: int = param(
        3,
        "most starting points; more are tried, 1, 2, 4, ... at once, where ten times the goal was missed",
    )
    goal: float = param(3e-5, "relative residual at which the search stops")
    rows: int = param(1, "most gradients of the leak that are fitted at once")
    batch: int | None = param(
        None, "samples behind each gradient; as the leak says where not given"
    )
    start: Literal["gray", "uniform", "normal"] = param(
        "gray", "dummy inputs: near 0.5, uniform in [0, 1], or N(0, 1) as published"
    )
    space: Literal["spectrum", "pixels"] = param(
        "spectrum", "of an image that L-BFGS moves in: scaled frequencies, or pixels as published"
    )
    dtype: Literal["mixed", "float32", "float64"] = param(
        "mixed", "number format of the search; mixed: float32, then float64"
    )

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Need plain gradients at known models."""
        if not leak.is_plain:
            return (
                "it fits single gradients, and this leak's rows combine several; use differential"
            )
        return objectives.missing(leak, self.batch)

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct inputs and labels; the certificate says whether they fit."""
        return next(found for _, found in self.many([leak], task, [generator]))

    def many(
        self, leaks: Sequence[GradientLeak], task: Task, generators: Sequence[Generator]
    ) -> Iterator[tuple[int, Reconstruction]]:
        """Reconstruct inputs and labels of several leaks together; yield each one's place and reconstruction once it is settled."""
        if why := next(filter(None, (self.refuses(leak, task) for leak in leaks)), None):
            raise AttackError(f"dlg cannot use this leak: {why}")
        targets = [objectives.target(leak, task, self.rows, torch.float64) for leak in leaks]
        sizes = [self.batch or leak.batch or 1 for leak in leaks]
        space = Spectrum.of(task.spec.shape, task.device) if self.space == "spectrum" else None
        for group in objectives.alike(targets, sizes):
            chosen = [targets[k] for k in group]
            goal = torch.tensor(
                [max(self.goal, t.noise) ** 2 for t in chosen],
                dtype=torch.float64,
                device=task.device,
            )
            problems = Problems(
                task,
                partial(_objective, task, chosen[0].columns, space),
                objectives.stacked(chosen),
                goal,
            )

            def draw(place: int, group: list[int] = group) -> optimise.Point:
                random, batch = generators[group[place]], sizes[group[place]]
                x = priors.start(task, batch, random, self.start, torch.float64)
                return x if space is None else space.coordinates(x), label_signs.raw(
                    task, batch, random, torch.float64
                )

            schedule = Schedule(self.steps, formats=FORMATS[self.dtype])
            for place, run in batched_search.restarted(
                problems, draw, self.restarts, ENOUGH, schedule, "dlg"
            ):
                k = group[place]
                z, variables = run.point
                x = z if space is None else space.image(z)
                residual = partial(
                    objectives.misfit, targets[k], task, y=label_signs.soft(task, variables)
                )
                y = label_signs.hard(task, variables)
                yield (
                    k,
                    objectives.reconstruction(
                        "dlg", leaks[k], task, targets[k], x, y, residual, f"L-BFGS {run}"
                    ),
                )


def _objective(
    task: Task,
    columns: slice,
    space: Spectrum | None,
    gradients: Gradients,
    given: optimise.Point,
    point: optimise.Point,
) -> Tensor:
    theta, mixing, aim = given
    z, variables = point
    x = z if space is None else space.image(z)
    return objectives.squared(
        gradients, columns, theta, mixing, aim, x, label_signs.soft(task, variables)
    )
