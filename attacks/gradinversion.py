"""GradInversion (Yin et al. 2021, See through Gradients)."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from torch import Generator, Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.registry import attack, param
from leakaudit.inversion.attack import Attack
from leakaudit.inversion.exact import convolution_patches
from leakaudit.inversion.exact.convolution_patches import LayerInputs
from leakaudit.inversion.exact.pixel_grid import PixelGrid
from leakaudit.inversion.labels import read_labels
from leakaudit.inversion.search import local_training, objectives, priors
from leakaudit.inversion.search.adam import RateSchedule, minimise
from leakaudit.inversion.search.evaluate import Problems
from leakaudit.inversion.search.local_training import Local
from leakaudit.inversion.search.objectives import Target
from leakaudit.inversion.search.optimise import Point, SearchRun
from leakaudit.inversion.search.priors import Statistics
from leakaudit.tasks import batch_norm

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# The loss of the paper (eq. 1 to 11) adds to the squared distance of gradients: total variation and
# energy, the distance of batch statistics from known ones (R_BN), and the distance from the
# registered mean of several searches (R_group). All weights are relative to a gradient of norm 1.
#
# If the gradient of a convolution reveals the convolution's inputs (`convolution_patches`), the
# search compares those instead of gradients. An evaluation then requires only one forward pass,
# which is smoother and takes a third of the time.

Loss = Callable[[Tensor], Tensor]
Residual = Callable[[Tensor], float]

# Steps between two means over the searches. A choice: a registration takes as long as one or two
# steps.
EVERY = 25

# Relative residual of a gradient below which it agrees with inputs of a layer that fit; images at
# 13 to 21 dB leave .63 to 1.1 (docs/iterative.md).
PART = 0.5


@attack("gradinversion")
@dataclass(frozen=True)
class GradInversion(Attack):
    """Several searches with Adam that are pulled towards their registered mean.

    The batch statistics are those that are given (`statistics` from Python, or a `file`), those
    that the trace contains of the victim, or else the model's running ones. If there are none, the
    prior is omitted, which the note states, and `auto` skips the attack.
    """

    exact: ClassVar[bool] = False
    rank: ClassVar[int] = 3
    reads: ClassVar[str] = (
        "plain gradients or local trainings of images at known models, "
        "with the last layer or known labels"
    )
    paper: ClassVar[str] = (
        "Yin et al. 2021, See through Gradients: Image Batch Recovery via GradInversion"
    )
    cost: ClassVar[str] = (
        "one double backward pass, or one of a part of the network, per step and seed; "
        "4 s for a LeNet on one core, minutes for a ResNet-18"
    )

    labels: Sequence[int] = param(
        (), "known labels, e.g. 3 or 3,1,4; default: read from the last layer"
    )
    steps: int = param(800, "number of Adam steps per seed")
    seeds: int = param(2, "number of searches that are pulled towards their mean")
    layers: bool = param(
        True,
        "compare a layer's inputs instead of gradients if the layer's gradient reveals them",
    )
    rate: float = param(0.3, "largest step in the data's units; cosine schedule")
    slopes: Literal["raw", "soft", "hard"] = param(
        "soft", "raw; soft: divided by its size plus the mean size; hard: only the sign"
    )
    tv: float = param(1e-2, "weight of total variation", "alpha_tv")
    energy: float = param(1e-4, "weight of the mean squared pixel", "alpha_l2")
    bn: float = param(1.0, "weight of the batch statistics; 0 disables them", "alpha_BN")
    group: float = param(
        0.1, "weight of the distance to the registered mean; 0 disables it", "alpha_group"
    )
    langevin: float = param(
        0.01, "standard deviation, relative to the step, of noise added before it; paper: 0.2"
    )
    wait: float = param(0.5, "share of the steps before searches are pulled towards their mean")
    most: int = param(3, "maximum shift in pixels to align images")
    batch: int | None = param(
        None, "number of samples behind each gradient; default: as stated by the leak"
    )
    samples: int | None = param(
        None,
        "number of different records in a local training with mini-batches; "
        "default: the size of one mini-batch",
    )
    statistics: Statistics | None = param(  # noqa: RUF009 - None
        None, "the victim's batch statistics by layer; only from Python"
    )
    file: str = param(
        "",
        "npz file of the victim's batch statistics: arrays LAYER.mean and LAYER.var, with the "
        "unbiased variance, of each batch normalisation layer",
    )

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Require plain gradients of images at known models, and labels."""
        if not task.spec.is_image:
            return f"it recovers images, but the inputs have shape {task.spec.shape}; use dlg"
        return local_training.refused(leak, task, self.labels, self.batch, self.samples)

    def idle(self, leak: GradientLeak, task: Task) -> str | None:
        """Return a reason if there are no statistics to compare with."""
        known, _, _ = self._known(leak, task)
        return None if known else "no batch statistics are known to compare with"

    def _known(self, leak: GradientLeak, task: Task) -> tuple[Statistics | None, GradientLeak, str]:
        """Return the statistics to compare with, the leak of their round, and where they are from.

        Those of the trace belong to one gradient each.
        """
        if self.statistics:
            return self.statistics, leak, ""
        if self.file:
            return _read(self.file, task), leak, f"batch statistics of {self.file}; "
        usable = torch.zeros(len(leak.value), dtype=torch.bool)
        for k, row in enumerate(leak.combination):
            used = row.nonzero().flatten()
            usable[k] = len(used) == 1 and int(leak.rounds[used[0]]) in leak.statistics
        if bool(usable.any()):
            chosen = objectives.clearest(leak, usable)
            return leak.statistics[chosen.when[0]], chosen, "batch statistics of the trace; "
        return priors.running_statistics(task), leak, ""

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the images: the best result of the searches and of their mean."""
        known, leak, told = self._known(leak, task)
        local = local_training.of(leak, self.batch, self.samples)
        y, how = read_labels.given_or_read(self.labels, leak, task, local.samples)
        target = objectives.target(leak, task, 1, torch.float32)
        precise = objectives.target(leak, task, 1, torch.float64)
        shown = self._shown(precise, task, local)
        if shown is None:
            loss = partial(self._loss, target, task, local, y, known)
            classes = y
        else:
            # The inputs of a layer have an order of their own, so no two samples are
            # interchangeable.
            loss = partial(self._layer_loss, target, task, shown, known)
            classes = torch.arange(len(y), device=y.device)
        draw = partial(priors.start, task, local.samples, generator, "normal", target.aim.dtype)
        starts = torch.stack([draw() for _ in range(max(1, self.seeds))])
        box = partial(priors.boxed, task)
        runs, middle = self._search(loss, classes, starts, box, generator)

        def value(x: Tensor) -> float:
            return float(loss(x).detach().nan_to_num(torch.inf))

        best = min([*(run.point[0] for run in runs), *middle], key=value)
        residual: Residual = partial(local_training.misfit, precise, task, local, y=y)
        if not known and batch_norm.normalises(task):
            told = "no batch statistics to compare with; "
        if shown is not None:
            best = _settled(best.double(), residual, task)
            by_layer = partial(_of_layer, task, precise.theta[0], shown, known)
            left = residual(best)
            told += (
                f"compared with the inputs of layer {shown.layer.name}, read from its gradient; "
            )
            if objectives.FIT < left <= PART and by_layer(best) <= objectives.FIT:
                residual = by_layer
                told += (
                    f"residual of these inputs and of the statistics (whole gradient: {left:.2g}); "
                )
        note = f"{how}{told}Adam {runs[0].after(*runs[1:])}"
        return objectives.reconstruction(
            "gradinversion", leak, task, target, best, y, residual, note
        )

    def _shown(self, precise: Target, task: Task, local: Local) -> LayerInputs | None:
        """Return the inputs of a layer that its gradient reveals, if they are to be compared."""
        if not (self.layers and local.steps == 1 and batch_norm.normalises(task)):
            return None
        return convolution_patches.read(
            task, precise.theta[0], precise.value[0], precise.columns, local.samples
        )

    def _loss(
        self,
        target: Target,
        task: Task,
        local: Local,
        y: Tensor,
        known: Statistics | None,
        x: Tensor,
    ) -> Tensor:
        """Return all terms except the agreement of the searches."""
        loss = local_training.l2(target, task, local, x, y) + self._smooth(x)
        if known and self.bn:
            own = batch_norm.batch_statistics(task, target.theta[0], x)
            return loss + self.bn * priors.apart(own, known)
        return loss

    def _layer_loss(
        self, target: Target, task: Task, shown: LayerInputs, known: Statistics | None, x: Tensor
    ) -> Tensor:
        """Return the same terms as `_loss`, from one forward pass up to a layer."""
        seen, own = _seen(task, target.theta[0], shown, known, x)
        loss = shown.misfit(seen) + self._smooth(x)
        if known and own and self.bn:
            return loss + self.bn * priors.apart(own, known)
        return loss

    def _smooth(self, x: Tensor) -> Tensor:
        """Return total variation and energy."""
        return self.tv * priors.total_variation(x) + self.energy * x.square().mean()

    def _search(
        self,
        loss: Loss,
        y: Tensor,
        starts: Tensor,
        box: Callable[[Tensor], Tensor],
        generator: Generator,
    ) -> tuple[list[SearchRun], Tensor]:
        """Run all searches together; samples of one class (b,) may be exchanged.

        Returns the final runs, and their mean (seeds, b, *shape) in the order of each run;
        empty if there is only one.
        """
        several = len(starts) > 1
        middle = starts.new_empty(0)
        begin = int(self.wait * self.steps)

        def objective(seeds: Point, point: Point) -> Tensor:
            x = point[0][0]
            value = loss(x)
            if len(middle):
                value = value + self.group * (x - middle[int(seeds[0])]).square().mean()
            return value[None]

        def between(k: int, x: Tensor, values: Tensor) -> None:
            nonlocal middle
            if self.group and several and k >= begin and (k - begin) % EVERY == 0:
                middle = self._middle(x.reshape(starts.shape), values, y)

        schedule = RateSchedule(self.steps, self.rate, self.slopes, langevin=self.langevin)
        seeds = torch.arange(len(starts))
        problems = Problems(objective, (seeds,), starts.new_zeros(len(starts))).at((starts,))
        start = starts.flatten(1)
        runs = minimise(problems, start, schedule, box, "gradinversion", between, generator)
        if several:
            x = torch.stack([run.point[0] for run in runs])
            middle = self._middle(x, torch.tensor([run.objective for run in runs]), y)
        return runs, middle

    def _middle(self, x: Tensor, values: Tensor, y: Tensor) -> Tensor:
        """Return the registered mean of searches, starting from that with the lowest objective."""
        return priors.consensus(x, y, int(values.argmin()), self.most)


def _read(file: str, task: Task) -> Statistics:
    """Read statistics of batch normalisation layers from an npz file."""
    path = Path(file)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            stored = {name: np.asarray(arrays[name]) for name in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise LeakauditError(f"gradinversion: file {file} cannot be read: {error}") from None
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for name, size in batch_norm.normalisations(task).items():
        mean, var = (stored.get(f"{name}.{which}") for which in ("mean", "var"))
        fits = all(
            one is not None and one.shape == (size,) and one.dtype.kind == "f"
            for one in (mean, var)
        )
        if mean is None or var is None or not fits:
            raise LeakauditError(
                f"gradinversion: file {file}: expected floating-point arrays {name}.mean and "
                f"{name}.var of {size} numbers"
            )
        found[name] = (torch.from_numpy(mean), torch.from_numpy(var))
    if not found:
        raise LeakauditError(f"gradinversion: {task.spec.model} has no batch normalisation")
    return found


def _seen(
    task: Task, theta: Tensor, shown: LayerInputs, known: Statistics | None, x: Tensor
) -> tuple[dict[str, Tensor], dict[str, tuple[Tensor, Tensor]]]:
    """Return the inputs of layers up to the one that is shown, and the statistics among them."""
    names = {*(known or ()), shown.layer.name, *(layer.name for layer in shown.before)}
    seen = batch_norm.inputs(task, theta, x, names, last=shown.layer.name)
    return seen, {n: batch_norm.of_batch(seen[n]) for n in known or () if n in seen}


def _of_layer(
    task: Task, theta: Tensor, shown: LayerInputs, known: Statistics | None, x: Tensor
) -> float:
    """Return the relative residual of a layer's inputs, or of the preceding statistics if larger.

    Only the statistics reveal contrast, so the residual is infinite without them. Images far
    from the true ones may fit both, so this residual counts only together with that of the
    whole gradient.
    """
    with torch.no_grad():
        seen, own = _seen(task, theta, shown, known, x.to(theta))
    if not known or not own:
        return math.inf
    contrast: float = float(priors.apart(own, known)) ** 0.5
    return max(shown.residual(seen[shown.layer.name]), contrast)


def _settled(x: Tensor, residual: Residual, task: Task) -> Tensor:
    """Order images to match their labels, and round them to the data's grid.

    Each is kept only if it lowers the residual: exchanges of two images until none does, then
    the rounding.
    """
    left = residual(x)
    gained = True
    while gained:
        gained = False
        for pair in combinations(range(len(x)), 2):
            other = x.clone()
            other[list(pair)] = x[list(reversed(pair))]
            now = residual(other)
            if now < left:
                x = other
                left = now
                gained = True
    rounded = PixelGrid.of(task).snapped(x) if task.spec.levels else x
    return rounded if residual(rounded) < left else x
