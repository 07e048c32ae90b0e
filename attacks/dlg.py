"""Deep leakage from gradients: dummy inputs and dummy soft labels are moved together until their gradient is the one that leaked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Generator, Tensor

from leakaudit import labels, objectives, optimise, priors
from leakaudit.errors import AttackError
from leakaudit.leak import GradientLeak
from leakaudit.reconstruction import Reconstruction
from leakaudit.registry import attack, param

if TYPE_CHECKING:
    from leakaudit.task import Task


@attack("dlg")
@dataclass(frozen=True)
class Dlg:
    """L2 between gradients, minimised over inputs and soft labels with L-BFGS in float64."""

    exact: ClassVar[bool] = False
    rank: ClassVar[int] = 1
    reads: ClassVar[str] = "plain gradients at known models"
    paper: ClassVar[str] = "Zhu et al. 2019, Deep Leakage from Gradients"
    cost: ClassVar[str] = "about 24 double backward passes a step; 10 to 20 s for a LeNet on one core"

    steps: int = param(300, "most L-BFGS steps of 20 iterations, each restart")
    restarts: int = param(3, "most starting points; the next is tried where ten times the goal was missed")
    goal: float = param(3e-5, "relative residual at which the search stops")
    rows: int = param(1, "most gradients of the leak that are fitted at once")
    batch: int | None = param(None, "samples behind each gradient; as the leak says where not given")
    start: Literal["uniform", "normal"] = param("uniform", "dummy inputs: uniform in [0, 1], or N(0, 1) as published")

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Need plain gradients at known models."""
        if not leak.is_plain:
            return "it fits single gradients, and this leak's rows combine several; use differential"
        return objectives.missing(leak, self.batch)

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct inputs and labels; the certificate says whether they fit."""
        if why := self.refuses(leak, task):
            raise AttackError(f"dlg cannot use this leak: {why}")
        target = objectives.target(leak, task, self.rows, torch.float64)
        goal, batch = max(self.goal, target.noise) ** 2, self.batch or leak.batch or 1

        def objective(x: Tensor, variables: Tensor) -> Tensor:
            return objectives.l2(target, task, x, labels.soft(task, variables))

        def draw() -> optimise.Point:
            x = priors.start(task, batch, generator, self.start, torch.float64)
            return x, labels.raw(task, batch, generator, torch.float64)

        run = optimise.restarted(
            partial(optimise.lbfgs, objective, steps=self.steps, goal=goal, what="dlg"), draw, self.restarts, 100 * goal
        )
        x, variables = run.point
        residual = partial(objectives.misfit, target, task, y=labels.soft(task, variables.detach()))
        return objectives.reconstruction("dlg", leak, task, target, x, labels.hard(task, variables), residual, f"L-BFGS {run}")
