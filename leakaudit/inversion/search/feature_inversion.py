"""Which input has these features: inverting what a last linear layer saw, from coarse to fine and from smooth to sharp."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from leakaudit.inversion.search import optimise, priors
from leakaudit.inversion.search.optimise import Run

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

COARSE = (4, 8, 16)  # sides of the pictures that are searched first, enlarged to the true size
COARSE_STEPS, COARSE_WEIGHT = (
    6,
    1e-3,
)  # most L-BFGS steps at each side, and the weight of total variation
SMOOTH = (1e-2, 1e-4)  # its weights at full size, each search from where the last one ended
SMOOTH_STEPS = 40  # most L-BFGS steps at each weight
PATIENCE = 5  # steps over which such a search must gain; the next one goes on from where it ends
ROUNDING = 1e-3  # differences of neighbours below it count as squares, which keeps L-BFGS going


@dataclass(frozen=True)
class Known:
    """What is known of one sample. label: its class. theta: (k, d) models. features: (k, H), what their last linear layers see."""

    label: int
    theta: Tensor
    features: Tensor


def features(task: Task, theta: Tensor, x: Tensor) -> Tensor:
    """Input (H,) of the last linear layer for one x (1, *shape), differentiable in x. The task must have a last linear layer."""
    name = (task.last_linear or ("",))[0].rpartition(".")[0]
    return priors.inputs(task, theta, x, [name], last=name)[name][0]


def misfit(task: Task, known: Known, x: Tensor) -> Tensor:
    """Mean over models of |h(x) - h|^2 / |h|^2: continuous in x for every activation, unlike gradients of ReLU networks."""
    pairs = zip(known.theta, known.features, strict=True)
    return torch.stack(
        [(features(task, w, x) - h).square().sum() / h.square().sum() for w, h in pairs]
    ).mean()


def invert(task: Task, known: Known, start: Tensor, coarse: bool) -> Run:
    """Search the input (1, *shape) by L-BFGS; the run's objective is `misfit` and the last total variation.

    coarse: whether images are searched at sides 4, 8 and 16 first. Other inputs are searched without smoothing.
    """
    run = Run((start,))
    if not task.spec.is_image:
        return optimise.lbfgs(
            lambda x: misfit(task, known, x), run.point, SMOOTH_STEPS * len(SMOOTH), what="features"
        )
    sides = start.shape[2:]
    if coarse:
        for side in (s for s in COARSE if s < min(sides)):
            small = F.interpolate(run.point[0], size=(side, side), mode="bilinear", antialias=True)
            run = _smooth(task, known, small, COARSE_WEIGHT, COARSE_STEPS, _enlarge(sides)).after(
                run
            )
        run = Run((_enlarge(sides)(run.point[0]),)).after(run)
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
) -> Run:
    """One search with one weight of total variation."""

    def objective(z: Tensor) -> Tensor:
        x = enlarge(z)
        return misfit(task, known, x) + weight * priors.total_variation(x, ROUNDING)

    return optimise.lbfgs(objective, (start,), steps, what="features", patience=PATIENCE)


def _enlarge(sides: torch.Size) -> Callable[[Tensor], Tensor]:
    """Bilinear interpolation to the full size."""
    return lambda z: F.interpolate(z, size=tuple(sides), mode="bilinear")
