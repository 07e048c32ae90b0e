"""One sample, layer by layer from the last: R-GAP, with what a layer's equations leave open filled in by a search over the layers below.

The published recursion needs as many equations as unknowns at every layer. Here the first layer that has fewer stops it, and the input
is searched whose activations meet the equations of that layer: a forward pass and one backward pass an evaluation, no second
derivatives, and continuous in the input for every activation, unlike the gradient of a ReLU network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor

from leakaudit.errors import AttackError
from leakaudit.inversion.exact import certify, layerwise
from leakaudit.inversion.exact.layerwise import Relations
from leakaudit.inversion.labels import label_signs
from leakaudit.inversion.search import objectives, optimise, priors
from leakaudit.inversion.search.optimise import Point, Run
from leakaudit.leak import GradientLeak
from leakaudit.reconstruction import Certificate, Reconstruction
from leakaudit.registry import attack, param
from leakaudit.tasks import layer_chain
from leakaudit.tasks.layer_chain import Layer

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

SMOOTH = (
    1e-1,
    3e-2,
    1e-2,
    1e-4,
)  # weights of total variation, each search from where the last one ended, and then none
PATIENCE = 3  # steps over which such a search must gain
BEND = 1e-3  # differences of neighbours below it count as squares
GRID = 0.12  # rms distance to the pixel grid in its units at which inputs are moved onto it; 0.289 for anything else
ROUNDING = 1e-12  # least relative error of a gradient in float64
FITS = 1e-6  # relative residual of the whole gradient that is rounding, of pixels in float32 too; one pixel off by a level makes 1e-4
SMALL = 1e-18  # objective at which a search ends


@attack("rgap")
@dataclass(frozen=True)
class Rgap:
    """Layer after layer in float64 where the equations suffice; else L-BFGS over inputs on the equations of the layer that lacks some."""

    exact: ClassVar[bool] = True
    rank: ClassVar[int] = 2
    reads: ClassVar[str] = (
        "plain gradients of one sample at known models, all layers, of a chain of convolutions and linear layers"
    )
    paper: ClassVar[str] = (
        "Zhu and Blaschko 2021, R-GAP: Recursive Gradient Attack on Privacy, extended to layers of deficient rank"
    )
    cost: ClassVar[str] = (
        "a singular value decomposition a layer and up to a few thousand backward passes; 1 to 10 s for a small network"
    )

    steps: int = param(30, "most L-BFGS steps at each weight of total variation")
    restarts: int = param(
        3, "most starting points, where the layers' equations leave something open"
    )
    goal: float = param(1e-6, "objective of the layer's equations at which no other start is tried")

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Need a plain gradient of one sample at a known model, of all layers of a chain."""
        if not leak.is_plain:
            return "it takes single gradients apart, and this leak's rows combine several; use differential"
        if leak.batch is not None and leak.batch > 1:
            return f"it takes one sample apart, and each gradient comes from {leak.batch}"
        if why := objectives.missing(leak, batch=1):
            return why
        if leak.columns != (0, task.layout.size):
            return f"it needs the gradients of all layers, and the leak holds columns {leak.columns[0]}:{leak.columns[1]}"
        if task.spec.loss != "squared" and label_signs.from_gradient(leak, task) is None:
            return "the last layer's gradient does not show one label by its signs; use dlg"
        return layer_chain.unfit(task)

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the input; EXACT needs linear equations for every layer, a grid, and `certify.whole_gradient`."""
        if why := self.refuses(leak, task):
            raise AttackError(f"rgap cannot use this leak: {why}")
        target = objectives.target(leak, task, 1, torch.float64)
        theta, error = target.theta[0], max(ROUNDING, target.noise)
        layers = layer_chain.layers(task, theta)
        slopes = task.layout.split(target.value[0] / target.combination[0, 0] - task.l2 * theta)
        h, held = layerwise.descend(layers, slopes, error)
        if h is not None:
            x, how = task.denormalise(h)[None], "every layer by linear equations"
        else:
            search, goal = partial(self._search, task, layers, held[-1]), max(self.goal, error**2)
            draw = partial(priors.start, task, 1, generator, "uniform", torch.float64)
            run = optimise.restarted(search, lambda: (draw(),), self.restarts, goal)
            x, how = run.point[0], f"{held[-1]}; L-BFGS {run}"
        y = label_signs.from_gradient(leak, task)
        if y is None:
            y = task.logits(theta, x).detach() - slopes[f"{layers[-1].name}.bias"]
        residual = partial(objectives.misfit, target, task, y=y)
        x, near = _on_grid(task, x, residual)
        found = objectives.reconstruction(
            "rgap", leak, task, target, x, y, residual, f"{near}{how}"
        )
        certain = (
            h is not None
            and bool(near)
            and certify.whole_gradient(leak, task, x, found.residual, residual)
        )
        return replace(found, certificate=Certificate.EXACT) if certain else found

    def _search(self, task: Task, layers: list[Layer], known: Relations, start: Point) -> Run:
        """L-BFGS over the input on one layer's equations, with smoothing that fades."""

        def objective(weight: float, x: Tensor) -> Tensor:
            return known.misfit(
                layer_chain.run(layers[: known.at], task.normalise(x))
            ) + weight * priors.total_variation(x, BEND)

        run = Run(start)
        for weight in SMOOTH if task.spec.is_image else ():
            run = optimise.lbfgs(
                partial(objective, weight), run.point, self.steps, what="rgap", patience=PATIENCE
            ).after(run)
        return optimise.lbfgs(
            partial(objective, 0.0), run.point, 2 * self.steps, SMALL, "rgap"
        ).after(run)


def _on_grid(task: Task, x: Tensor, residual: Callable[[Tensor], float]) -> tuple[Tensor, str]:
    """Move inputs onto the grid of pixel values where they lie near it and the whole gradient agrees; and say so."""
    if not task.spec.levels:
        return x, ""
    snapped = (x * task.spec.levels).round().clamp(0, task.spec.levels) / task.spec.levels
    off = float((x - snapped).mul(task.spec.levels).square().mean().sqrt())
    near = off < GRID and residual(snapped) <= max(residual(x), FITS)
    return (
        (snapped, f"off the pixel grid by {off:.1e} grid units before snapping; ")
        if near
        else (x, "")
    )
