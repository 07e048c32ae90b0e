"""From the features of one sample back to its pixels, through convolutions with known weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import vjp

from leakaudit.inversion.exact.chain_pieces import places, weight_gradient
from leakaudit.inversion.exact.open_pixels import Array, ProvenPixels
from leakaudit.inversion.exact.pixel_grid import PixelGrid
from leakaudit.inversion.linear import least_squares, positive
from leakaudit.tasks import layer_chain, sequential
from leakaudit.tasks.activations import ZERO_ERRORS, Inverse
from leakaudit.tasks.layer_chain import Layer

# An output of a ReLU that is not zero is the value of a convolution: one linear equation in its
# inputs. If a layer has enough of them, sparse least squares solve for its input, and the layer
# before is next. No gradient is needed for this, only the weights.
#
# With c input channels, o output channels and stride s, about o / 2 outputs per position are
# positive, and each position covers s^2 new pixels of every channel: there are enough equations if
# o > 2 c s^2. Even then, directions stay open in the first layer, where an image is plain and few
# outputs are positive. There, pixels are whole levels, and `open_pixels` enumerates those that are
# possible. What it leaves open is closed by the gradient of this layer (`closed`). It is linear in
# the pixels as well, because the slopes of its outputs are known: sum_k d_k * x_k over all samples.

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

# Number of directions that are computed to find the open ones, of which some must not be open: for
# most images, and for those with large plain areas.
FEW = 12
MANY = 300

# Steps of inverse iteration. Each divides what is not open by the ratio of eigenvalues.
STEPS = 3

# Rounds of iterative refinement: the normal equations square the condition number, and each round
# wins back the digits that this loses.
REFINED = 3


# Error of the size of features, in units of its standard deviation, that is allowed for.
SURE = 3.0


@dataclass(frozen=True, eq=False)
class PeeledSample:
    """What remains of a sample after all layers were taken off."""

    x: Tensor  # (n,) input of the chain, as the network receives it, flattened
    open: Tensor  # (n, d) orthonormal directions in which it is not known
    layer: Layer  # the first convolution
    after: list[Layer]  # the layers that follow it
    # (1, o, h, w) its output as the features show it, with -1 for what is not positive
    output: Tensor
    # whether every pixel is proven by exhaustion (`open_pixels`), so that the image needs no other
    # evidence
    plain: bool

    @property
    def determined(self) -> Tensor:
        """Which entries of x are known, (n,) bool."""
        return self.open.abs().sum(1) < STILL

    def certain(self, x: Tensor, trusted: Tensor) -> Tensor:
        """Return the first convolution's output (1, o, h, w), with -1 where it is not certain.

        Outputs near zero cannot be told from zero in the features, but follow from the
        entries of x (n,) that are `trusted`.
        """
        doubt = (~trusted).to(x).reshape(1, *self.layer.shape)
        ones = torch.ones_like(self.layer.parameters["weight"])
        clear = self.layer.convolved(doubt, ones) == 0
        computed = self.layer(x.reshape(1, *self.layer.shape))
        return torch.where((self.output < 0) & clear, computed, self.output)

    def slope(self, output: Tensor, slope: Tensor) -> Tensor:
        """Return the loss's slope (1, o, h, w) in the first convolution's output.

        It follows from that in the features (m,), through the ReLUs that this output opens.
        """
        out, back, *_ = vjp(partial(layer_chain.run, self.after), output)
        found: Tensor = back(slope.reshape(out.shape))[0]
        return found

    def gradient(self, x: Tensor, slope: Tensor) -> Tensor:
        """Return the gradient of the first convolution's weights, flattened."""
        return weight_gradient(self.layer, x.reshape(1, *self.layer.shape), slope).flatten()


def peel(
    chain: list[Layer],
    features: Tensor,
    error: float,
    grid: PixelGrid,
    deviation: Tensor | None = None,
) -> PeeledSample | str:
    """Solve for the input of a chain of convolutions and activations, given its output (n,).

    `deviation` (n,) has the features' errors, if they differ, of a chain with one layer with
    weights.
    """
    for one in chain:
        if sequential.role(one.module) == "other":
            return f"{one.name} is a {type(one.module).__name__}, which cannot be taken off"
    k = len(chain)
    h = features
    while True:
        k, output = layer_chain.before(chain, k, h, torch.zeros_like(h), error)
        layer = chain[k]
        if not any(sequential.role(one.module) == "layer" for one in chain[:k]):
            return _pixels(layer, chain[k + 1 :], output, error, grid, deviation)
        solved = _solved(layer, output)
        if solved is None:
            return f"the positive outputs of {layer.name} leave more than a few inputs open"
        x, directions, growth = solved
        if directions.shape[1]:
            return f"the positive outputs of {layer.name} do not determine all inputs"
        h = x.reshape(layer.shape)
        error = error * growth


