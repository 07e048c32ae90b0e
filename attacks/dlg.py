"""Deep leakage from gradients (Zhu et al. 2019).

Dummy inputs and dummy soft labels are moved together until their gradient is the one that leaked:
x, y = argmin |dL/dW(x, y) - g|^2 (eq. 2 of the paper), here over the norm of g, so that 1 is what
gradients of zero leave.

Three things differ from the published search, each with a setting that goes back: L-BFGS has a line
search, images move in scaled frequencies rather than pixels, and starts are near gray.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Generator, Tensor

from leakaudit.errors import AttackError
from leakaudit.inversion.labels import soft_labels
from leakaudit.inversion.search import gradient_matching, objectives, priors
from leakaudit.inversion.search.gradient_matching import Search, Unknowns
from leakaudit.inversion.search.optimise import Point
from leakaudit.leak import GradientLeak
from leakaudit.reconstruction import Attack, Reconstruction
from leakaudit.registry import attack, param

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task


@attack("dlg")
@dataclass(frozen=True)
class DLG(Attack):
    """L2 between gradients, minimised over inputs and soft labels with L-BFGS.

    Several leaks and starts are searched together.
    """

    exact: ClassVar[bool] = False
    rank: ClassVar[int] = 1
    reads: ClassVar[str] = "plain gradients at known models"
    paper: ClassVar[str] = "Zhu et al. 2019, Deep Leakage from Gradients"
    cost: ClassVar[str] = "20 double backward passes a step; 3 to 20 s for a LeNet on one core"

    steps: int = param(300, "most L-BFGS steps of 20 iterations, each restart")
    restarts: int = param(
        3,
        "most starting points; more are tried, 1, 2, 4, ... at once, "
        "where ten times the goal was missed",
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
        """Reconstruct inputs and labels of several leaks together.

        Args:
            leaks: What was heard.
            task: What is trained.
            generators: One for each leak.

        Yields:
            Each one's place and reconstruction, once it is settled.
        """
        for leak in leaks:
            why = self.refuses(leak, task)
            if why:
                raise AttackError(f"dlg cannot use this leak: {why}")
        targets = [objectives.target(leak, task, self.rows, torch.float64) for leak in leaks]
        sizes = [self.batch or leak.batch or 1 for leak in leaks]

        def start(k: int) -> Point:
            x = priors.start(task, sizes[k], generators[k], self.start, torch.float64)
            return x, soft_labels.raw(task, sizes[k], generators[k], torch.float64)

        def labels(_: Point, others: Point) -> Tensor:
            return soft_labels.soft(task, others[0])

        unknowns = Unknowns(start, lambda group: (), labels)
        search = Search(self.steps, self.restarts, self.goal, self.space, self.dtype)
        for one in gradient_matching.matched(task, targets, sizes, search, unknowns, "dlg"):
            k = one.place
            (variables,) = one.others
            soft = soft_labels.soft(task, variables)
            residual = partial(objectives.misfit, targets[k], task, y=soft)
            y = soft_labels.hard(task, variables)
            note = f"L-BFGS {one.run}"
            found = objectives.reconstruction(
                "dlg", leaks[k], task, targets[k], one.x, y, residual, note
            )
            yield k, found
