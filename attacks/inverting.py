"""Inverting Gradients: cosine between gradients and total variation, minimised with Adam on the sign of the slope, in the box of pixels."""

from __future__ import annotations

import math
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


@attack("inverting")
@dataclass(frozen=True)
class Inverting:
    """Cosine and total variation with signed Adam; the label of one sample is read, those of more are given."""

    exact: ClassVar[bool] = False
    rank: ClassVar[int] = 2
    paper: ClassVar[str] = "Geiping et al. 2020, Inverting Gradients: How easy is it to break privacy in federated learning?"
    cost: ClassVar[str] = "one double backward pass a step; 5 to 15 s for a small network on one core"

    labels: str = param("", "known labels, e.g. 3 or 3,1,4; read from the last layer where not given")
    steps: int = param(2400, "most signed-Adam steps, each restart")
    restarts: int = param(1, "starting points; the best by objective is kept")
    rate: float = param(0.1, "first step in the data's units")
    tv: float = param(1e-2, "weight of total variation", "alpha")
    rows: int = param(1, "most gradients of the leak that are fitted at once")
    batch: int | None = param(None, "samples behind each gradient; as the leak says where not given")
    dtype: Literal["float32", "float64"] = param("float32", "number format of the search; signs need no more")

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Need plain gradients at known models, and labels."""
        if not leak.is_plain:
            return "it fits single gradients, and this leak's rows combine several; use differential"
        if why := objectives.missing(leak, self.batch):
            return why
        if not self.labels and (n := self.batch or leak.batch or 1) > 1:
            return f"it reads the label of one sample, and each gradient comes from {n}; set labels=… or use dlg"
        if not self.labels and labels.from_gradient(leak, task) is None:
            return "the last layer's gradient does not show one label by its signs; set labels=… or use dlg"
        return None

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the inputs; the certificate says whether they fit."""
        batch = self.batch or leak.batch or 1
        why = self.refuses(leak, task)
        y = None if why else labels.given(self.labels, task, batch) if self.labels else labels.from_gradient(leak, task)
        if why or y is None:
            raise AttackError(f"inverting cannot use this leak: {why}")
        dtype = getattr(torch, self.dtype)
        target = objectives.target(leak, task, self.rows, dtype)

        def objective(x: Tensor) -> Tensor:
            return objectives.cosine(target, task, x, y) + self.tv * priors.total_variation(x)

        def search(start: optimise.Point) -> optimise.Run:
            return optimise.signed_adam(objective, start, self.steps, self.rate, partial(priors.boxed, task), "inverting")

        def draw() -> optimise.Point:
            return (priors.start(task, batch, generator, "normal", dtype),)

        run = optimise.restarted(search, draw, self.restarts, -math.inf)
        residual = partial(objectives.misfit, target, task, y=y)
        return objectives.reconstruction("inverting", leak, task, target, run.point[0], y, residual, f"signed Adam {run}")