def closed(
    samples: Sequence[PeeledSample], slopes: Tensor, gradient: Tensor, grid: PixelGrid
) -> list[Tensor] | None:
    """Determine what is open in all samples by the gradient (q,) of the first convolution.

    Outputs near zero may be active without showing it in the features, whose slopes are (m, k).
    They follow from the pixels, so the equations are solved again with more and more certain
    pixels. None if some direction stays open.
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
            here = one.slope(one.certain(grid.rounded(x), sure), slope)
            known = torch.where(one.determined, grid.rounded(one.x), one.x)
            left = left - one.gradient(known, here)
            columns.extend(one.gradient(direction, here) for direction in one.open.T)
        matrix = torch.stack(columns, dim=1)
        size = positive(matrix.norm(dim=0))
        strength = torch.linalg.svdvals(matrix / size)
        if len(matrix) < len(columns) or not float(strength[-1]) > WEAK * float(strength[0]):
            return None
        steps = least_squares(matrix, left)
        parts = steps.split(counts)
        again = [one.x + one.open @ part for one, part in zip(samples, parts, strict=True)]
        moved = max(float((a - b).abs().max()) for a, b in zip(again, found, strict=True))
        found = again
        away = [(x - grid.rounded(x)).abs() * grid.std * grid.levels for x in found]
        trusted = [one.determined | (off < NEAR) for one, off in zip(samples, away, strict=True)]
        if moved * grid.levels * float(grid.std.max()) < SETTLED:
            break
    return found


def sized(
    chain: list[Layer], features: Tensor, error: float, deviation: Tensor, grid: PixelGrid
) -> tuple[Tensor, Tensor] | None:
    """Determine the size of features (n,) of which only the direction is known.

    With one convolution, A x + bias = s times the positive features. The bias does not change
    with s, so the equations fit at one s: the part of the features that no A x can explain is,
    times s, that of the bias. With this s, some windows prove their pixels. These are exact,
    and determine s again, as precisely as the best features are known.

    Returns features of the right size and deviations that include that of s; None if the
    convolution has no bias, or there is more than one layer with weights.
    """
    weighty = [one for one in chain if one.parameters]
    if len(weighty) != 1 or "bias" not in weighty[0].parameters:
        return None
    nothing = torch.zeros_like(features)
    k, output = layer_chain.before(chain, len(chain), features, nothing, error)
    spread = deviation.reshape(output.value.shape)
    output = replace(output, known=_clear(output, spread))
    if not bool(output.known.any()):
        return None
    found = _equations(chain[k], output, spread, grid)
    # matrix p = s of_features - constant, in units of the errors
    of_features = (output.value / spread).flatten()[output.known.flatten()].numpy()
    constant = of_features - found.right
    size, unsure = _size(found, of_features, constant)
    wide = np.hypot(1.0, SURE * unsure * of_features)
    matrix = found.matrix.multiply(1 / wide[:, None]).tocsr()
    right = (size * of_features - constant) / wide
    board = found.weighted(matrix, right)
    if not board.settle():
        return None
    seen = board.settled()
    if bool(seen.any()):
        exact = (found.matrix @ board.value + constant)[seen]
        mine = of_features[seen]
        size = float(mine @ exact) / float(mine @ mine)
        unsure = 1 / math.sqrt(float(mine @ mine))
    return size * features, torch.hypot(deviation, SURE * unsure * features)


def _size(equations: ProvenPixels, of_features: Array, constant: Array) -> tuple[float, float]:
    """Return the s with which matrix p + constant = s of_features fits best, and its error.

    Pixels are taken to be half white, with errors of the same size, so that open directions do
    not make the equations singular.
    """
    from scipy.sparse import eye_array
    from scipy.sparse.linalg import splu  # slow to import

    matrix = equations.matrix
    half = equations.levels / 2
    constant = constant + matrix @ np.full(matrix.shape[1], half)
    normal = (matrix.T @ matrix + eye_array(matrix.shape[1]) / half**2).tocsc()
    factor = splu(normal, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
    right = matrix.T @ np.stack([of_features, constant], axis=1)
    solved = factor.solve(right)
    for _ in range(REFINED):
        solved = solved + factor.solve(right - normal @ solved)
    rest = np.stack([of_features, constant], axis=1) - matrix @ solved
    strength = max(float(of_features @ rest[:, 0]), np.finfo(np.float64).tiny)
    return float(of_features @ rest[:, 1]) / strength, 1 / math.sqrt(strength)


def _clear(output: Inverse, deviation: Tensor) -> Tensor:
    """Return which outputs are known and not mistaken for zero, bool."""
    error = deviation.reshape(output.value.shape)
    return output.known & (output.value > ZERO_ERRORS * error)


def _pixels(
    layer: Layer,
    after: list[Layer],
    output: Inverse,
    error: float,
    grid: PixelGrid,
    deviation: Tensor | None,
) -> PeeledSample | str:
    """Solve for the pixels that a first convolution's output shows."""
    spread = torch.full_like(output.value, error * float(output.value.max()))
    if deviation is not None:
        spread = deviation.reshape(output.value.shape)
        output = replace(output, known=_clear(output, spread))
    shown = torch.where(output.known, output.value, -1.0)[None]
    board = _equations(layer, output, spread, grid)
    contradicted = not board.fill()
    like = output.value
    known = torch.from_numpy(board.known)
    levels = torch.from_numpy(board.value).to(like)
    x = (levels / grid.levels - grid.mean) / grid.std
    if bool(known.all()):
        return PeeledSample(x, x.new_zeros(len(x), 0), layer, after, shown, board.fits())
    if contradicted:
        known = torch.zeros_like(known)
    solved = _solved(layer, output, x, known)
    if solved is None:
        return f"the positive outputs of {layer.name} leave more than a few inputs open"
    return PeeledSample(solved[0], solved[1], layer, after, shown, False)


