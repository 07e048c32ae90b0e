"""From the features of one sample back to its pixels, through convolutions with known weights.

An output of a ReLU that is not zero is the value of a convolution: one linear equation in its
inputs. If a layer has enough of them, sparse least squares solve for its input, and the layer
before is next. No gradient is needed for this, only the weights.

With c input channels, o output channels and stride s, about o / 2 outputs per position are
positive, and each position covers s^2 new pixels of every channel: there are enough equations if
o > 2 c s^2. Even then a few directions may stay open in the first layer, where an image is plain
and few outputs are positive. The gradient of this layer closes them (`closed`). It is linear in the
pixels as well, because the slopes of its outputs are known: sum_k d_k * x_k over all samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vjp
from torch.nn.grad import conv2d_weight

from leakaudit.inversion.exact.pixel_grid import Grid
from leakaudit.tasks import layer_chain, sequential
from leakaudit.tasks.layer_chain import Layer, Output
from leakaudit.tasks.sequential import Role

# Eigenvalues of the normal equations below this share of the largest one belong to open directions.
# Those of random filters are above 1e-5, and what depends on each other leaves 1e-16.
OPEN = 1e-10

# What is added to the normal equations, relative to their largest entry: well below `OPEN`.
SHIFT = 1e-12

# Part of an open direction in a pixel that counts as zero.
STILL = 1e-6

# Smallest singular value, relative to the largest one, at which the gradient closes all directions.
WEAK = 1e-6

# Maximum number of times that the open directions are closed again with better inputs.
CLOSED = 6

# Distance from a whole level, in levels, at which a pixel is taken to be right.
NEAR = 0.1

# Change of the pixels, in levels, at which they have settled.
SETTLED = 1e-3

# Change of an output, in units of its error, that shows: it exceeds any error ten times.
VISIBLE = 80.0

# Number of directions that are computed to find the open ones, of which some must not be open: for
# most images, and for those with large plain areas.
FEW = 12
MANY = 300

# Steps of inverse iteration. Each divides what is not open by the ratio of eigenvalues.
STEPS = 3

# Rounds of iterative refinement: the normal equations square the condition number, and each round
# wins back the digits that this loses.
REFINED = 3


@dataclass(frozen=True, eq=False)
class Peeled:
    """What remains of a sample after all layers were taken off.

    Attributes:
        x: (n,) input of the chain, as the network receives it, flattened.
        open: (n, d) orthonormal directions in which it is not known.
        layer: The first convolution.
        after: The layers that follow it.
        output: (1, o, h, w) its output as the features show it, with -1 for what is not positive.
        plain: Whether a change of any pixel by one level shows in the features, so that an image on
            the grid with these features needs no other evidence.
    """

    x: Tensor
    open: Tensor
    layer: Layer
    after: list[Layer]
    output: Tensor
    plain: bool

    @property
    def determined(self) -> Tensor:
        """Which entries of x are known, (n,) bool."""
        return self.open.abs().sum(1) < STILL

    def certain(self, x: Tensor, trusted: Tensor) -> Tensor:
        """Return the first convolution's output (1, o, h, w), with -1 where it is not certain.

        Outputs near zero cannot be told from zero in the features, but follow from the pixels.

        Args:
            x: (n,) an input.
            trusted: (n,) bool, which of its entries are right.
        """
        m = self.layer.module
        assert isinstance(m, nn.Conv2d)
        doubt = (~trusted).to(x).reshape(1, *self.layer.shape)
        ones = torch.ones_like(self.layer.parameters["weight"])
        clear = self.layer.convolved(doubt, ones) == 0
        computed = self.layer(x.reshape(1, *self.layer.shape))
        return torch.where((self.output < 0) & clear, computed, self.output)

    def slope(self, output: Tensor, slope: Tensor) -> Tensor:
        """Return the loss's slope (1, o, h, w) in the first convolution's output.

        Args:
            output: (1, o, h, w) this output, which determines what ReLUs let through.
            slope: (m,) the loss's slope in the features.
        """
        out, back, *_ = vjp(partial(layer_chain.run, self.after), output)
        found: Tensor = back(slope.reshape(out.shape))[0]
        return found

    def gradient(self, x: Tensor, slope: Tensor) -> Tensor:
        """Return the gradient of the first convolution's weights, flattened.

        Args:
            x: (n,) the input.
            slope: (1, o, h, w) the loss's slope in the convolution's output.
        """
        m = self.layer.module
        assert isinstance(m, nn.Conv2d)
        shape = list(self.layer.parameters["weight"].shape)
        image = x.reshape(1, *self.layer.shape)
        found: Tensor = conv2d_weight(image, shape, slope, m.stride, _pair(m.padding), m.dilation)
        return found.flatten()


def peel(chain: list[Layer], features: Tensor, error: float, grid: Grid) -> Peeled | str:
    """Solve for the input of a chain of convolutions and activations.

    Args:
        chain: Layers with the parameters of one model, those before the features.
        features: (n,) output of the chain, flattened.
        error: Relative error of the features.
        grid: Grid of the chain's input.

    Returns:
        The input, or why the equations do not determine it.
    """
    for one in chain:
        if sequential.ROLES.get(type(one.module), Role.OTHER) is Role.OTHER:
            return f"{one.name} is a {type(one.module).__name__}, which cannot be taken off"
    k = len(chain)
    h = features
    while True:
        k, output, _ = layer_chain.before(chain, k, h, torch.zeros_like(h), error)
        layer = chain[k]
        solved = _solved(layer, output)
        if solved is None:
            return f"the positive outputs of {layer.name} leave more than a few inputs open"
        x, directions, growth = solved
        if not any(sequential.ROLES[type(one.module)] is Role.LAYER for one in chain[:k]):
            value = torch.where(output.known, output.value, -1.0)[None]
            plain = not directions.shape[1] and _shows(layer, output, error, grid)
            return Peeled(x, directions, layer, chain[k + 1 :], value, plain)
        if directions.shape[1]:
            return f"the positive outputs of {layer.name} do not determine all inputs"
        h = x.reshape(layer.shape)
        error = error * growth


def closed(
    samples: Sequence[Peeled], slopes: Tensor, gradient: Tensor, grid: Grid
) -> list[Tensor] | None:
    """Determine what is open in all samples by the gradient of the first convolution.

    Outputs near zero may be active without showing it in the features. They follow from the pixels,
    so the equations are solved again with more and more certain pixels.

    Args:
        samples: All k samples that contribute to the gradient.
        slopes: (m, k) the loss's slopes in their features.
        gradient: (q,) of the convolution's weights, flattened.
        grid: Grid of the inputs.

    Returns:
        The input (n,) of each sample; None if some direction stays open.
    """
    found = [one.x for one in samples]
    trusted = [one.determined for one in samples]
    counts = [one.open.shape[1] for one in samples]
    if not any(counts):
        return found
    for _ in range(CLOSED):
        left = gradient
        columns: list[Tensor] = []
        for one, x, sure, slope in zip(samples, found, trusted, slopes.T, strict=True):
            here = one.slope(one.certain(_rounded(x, grid), sure), slope)
            known = torch.where(one.determined, _rounded(one.x, grid), one.x)
            left = left - one.gradient(known, here)
            columns.extend(one.gradient(direction, here) for direction in one.open.T)
        matrix = torch.stack(columns, dim=1)
        size = matrix.norm(dim=0).clamp_min(torch.finfo(matrix.dtype).tiny)
        strength = torch.linalg.svdvals(matrix / size)
        if len(matrix) < len(columns) or not float(strength[-1]) > WEAK * float(strength[0]):
            return None
        steps = torch.linalg.lstsq(matrix, left[:, None], driver="gelsd").solution[:, 0]
        parts = steps.split(counts)
        again = [one.x + one.open @ part for one, part in zip(samples, parts, strict=True)]
        moved = max(float((a - b).abs().max()) for a, b in zip(again, found, strict=True))
        found = again
        away = [(x - _rounded(x, grid)).abs() * grid.std * grid.levels for x in found]
        trusted = [one.determined | (off < NEAR) for one, off in zip(samples, away, strict=True)]
        if moved * grid.levels * float(grid.std.max()) < SETTLED:
            break
    return found


def _shows(layer: Layer, output: Output, error: float, grid: Grid) -> bool:
    """Whether a change of any single pixel by one level shows in the known outputs of a layer."""
    known = output.known.flatten().numpy()
    change = abs(_matrix(layer)[known]).max(axis=0).toarray() / (grid.std.numpy() * grid.levels)
    return bool(change.min() > VISIBLE * error * float(output.value.max()))


def _rounded(x: Tensor, grid: Grid) -> Tensor:
    """Round an input (n,) to the grid, in the units of the network."""
    return (grid.snapped(x * grid.std + grid.mean) - grid.mean) / grid.std


def _solved(layer: Layer, output: Output) -> tuple[Tensor, Tensor, float] | None:
    """Solve for a convolution's input by sparse least squares, given a part of its output.

    Returns:
        A solution (n,), the directions (n, d) that the equations leave open, and the factor by
        which relative errors grow; None if too many directions are open.
    """
    from scipy.sparse import eye_array
    from scipy.sparse.linalg import splu  # slow to import

    known = output.known.flatten()
    if int(known.sum()) + MANY < math.prod(layer.shape):
        return None  # fewer equations than that leave more directions open
    matrix = _matrix(layer)[known.numpy()]
    right = output.value
    bias = layer.parameters.get("bias")
    if bias is not None:
        right = right - bias[:, None, None]
    value = right.flatten()[known].numpy()
    normal = (matrix.T @ matrix).tocsc()
    largest = float(normal.diagonal().max(initial=0.0))
    if not largest > 0:
        return None
    # The shift keeps the factorisation finite. Refinement removes its effect on what is determined.
    shifted = normal + SHIFT * largest * eye_array(normal.shape[0], format="csc")
    factor = splu(shifted.tocsc(), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
    x = factor.solve(matrix.T @ value)
    for _ in range(REFINED):
        x = x + factor.solve(matrix.T @ (value - matrix @ x))
    for count in (FEW, MANY):
        block = np.random.default_rng(0).standard_normal((len(x), min(count, len(x))))
        for _ in range(STEPS):
            block = np.linalg.qr(factor.solve(block))[0]
        values, turn = np.linalg.eigh(block.T @ (normal @ block))
        is_open = values < OPEN * largest
        if not is_open.all():
            growth = math.sqrt(largest / float(values[~is_open].min()))
            directions = block @ turn[:, is_open]
            like = output.value
            return torch.from_numpy(x).to(like), torch.from_numpy(directions).to(like), growth
    return None


def _matrix(layer: Layer):  # type: ignore[no-untyped-def]
    """Return a convolution without its bias as a sparse matrix (outputs, inputs)."""
    from scipy.sparse import csr_array

    m = layer.module
    assert isinstance(m, nn.Conv2d)
    weight = layer.parameters["weight"]
    size = math.prod(layer.shape)
    # Which input each entry of each patch is: the patches of an image of indices. Padding is 0, so
    # that indices count from 1.
    places = torch.arange(1.0, size + 1, dtype=torch.float64).reshape(1, *layer.shape)
    patches = nn.functional.unfold(places, m.kernel_size, m.dilation, _pair(m.padding), m.stride)[
        0
    ].long()  # (c k k, positions)
    entries = patches.T - 1  # (positions, c k k)
    inside = entries >= 0
    filters = weight.flatten(1)  # (o, c k k)
    positions = len(entries)
    row = torch.arange(len(filters))[:, None, None] * positions + torch.arange(positions)[:, None]
    row = row.expand(-1, -1, entries.shape[1])
    column = entries.expand(len(filters), -1, -1)
    values = filters[:, None, :].expand(-1, positions, -1)
    chosen = inside.expand(len(filters), -1, -1)
    data = values[chosen].double().numpy()
    where = (row[chosen].numpy(), column[chosen].numpy())
    return csr_array((data, where), shape=(len(filters) * positions, size))


def _pair(padding: str | tuple[int, ...]) -> tuple[int, ...]:
    assert not isinstance(padding, str)  # `sequential.plain`
    return padding
