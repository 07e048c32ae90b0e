"""Improved deep leakage: the label is read from the last layer's gradient, and only the input is searched."""

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


@attack("idlg")
@dataclass(frozen=True)
class Idlg:
    """L2 between gradients of one sample with its label known, minimised with L-BFGS; several leaks and starts are searched together."""

    exact: ClassVar[bool] = False
    rank: ClassVar[int] = 0
    reads: ClassVar[str] = "plain gradients of one sample at known models, with the last layer"
    paper: ClassVar[str] = "Zhao et al. 2020, iDLG: Improved Deep Leakage from Gradients"
    cost: ClassVar[str] = "20 double backward passes a step; 2 to 10 s for a LeNet on one core"

    steps: int = param(300, "most L-BFGS steps of 20 iterations, each restart")
    restarts: int = param(
        3,
        "most starting points; more are tried, 1, 2, 4, ... at once, where ten times the goal was missed",
    )
    goal: float = param(3e-5, "relative residual at which the search stops")
    rows: int = param(1, "most gradients of the leak that are fitted at once")
    start: Literal["gray", "uniform", "normal"] = param(
        "gray", "dummy input: near 0.5, uniform in [0, 1], or N(0, 1) as published"
    )
    space: Literal["spectrum", "pixels"] = param(
        "spectrum", "of an image that L-BFGS moves in: scaled frequencies, or pixels as published"
    )
    dtype: Literal["mixed", "float32", "float64"] = param(
        "mixed", "number format of the search; mixed: float32, then float64"
    )

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Need plain gradients of one sample at known models, with the last layer among them."""
        if not leak.is_plain:
            return (
                "it fits single gradients, and this leak's rows combine several; use differential"
            )
        if leak.batch is not None and leak.batch > 1:
            return f"it reads one label, and each gradient comes from {leak.batch} samples; use dlg"
        if why := objectives.missing(leak, batch=1):
            return why
        if label_signs.from_gradient(leak, task) is None:
            return "the last layer's gradient does not show one label by its signs; use dlg"
        return None

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the input; the certificate says whether it fits."""
        return next(found for _, found in self.many([leak], task, [generator]))

    def many(
        self, leaks: Sequence[GradientLeak], task: Task, generators: Sequence[Generator]
    ) -> Iterator[tuple[int, Reconstruction]]:
        """Reconstruct the inputs of several leaks together; yield each one's place and reconstruction once it is settled."""
        if why := next(filter(None, (self.refuses(leak, task) for leak in leaks)), None):
            raise AttackError(f"idlg cannot use this leak: {why}")
        targets = [objectives.target(leak, task, self.rows, torch.float64) for leak in leaks]
        known = torch.stack(
            [y for leak in leaks if (y := label_signs.from_gradient(leak, task)) is not None]
        ).to(task.device)
        space = Spectrum.of(task.spec.shape, task.device) if self.space == "spectrum" else None
        for group in objectives.alike(targets):
            chosen = [targets[k] for k in group]
            goal = torch.tensor(
                [max(self.goal, t.noise) ** 2 for t in chosen],
                dtype=torch.float64,
                device=task.device,
            )
            objective = partial(_objective, chosen[0].columns, space)
            problems = Problems(task, objective, (*objectives.stacked(chosen), known[group]), goal)

            def draw(place: int, group: list[int] = group) -> optimise.Point:
                x = priors.start(task, 1, generators[group[place]], self.start, torch.float64)
                return (x if space is None else space.coordinates(x),)

            schedule = Schedule(self.steps, formats=FORMATS[self.dtype])
            for place, run in batched_search.restarted(
                problems, draw, self.restarts, ENOUGH, schedule, "idlg"
            ):
                k = group[place]
                residual = partial(objectives.misfit, targets[k], task, y=known[k])
                x = run.point[0] if space is None else space.image(run.point[0])
                yield (
                    k,
                    objectives.reconstruction(
                        "idlg", leaks[k], task, targets[k], x, known[k], residual, f"L-BFGS {run}"
                    ),
                )


def _objective(
    columns: slice,
    space: Spectrum | None,
    gradients: Gradients,
    given: optimise.Point,
    point: optimise.Point,
) -> Tensor:
    theta, mixing, aim, y = given
    x = point[0] if space is None else space.image(point[0])
    return objectives.squared(gradients, columns, theta, mixing, aim, x, y)
