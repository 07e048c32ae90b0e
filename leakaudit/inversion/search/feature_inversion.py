"""Which input has these features: inverting what a last linear layer saw.

Features are continuous in the input for every activation, so a search by their distance does not
stop at jumps. It goes from coarse to fine and from smooth to sharp: first small images that are
enlarged, then the whole image with less and less total variation. Each search starts from where the
last one ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from leakaudit.inversion.search import optimise, priors
from leakaudit.inversion.search.optimise import SearchRun

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# Sides of the images that are searched first, enlarged to the true size. A choice: octaves.
COARSE = (4, 8, 16)

# Most L-BFGS steps at each of these sides, and the weight of total variation. Coarse images are
# only starts, so few steps suffice.
COARSE_STEPS = 6
COARSE_WEIGHT = 1e-3

# Weights of total variation at full size: one that fills in what features leave open, then one that
# is small beside them.
SMOOTH = (1e-2, 1e-4)

# Most L-BFGS steps at each weight.
SMOOTH_STEPS = 40

# Steps over which such a search must gain; the next one goes on from where it ends.
PATIENCE = 5

# Differences of neighbours below this count as squares, which keeps L-BFGS going: a quarter of a
# grey level of 255.
ROUNDING = 1e-3


@dataclass(frozen=True)
class Known:
    """What is known of one sample.

    Attributes:
        label: Its class.
        theta: (k, d) models.
        features: (k, H) what their last linear layers see.
    """

    label: int
    theta: Tensor
    features: Tensor


def features(task: Task, theta: Tensor, x: Tensor) -> Tensor:
    """Compute the input (H,) of the last linear layer for one sample; differentiable in x.

    Args:
        task: What is trained; it must have a last linear layer.
        theta: (d,) the model.
        x: (1, *shape).
    """
    weight = task.last_linear[0] if task.last_linear else ""
    name = weight.rpartition(".")[0]  # the layer's name, from that of its parameter
    return priors.inputs(task, theta, x, [name], last=name)[name][0]


def misfit(task: Task, known: Known, x: Tensor) -> Tensor:
    """Mean over models of |h(x) - h|^2 / |h|^2.

    Args:
        task: What is trained.
        known: The features h, and their models.
        x: (1, *shape).
    """
    gaps: list[Tensor] = []
    for theta, h in zip(known.theta, known.features, strict=True):
        gaps.append((features(task, theta, x) - h).square().sum() / h.square().sum())
    return torch.stack(gaps).mean()


def invert(task: Task, known: Known, start: Tensor, coarse: bool) -> SearchRun:
    """Search the input by L-BFGS.

    Args:
        task: What is trained.
        known: The features, and their models.
        start: (1, *shape) where to begin.
        coarse: Whether images are searched at sides 4, 8 and 16 first. Other inputs are searched
            without smoothing.

    Returns:
        The search; its objective is `misfit` and the last total variation.
    """
    run = SearchRun((start,))
    if not task.spec.is_image:
        steps = SMOOTH_STEPS * len(SMOOTH)
        return optimise.lbfgs(partial(misfit, task, known), run.point, steps, what="features")
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
    known: Known,
    start: Tensor,
    weight: float,
    steps: int,
    enlarge: Callable[[Tensor], Tensor],
) -> SearchRun:
    """One search with one weight of total variation."""

    def objective(z: Tensor) -> Tensor:
        x = enlarge(z)
        return misfit(task, known, x) + weight * priors.total_variation(x, ROUNDING)

    return optimise.lbfgs(objective, (start,), steps, what="features", patience=PATIENCE)


def _enlarge(sides: torch.Size) -> Callable[[Tensor], Tensor]:
    """Bilinear interpolation to the full size."""
    return lambda z: F.interpolate(z, size=tuple(sides), mode="bilinear")
