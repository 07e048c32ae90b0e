"""GradInversion: L2 between gradients, total variation and energy, batch statistics and agreement between several searches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor

from leakaudit import labels, objectives, priors, unroll
from leakaudit.attacks._adam import Schedule, minimise  # noqa: TID251 - shared by files of this folder alone
from leakaudit.errors import AttackError
from leakaudit.leak import GradientLeak
from leakaudit.objectives import Target
from leakaudit.optimise import Run
from leakaudit.priors import Statistics
from leakaudit.reconstruction import Reconstruction
from leakaudit.registry import attack, param
from leakaudit.unroll import Local

if TYPE_CHECKING:
    from leakaudit.task import Task

EVERY = 25  # steps between two means over the searches


@attack("gradinversion")
@dataclass(frozen=True)
class GradInversion:
    """Several searches with Adam that are drawn to their registered mean; all weights are relative to a gradient of norm 1.

    The batch statistics are the victim's own where it sends them (`statistics`, from Python), else the model's running ones; a trace
    holds neither of a network that normalises by the batch, and then the prior is left out and the note says so.
    """

    exact: ClassVar[bool] = False
    rank: ClassVar[int] = 3
    reads: ClassVar[str] = "plain gradients or local trainings of images at known models, with the last layer or known labels"
    paper: ClassVar[str] = "Yin et al. 2021, See through Gradients: Image Batch Recovery via GradInversion"
    cost: ClassVar[str] = "one double backward pass a step and seed; 10 to 30 s for a small network on one core"

    labels: str = param("", "known labels, e.g. 3 or 3,1,4; read from the last layer where not given")
    steps: int = param(800, "steps of Adam, each seed")
    seeds: int = param(2, "searches that are drawn to their mean")
    rate: float = param(0.1, "largest step in the data's units; cosine schedule after 50 steps of warm-up")
    tv: float = param(1e-2, "weight of total variation", "alpha_tv")
    energy: float = param(1e-4, "weight of the mean squared pixel", "alpha_l2")
    bn: float = param(0.1, "weight of the batch statistics, 0 for none", "alpha_BN")
    group: float = param(0.1, "weight of the distance to the registered mean, 0 for none", "alpha_group")
    langevin: float = param(0.01, "deviation of the noise added before each step, over its size; the paper has 0.2")
    wait: float = param(0.5, "share of the steps before the searches are drawn to their mean")
    most: int = param(3, "most pixels by which images are moved to agree")
    batch: int | None = param(None, "samples behind each gradient; as the leak says where not given")
    samples: int | None = param(None, "different records of a local training in mini-batches; as many as one step takes where not given")
    statistics: Statistics | None = param(None, "the victim's batch statistics by layer; from Python alone")  # noqa: RUF009 - None

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Need plain gradients of images at known models, and labels."""
        if not task.spec.is_image:
            return f"it recovers images, and the inputs have shape {task.spec.shape}; use dlg"
        return unroll.refused(leak, task, self.labels, self.batch, self.samples)

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the images; the best of the searches and of their mean comes back."""
        if why := self.refuses(leak, task):
            raise AttackError(f"gradinversion cannot use this leak: {why}")
        local = unroll.of(leak, self.batch, self.samples)
        y, how = labels.given_or_read(self.labels, leak, task, local.samples)
        target = objectives.target(leak, task, 1, torch.float32)
        known = self.statistics or priors.running_statistics(task)
        loss = partial(self._loss, target, task, local, y, known)
        draw = partial(priors.start, task, local.samples, generator, "normal", target.aim.dtype)
        runs, middle = self._search(loss, y, [draw() for _ in range(max(1, self.seeds))], partial(priors.boxed, task), generator)
        best = min([*(run.point[0] for run in runs), *middle], key=lambda x: float(loss(x).detach().nan_to_num(torch.inf)))
        residual = partial(unroll.misfit, target, task, local, y=y)
        told = "" if known or not priors.normalises(task) else "no batch statistics to compare with; "
        note = f"{how}{told}Adam {runs[0].after(*runs[1:])}"
        return objectives.reconstruction("gradinversion", leak, task, target, best, y, residual, note)

    def _loss(self, target: Target, task: Task, local: Local, y: Tensor, known: Statistics | None, x: Tensor) -> Tensor:
        """All terms but the searches' agreement."""
        loss = unroll.l2(target, task, local, x, y) + self.tv * priors.total_variation(x) + self.energy * x.square().mean()
        return loss + self.bn * priors.normalisation(task, target.theta[0], x, known) if known and self.bn else loss

    def _search(
        self, loss: Callable[[Tensor], Tensor], y: Tensor, starts: list[Tensor], box: Callable[[Tensor], Tensor], generator: Generator
    ) -> tuple[list[Run], Tensor]:
        """Run all searches together; where they end, and their mean (seeds, b, *shape) as each of them orders it, empty for one."""
        middle = starts[0].new_empty(0)
        begin = int(self.wait * self.steps)

        def objective(seed: int, k: int, x: Tensor) -> Tensor:
            return loss(x) + self.group * (x - middle[seed]).square().mean() if len(middle) else loss(x)

        def between(k: int, runs: list[Run]) -> None:
            nonlocal middle
            if self.group and len(starts) > 1 and k >= begin and (k - begin) % EVERY == 0:
                middle = self._middle(runs, y)

        schedule = Schedule(self.steps, self.rate, warmup=min(50, self.steps // 4), langevin=self.langevin)
        runs = minimise(objective, starts, schedule, box, generator, "gradinversion", between)
        return runs, self._middle(runs, y) if len(starts) > 1 else middle

    def _middle(self, runs: list[Run], y: Tensor) -> Tensor:
        """Registered mean, from where the search with the lowest objective stands."""
        best = min(range(len(runs)), key=lambda s: runs[s].objective)
        return priors.consensus(torch.stack([run.point[0] for run in runs]), y, best, self.most)