def _equations(layer: Layer, output: Inverse, spread: Tensor, grid: PixelGrid) -> ProvenPixels:
    """Return the equations of a first convolution's outputs between levels of pixels."""
    from scipy.sparse import diags_array  # slow to import

    known = np.flatnonzero(output.known.numpy())
    scale = 1 / spread.flatten()[known].numpy()
    right = output.value.flatten()[known]
    bias = layer.parameters.get("bias")
    if bias is not None:
        right = right - bias[:, None, None].expand(output.value.shape).flatten()[known]
    m = layer.module
    assert isinstance(m, nn.Conv2d)
    matrix = _matrix(layer)[known]
    # An input is (levels / grid.levels - mean) / std.
    right = right.numpy() + matrix @ (grid.mean / grid.std).numpy()
    matrix = (matrix @ diags_array((1 / (grid.std * grid.levels)).numpy())).tocsr()
    high, wide = output.value.shape[1:]
    return ProvenPixels(
        matrix.multiply(scale[:, None]).tocsr(),
        right * scale,
        known % (high * wide),
        places(m, layer.shape).reshape(high, wide, -1).numpy(),
        grid.levels,
    )


def _solved(
    layer: Layer, output: Inverse, x: Tensor | None = None, given: Tensor | None = None
) -> tuple[Tensor, Tensor, float] | None:
    """Solve for a convolution's input (n,) by sparse least squares, some entries being `given`.

    Returns the input, the directions (n, d) that the equations leave open, and the factor by
    which relative errors grow; None if too many directions are open.
    """
    known = output.known.flatten()
    if int(known.sum()) + MANY < math.prod(layer.shape):
        return None  # fewer equations than that leave more directions open
    matrix = _matrix(layer)[known.numpy()]
    right = output.value
    bias = layer.parameters.get("bias")
    if bias is not None:
        right = right - bias[:, None, None]
    value = right.flatten()[known].numpy()
    if x is None or given is None:
        x = output.value.new_zeros(matrix.shape[1])
        given = torch.zeros_like(x, dtype=torch.bool)
    if bool(given.any()):
        free = ~given.numpy()
        value = value - matrix[:, ~free] @ x.numpy()[~free]
        matrix = matrix[:, free]
    found = _least_squares(matrix, value)
    if found is None:
        return None
    x = x.clone()
    x[~given] = torch.from_numpy(found[0]).to(x)
    directions = x.new_zeros(len(x), found[1].shape[1])
    directions[~given] = torch.from_numpy(found[1]).to(x)
    return x, directions, found[2]


def _least_squares(
    matrix: Any, value: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], float] | None:
    """Solve sparse equations matrix x = value; the result is that of `_solved`."""
    from scipy.sparse import eye_array
    from scipy.sparse.linalg import splu  # slow to import

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
        if len(x) <= count:
            values, turn = np.linalg.eigh(normal.toarray())
            is_open = values < OPEN * largest
            growth = math.sqrt(largest / float(values[~is_open].min(initial=largest)))
            return x, turn[:, is_open], growth
        block = np.random.default_rng(0).standard_normal((len(x), count))
        for _ in range(STEPS):
            block = np.linalg.qr(factor.solve(block))[0]
        values, turn = np.linalg.eigh(block.T @ (normal @ block))
        is_open = values < OPEN * largest
        if not is_open.all():
            growth = math.sqrt(largest / float(values[~is_open].min()))
            directions = block @ turn[:, is_open]
            return x, directions, growth
    return None


def _matrix(layer: Layer):  # type: ignore[no-untyped-def]
    """Return a convolution without its bias as a sparse matrix (outputs, inputs)."""
    from scipy.sparse import csr_array

    m = layer.module
    assert isinstance(m, nn.Conv2d)
    weight = layer.parameters["weight"]
    size = math.prod(layer.shape)
    entries = places(m, layer.shape)
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
