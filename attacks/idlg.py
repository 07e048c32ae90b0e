"""Improved deep leakage: the label is read from the last layer's gradient, and only the input is searched."""

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


@attack("idlg")
@dataclass(frozen=True)
class Idlg:
    """L2 between gradients of one sample with its label known, minimised with L-BFGS in float64."""

    exact: ClassVar[bool] = False
    rank: ClassVar[int] = 0
    reads: ClassVar[str] = "plain gradients of one sample at known models, with the last layer"
    paper: ClassVar[str] = "Zhao et al. 2020, iDLG: Improved Deep Leakage from Gradients"
    cost: ClassVar[str] = "about 24 double backward passes a step; 5 to 15 s for a LeNet on one core"

    steps: int = param(300, "most L-BFGS steps of 20 iterations, each restart")
    restarts: int = param(3, "most starting points; the next is tried where ten times the goal was missed")
    goal: float = param(3e-5, "relative residual at which the search stops")
    rows: int = param(1, "most gradients of the leak that are fitted at once")
    start: Literal["uniform", "normal"] = param("uniform", "dummy input: uniform in [0, 1], or N(0, 1) as published")

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Need plain gradients of one sample at known models, with the last layer among them."""
        if not leak.is_plain:
            return "it fits single gradients, and this leak's rows combine several; use differential"
        if leak.batch is not None and leak.batch > 1:
            return f"it reads one label, and each gradient comes from {leak.batch} samples; use dlg"
        if why := objectives.missing(leak, batch=1):
            return why
        if labels.from_gradient(leak, task) is None:
            return "the last layer's gradient does not show one label by its signs; use dlg"
        return None

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the input; the certificate says whether it fits."""
        y = labels.from_gradient(leak, task)
        if (why := self.refuses(leak, task)) or y is None:
            raise AttackError(f"idlg cannot use this leak: {why}")
        target = objectives.target(leak, task, self.rows, torch.float64)
        goal = max(self.goal, target.noise) ** 2

        def objective(x: Tensor) -> Tensor:
            return objectives.l2(target, task, x, y)

        def draw() -> optimise.Point:
            return (priors.start(task, 1, generator, self.start, torch.float64),)

        run = optimise.restarted(
            partial(optimise.lbfgs, objective, steps=self.steps, goal=goal, what="idlg"), draw, self.restarts, 100 * goal
        )
        residual = partial(objectives.misfit, target, task, y=y)
        return objectives.reconstruction("idlg", leak, task, target, run.point[0], y, residual, f"L-BFGS {run}")
