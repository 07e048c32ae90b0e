"""R-GAP: one sample, layer by layer from the last (Zhu and Blaschko 2021), then a search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor

from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.registry import attack, param
from leakaudit.inversion.attack import Attack
from leakaudit.inversion.exact import certify, layerwise
from leakaudit.inversion.exact.layerwise import LayerRelations
from leakaudit.inversion.exact.pixel_grid import PixelGrid
from leakaudit.inversion.labels import label_signs
from leakaudit.inversion.search import batched_search, objectives, optimise, priors
from leakaudit.inversion.search.optimise import Point, SearchRun
from leakaudit.tasks import layer_chain
from leakaudit.tasks.layer_chain import Layer

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# The published recursion (`layerwise`) needs as many equations as unknowns at every layer. Here it
# stops at the first layer that has fewer, and a search finds the input whose activations satisfy
# the equations of that layer. Each evaluation requires a forward pass and one backward pass,
# without second derivatives, and is continuous in the input for every activation function, unlike
# the gradient of a ReLU network.

# Weights of total variation. Each search starts from the end of the previous one, and the last has
# weight zero: first a smooth image with nearly correct activations, then its details. A choice of
# four roughly even steps.
SMOOTH = (1e-1, 3e-2, 1e-2, 1e-4)

# A search stops if it gains nothing in this many L-BFGS steps; the next one continues from its end
# anyway.
PATIENCE = 3

# Differences of neighbouring pixels below this are squared, so that the objective stays smooth for
# L-BFGS: a quarter of a grey level of 255.
BEND = 1e-3

# Inputs are moved to the pixel grid if their root mean square distance from it, in its units, is
# below this; arbitrary inputs have 0.289. The whole gradient confirms the move, so the value may be
# larger than `pixel_grid.OFF`.
GRID = 0.12

# Smallest relative error of a gradient in float64.
ROUNDING = 1e-12

# Relative residual of the whole gradient that rounding explains, also for pixels in float32; one
# pixel that is off by one level causes 1e-4.
FITS = 1e-6

# Objective at which a search ends: a relative residual of 1e-9.
SMALL = 1e-18


@attack("rgap")
@dataclass(frozen=True)
class RGAP(Attack):
    """Linear equations of each layer in float64; L-BFGS if the equations are not sufficient."""

    exact: ClassVar[bool] = True
    rank: ClassVar[int] = 2
    reads: ClassVar[str] = (
        "plain gradients of one sample at known models, with all layers, "
        "of a chain of convolutions and linear layers"
    )
    paper: ClassVar[str] = (
        "Zhu and Blaschko 2021, R-GAP: Recursive Gradient Attack on Privacy, "
        "extended to layers of deficient rank"
    )
    cost: ClassVar[str] = (
        "one singular value decomposition per layer and up to a few thousand backward passes; "
        "1 to 10 s for a small network"
    )

    steps: int = param(30, "maximum number of L-BFGS steps at each weight of total variation")
    restarts: int = param(
        3, "maximum number of starting points if the layers' equations are not sufficient"
    )
    goal: float = param(1e-6, "value of the layer's objective below which no other start is tried")

    def refuses(self, leak: GradientLeak, task: Task) -> str | None:
        """Require a plain gradient of one sample at a known model, of all layers of a chain."""
        if not leak.is_plain:
            return (
                "it reads single gradients, but this leak contains combinations; use differential"
            )
        if leak.batch is not None and leak.batch > 1:
            return f"it recovers one sample, but each gradient comes from {leak.batch} samples"
        why = objectives.missing(leak, batch=1)
        if why:
            return why
        if leak.columns != (0, task.layout.size):
            return (
                "it requires the gradients of all layers, "
                f"but the leak contains only columns {leak.columns[0]}:{leak.columns[1]}"
            )
        if task.spec.loss != "squared" and label_signs.from_gradient(leak, task) is None:
            return "the signs of the last layer's gradient do not show a single label; use dlg"
        return layer_chain.unfit(task)

    def __call__(self, leak: GradientLeak, task: Task, generator: Generator) -> Reconstruction:
        """Reconstruct the input.

        EXACT requires linear equations for every layer, a grid, and `certify.whole_gradient`.
        """
        leak = objectives.clearest(leak, torch.ones(len(leak.value), dtype=torch.bool))
        target = objectives.target(leak, task, 1, torch.float64)
        theta = target.theta[0]
        error = max(ROUNDING, target.noise)
        layers = layer_chain.layers(task, theta)
        # The gradient itself, without the leak's coefficient and without weight decay.
        gradient = target.value[0] / target.combination[0, 0] - task.l2 * theta
        slopes = task.layout.split(gradient)
        h, held = layerwise.descend(layers, slopes, error)
        if h is not None:
            x = task.denormalise(h)[None]
            how = "every layer solved by linear equations"
        else:
            search = partial(self._search, task, layers, held[-1])
            goal = max(self.goal, error**2)
            draw = partial(priors.start, task, 1, generator, "uniform", torch.float64)
            run = optimise.restarted(search, lambda: (draw(),), self.restarts, goal)
            x = run.point[0]
            how = f"{held[-1]}; L-BFGS {run}"
        y = label_signs.from_gradient(leak, task)
        if y is None:
            # Squared loss: the slope in the outputs is outputs - target.
            y = task.logits(theta, x).detach() - slopes[f"{layers[-1].name}.bias"]
        y = y.to(theta.device)
        residual = partial(objectives.misfit, target, task, y=y)
        x, near = _on_grid(task, x, residual)
        note = f"{near}{how}"
        found = objectives.reconstruction("rgap", leak, task, target, x, y, residual, note)
        if h is None or not near:
            return found
        if not certify.whole_gradient(leak, task, x, found.residual, residual):
            return found
        return replace(found, certificate=Certificate.EXACT, rounds=(leak.when,))

    def _search(
        self, task: Task, layers: list[Layer], known: LayerRelations, start: Point
    ) -> SearchRun:
        """Search from the input (1, *shape) with L-BFGS on one layer's equations."""

        def objective(weight: float, x: Tensor) -> Tensor:
            misfit = known.misfit(layer_chain.run(layers[: known.at], task.normalise(x)))
            return misfit + weight * priors.total_variation(x, BEND)

        run = SearchRun(start)
        if task.spec.is_image:
            for weight in SMOOTH:
                smooth = partial(objective, weight)
                found = batched_search.lbfgs(
                    smooth, run.point, self.steps, what="rgap", patience=PATIENCE
                )
                run = found.after(run)
        exact = partial(objective, 0.0)
        last = batched_search.lbfgs(exact, run.point, 2 * self.steps, SMALL, "rgap")
        return last.after(run)


def _on_grid(task: Task, x: Tensor, residual: Callable[[Tensor], float]) -> tuple[Tensor, str]:
    """Move inputs to the grid of pixel values if they lie near it and the whole gradient agrees."""
    grid = PixelGrid.of(task)
    if not grid.levels:
        return x, ""
    snapped = grid.snapped(x)
    off = float((x - snapped).mul(grid.levels).square().mean().sqrt())
    if off < GRID and residual(snapped) <= max(residual(x), FITS):
        return snapped, f"snapped to the pixel grid from a distance of {off:.1e} grid units; "
    return x, ""
