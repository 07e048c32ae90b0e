"""Inverting features: find the input for which a last linear layer received given features."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from leakaudit.inversion.search import batched_search, priors
from leakaudit.inversion.search.optimise import SearchRun
from leakaudit.tasks import batch_norm

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# Features are continuous in the input for every activation function, so a search by their distance
# does not stop at jumps. It proceeds from coarse to fine and from smooth to sharp: first small
# images that are enlarged, then the whole image with less and less total variation. Each search
# starts from the end of the previous one.

# Side lengths of the images that are searched first, enlarged to the true size. A choice: octaves.
COARSE = (4, 8, 16)

# Maximum number of L-BFGS steps at each of these sizes, and the weight of total variation. Coarse
# images are only starts, so few steps suffice.
COARSE_STEPS = 6
COARSE_WEIGHT = 1e-3

# Weights of total variation at full size: first one that determines what features leave open, then
# one that is small compared with them.
SMOOTH = (1e-2, 1e-4)

# Maximum number of L-BFGS steps at each weight.
SMOOTH_STEPS = 40

# A search stops if it gains nothing in this many steps; the next one continues from its end.
PATIENCE = 5

# Differences of neighbouring pixels below this are squared, so that the objective stays smooth for
# L-BFGS: a quarter of a grey level of 255.
ROUNDING = 1e-3


# Models (k, d), and the inputs (k, H) of their last linear layers for one sample.
Features: TypeAlias = tuple[Tensor, Tensor]


def features(task: Task, theta: Tensor, x: Tensor) -> Tensor:
    """Compute the input (H,) of the last linear layer for one sample; differentiable in x."""
    weight = task.last_linear[0] if task.last_linear else ""
    name = weight.rpartition(".")[0]  # the layer's name, from that of its parameter
    return batch_norm.inputs(task, theta, x, [name], last=name)[name][0]


def misfit(task: Task, known: Features, x: Tensor) -> Tensor:
    """Return the mean over models of |h(x) - h|^2 / |h|^2."""
    gaps: list[Tensor] = []
    for theta, h in zip(*known, strict=True):
        gaps.append((features(task, theta, x) - h).square().sum() / h.square().sum())
    return torch.stack(gaps).mean()


def invert(task: Task, known: Features, start: Tensor, coarse: bool) -> SearchRun:
    """Search for the input (1, *shape) with L-BFGS.

    Images are first searched at sizes 4, 8 and 16 if `coarse`. Other inputs are searched
    without smoothing.
    """
    run = SearchRun((start,))
    if not task.spec.is_image:
        steps = SMOOTH_STEPS * len(SMOOTH)
        whole = partial(misfit, task, known)
        return batched_search.lbfgs(whole, run.point, steps, what="features")
    sides = start.shape[2:]
    enlarge = _enlarge(sides)
    if coarse:
        for side in COARSE:
            if side >= min(sides):
                continue
            small = F.interpolate(run.point[0], size=(side, side), mode="bilinear", antialias=True)
            found = _smooth(task, known, small, COARSE_WEIGHT, COARSE_STEPS, enlarge)
            run = found.after(run)
        run = SearchRun((enlarge(run.point[0]),)).after(run)
    for weight in SMOOTH:
        run = _smooth(task, known, run.point[0], weight, SMOOTH_STEPS, lambda x: x).after(run)
    return run


def _smooth(
    task: Task,
    known: Features,
    start: Tensor,
    weight: float,
    steps: int,
    enlarge: Callable[[Tensor], Tensor],
) -> SearchRun:
    """Run one search with one weight of total variation."""

    def objective(z: Tensor) -> Tensor:
        x = enlarge(z)
        return misfit(task, known, x) + weight * priors.total_variation(x, ROUNDING)

    return batched_search.lbfgs(objective, (start,), steps, what="features", patience=PATIENCE)


def _enlarge(sides: torch.Size) -> Callable[[Tensor], Tensor]:
    return lambda z: F.interpolate(z, size=tuple(sides), mode="bilinear")
