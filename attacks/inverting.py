"""Inverting Gradients: cosine between gradients and total variation, minimised with Adam on the sign of the slope, in the box of pixels.

The soft sign, which shrinks slopes that are small beside the others, takes about half the steps of the published hard one.

Of a local training the cosine is between updates, and all its steps are differentiated (section 6 of the paper).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Generator, Tensor

from leakaudit import labels, objectives, optimise, priors, unroll
from leakaudit.attacks._adam import Schedule, minimise  # noqa: TID251 - shared by files of this folder alone
from leakaudit.errors import AttackError
from leakaudit.leak import GradientLeak
from leakaudit.reconstruction import Reconstruction
from leakaudit.registry import attack, param

if TYPE_CHECKING:
    from leakaudit.task import Task


@attack("inverting")
@dataclass(frozen=True)
class Inverting:
    """Cosine and total variation with signed Adam; labels are read from the last layer where they are not given."""

    exact: ClassVar[bool] = False
    rank: ClassVar[int] = 2
    reads: ClassVar[str] = "plain gradients or local trainings at known models, with the last layer or known labels"
    paper: ClassVar[str] = "Geiping et al. 2020, Inverting Gradients: How easy is it to break privacy in federated learning?"
    cost: ClassVar[str] = "one double backward pass a step, one more for each further local step; 3 to 6 s for a small network on one core"

    labels: str = param("", "known labels, e.g. 3 or 3,1,4; read from the last layer where not given")
    steps: int = param(1200, "most steps of Adam, each restart")
    restarts: int = param(1, "starting points; the best by objective is kept")
    rate: float = param(0.1, "first step in the data's units")
    tv: float = param(2e-2, "weight of total variation", "alpha")
    sign: Literal["hard", "soft"] = param("soft", "of slopes; soft: over its size and the mean size, cosine schedule; hard: as published")
    rows: int = param(1, "most gradients of the leak that are fitted at once")
    batch: int | None = param(None, "samples behind each gradient; as the leak says where not given")
    samples: int | None = param(None, "different records of a local training in mini-batches; as many as one step takes where not given")
    decay: float = param(0.0, "weight decay of the steps of a local training")
    dtype: Literal["float32", "float64"] = param("float32", "number format of the search; signs need no more")

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Need plain gradients at known models, or local trainings from known ones, and labels."""
        return unroll.refused(leak, task, self.labels, self.batch, self.samples)

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the inputs; the certificate says whether they fit."""
        if why := self.refuses(leak, task):
            raise AttackError(f"inverting cannot use this leak: {why}")
        local = unroll.of(leak, self.batch, self.samples, self.decay)
        y, how = labels.given_or_read(self.labels, leak, task, local.samples)
        dtype = getattr(torch, self.dtype)
        target = objectives.target(leak, task, self.rows if local.batches == 1 else 1, dtype)

        def objective(x: Tensor) -> Tensor:
            return unroll.cosine(target, task, local, x, y) + self.tv * priors.total_variation(x)

        def search(start: optimise.Point) -> optimise.Run:
            if self.sign == "hard":
                return optimise.signed_adam(objective, start, self.steps, self.rate, partial(priors.boxed, task), "inverting")
            soft = Schedule(self.steps, self.rate, "soft")
            return minimise(lambda s, k, x: objective(x), list(start), soft, partial(priors.boxed, task), generator, "inverting")[0]

        def draw() -> optimise.Point:
            return (priors.start(task, local.samples, generator, "normal", dtype),)

        run = optimise.restarted(search, draw, self.restarts, -math.inf)
        residual = partial(unroll.misfit, target, task, local, y=y)
        return objectives.reconstruction("inverting", leak, task, target, run.point[0], y, residual, f"{how}signed Adam {run}")
