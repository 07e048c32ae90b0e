"""R-GAP: one sample, layer by layer from the last (Zhu and Blaschko 2021), then a search."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor, nn

from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Certificate, Reconstruction
from leakaudit.core.registry import attack, param
from leakaudit.inversion.attack import Attack
from leakaudit.inversion.exact import certify
from leakaudit.inversion.exact.chain_pieces import places
from leakaudit.inversion.exact.pixel_grid import PixelGrid
from leakaudit.inversion.labels import label_signs
from leakaudit.inversion.linear import positive
from leakaudit.inversion.search import batched_search, objectives, optimise, priors
from leakaudit.inversion.search.optimise import Point, SearchRun
from leakaudit.tasks import layer_chain
from leakaudit.tasks.activations import Inverse
from leakaudit.tasks.layer_chain import Layer, before

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# Zhu and Blaschko 2021. Let d be the slope of the loss in a layer's output and h the layer's input.
#
# * A linear layer has dL/dW = d h^T, so h = d^T dL/dW / |d|^2 exactly.
# * The dL/dW of a convolution is linear in h, too: the same matrix M(d) for every channel
#   (`matrix`). Therefore h is known in the row space of M(d), and completely if the rank of M(d)
#   equals the number of pixels: the paper's gradient constraints.
# * The layer's output is known as well, from the layer above: for ReLU, where it is positive. That
#   W h + b equals it often determines what M(d) leaves open: the paper's weight constraints.
#
# Then the activation before the layer is inverted, d is propagated one layer further, and so on
# down to the input of the network. If the equations of a layer are not sufficient, the descent
# stops, and a search begins there.

# Singular values below this share of the largest contain no information. Errors of 1e-16 in float64
# grow to 1e-10 of the input at this point, and further in the next layers.
CUT = 1e-6

# The same applies to singular values below this multiple of the leak's own relative error: what the
# others contribute is known to within one per cent.
NOISE = 100

# Maximum number of unknowns of one dense system of outputs: ten seconds on one core.
UNKNOWN = 2500

# Maximum number of rows of that system, in units of its unknowns. A choice: more rows average more.
ROWS = 3

# The published recursion (`descend`) needs as many equations as unknowns at every layer. Here it
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
        "2 to 25 s for a small network"
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
        h, held = descend(layers, slopes, error)
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
        self, task: Task, layers: list[Layer], known: _LayerRelations, start: Point
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


@dataclass(frozen=True, eq=False)
class _LayerRelations:
    """What is known around one layer with weights."""

    layer: Layer
    at: int  # its index in the chain
    # (r, n) orthonormal, the known directions of a channel of its input, or None for all
    basis: Tensor | None
    seen: Tensor  # (r, c) the channels' components along them, or the input itself
    output: Inverse  # what is known about its output, and the slope of the loss in it

    def __str__(self) -> str:
        """Describe how many numbers are known, for a note."""
        return (
            f"{self.layer.name}: rank {self.seen.numel()} of {math.prod(self.layer.shape)}, "
            f"{int(self.output.known.sum())} outputs"
        )

    def solve(self) -> Tensor | None:
        """Solve for the layer's input; None if it is not determined, or has too many unknowns."""
        if self.basis is None:
            return self.seen
        base = self.basis.T @ self.seen
        missing = self.basis.shape[1] - len(self.basis)
        if missing == 0:
            return base.T.reshape(self.layer.shape)
        unknown = missing * base.shape[1]
        few = unknown <= min(UNKNOWN, int(self.output.known.sum()))
        if isinstance(self.layer.module, nn.Linear) or not few:
            return None
        free = torch.linalg.qr(self.basis.T, mode="complete").Q[:, len(self.basis) :]
        found = self._rest(base, free)
        if found is None:
            return None
        whole: Tensor = (base + free @ found).T
        return whole.reshape(self.layer.shape)

    def _rest(self, base: Tensor, free: Tensor) -> Tensor | None:
        """Solve for what the gradient leaves open, by known outputs: (n - r, c) along `free`."""
        missing = free.shape[1]
        channels = base.shape[1]
        rows = self.output.known.flatten().nonzero().flatten()
        rows = rows[:: max(1, len(rows) // (ROWS * missing * channels))]
        weight = self.layer.parameters["weight"]
        bias = self.layer.parameters.get("bias")
        # Column (k, i) of the system: the outputs caused by open direction i in channel k.
        pictures = free.T.reshape(missing, 1, *self.layer.shape[1:])
        columns = []
        for k in range(channels):
            made = self.layer.convolved(pictures, weight[:, k : k + 1])
            columns.append(made.flatten(1)[:, rows])
        at = self.layer.convolved(base.T.reshape(1, *self.layer.shape), weight)[0]
        gap = self.output.value - at
        if bias is not None:
            gap = gap - bias[:, None, None]
        trust = self.output.trust.flatten()[rows]
        q, upper = torch.linalg.qr((torch.cat(columns) * trust).T)
        sizes = upper.diagonal().abs()
        if float(sizes.min()) < CUT * float(sizes.max()):
            return None
        right = (q.T @ (trust * gap.flatten()[rows]))[:, None]
        rest: Tensor = torch.linalg.solve_triangular(upper, right, upper=True)
        return rest.reshape(channels, missing).T

    def misfit(self, h: Tensor) -> Tensor:
        """Measure how badly an input (1, *shape) fits the gradient and the output."""
        if self.basis is None:
            part = h[0]
        else:
            part = self.basis @ h[0].reshape(self.seen.shape[1], -1).T
        out = self.layer(h)[0]
        known = self.output.known
        wrong = self.output.trust * torch.where(known, out - self.output.value, out.relu())
        right = torch.where(known, self.output.trust * self.output.value, 0)
        total: Tensor = (part - self.seen).square().sum() / positive(self.seen.square().sum())
        return total + wrong.square().sum() / positive(right.square().sum())


def descend(
    chain: list[Layer], slopes: Mapping[str, Tensor], error: float
) -> tuple[Tensor | None, list[_LayerRelations]]:
    """Descend from the last layer, linear with bias, as long as equations determine the inputs.

    Returns the input of the chain, None if it is not determined; and what is known around each
    layer visited, ending with the one that stopped the descent.
    """
    held: list[_LayerRelations] = []
    k = len(chain) - 1
    # The slope of the last output is the gradient of its bias.
    d = slopes[f"{chain[-1].name}.bias"]
    h = d @ slopes[f"{chain[-1].name}.weight"] / d.square().sum()
    while True:
        k, output = before(chain, k, h, chain[k].back(d), error)
        if k < 0:
            return output.value, held
        weight = slopes[f"{chain[k].name}.weight"]
        relations, error = _relations(chain[k], k, weight, output, error)
        held.append(relations)
        solved = relations.solve()
        if solved is None:
            return None, held
        h = solved
        d = output.slope


def _relations(
    layer: Layer, at: int, weight: Tensor, output: Inverse, error: float
) -> tuple[_LayerRelations, float]:
    """Collect what is known from a layer's gradient and output, and the error of its input."""
    d = output.slope
    dense = isinstance(layer.module, nn.Linear)
    if not bool(d.any()):
        # The gradient vanishes and contains no information.
        n = math.prod(layer.shape[0 if dense else 1 :])
        channels = 1 if dense else layer.shape[0]
        nothing = _LayerRelations(layer, at, d.new_zeros(0, n), d.new_zeros(0, channels), output)
        return nothing, error
    if dense:
        return _LayerRelations(layer, at, None, d @ weight / d.square().sum(), output), error
    m = matrix(layer, d)
    u, s, v = torch.linalg.svd(m, full_matrices=False)
    r = int((s > max(CUT, NOISE * error) * s[0]).sum())
    rows = weight.permute(0, 2, 3, 1).reshape(len(m), -1)  # (o k k, c)
    found = _LayerRelations(layer, at, v[:r], (u[:, :r].T @ rows) / s[:r, None], output)
    return found, error * float(s[0] / s[r - 1])


def matrix(layer: Layer, d: Tensor) -> Tensor:
    """Build M(d), which multiplies a channel of a convolution's input in the gradient.

    Row (o, u, v) contains d_o, for slopes d (o, h, w) in the outputs, at the pixels that entry
    (u, v) of the kernel is applied to.
    """
    m = layer.module
    assert isinstance(m, nn.Conv2d)
    pixels = math.prod(layer.shape[1:])
    entries = places(m, (1, *layer.shape[1:])).T.to(d.device)  # (k k, positions)
    out = d.new_zeros(len(d), len(entries), pixels + 1)
    # What is outside the image goes into the last column, which is left out.
    column = (entries % (pixels + 1)).expand(len(d), -1, -1)
    out.scatter_(2, column, d.flatten(1)[:, None].expand_as(column))
    return out[:, :, :-1].flatten(0, 1)
