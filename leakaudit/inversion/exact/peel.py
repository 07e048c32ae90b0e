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

import numpy as np
import torch
from torch import Tensor, nn

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

# Number of directions that are computed to find the open ones, of which some must not be open.
DIRECTIONS = 24

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
        slope: (o, h, w) the loss's slope in its output.
        error: Relative error of x.
    """

    x: Tensor
    open: Tensor
    layer: Layer
    slope: Tensor
    error: float

    @property
    def determined(self) -> Tensor:
        """Which entries of x are known, (n,) bool."""
        return self.open.abs().sum(1) < STILL


def peel(chain: list[Layer], features: Tensor, slope: Tensor, error: float) -> Peeled | str:
    """Solve for the input of a chain of convolutions and activations.

    Args:
        chain: Layers with the parameters of one model, those before the features.
        features: (n,) output of the chain, flattened.
        slope: (n,) the loss's slope in the features.
        error: Relative error of the features.

    Returns:
        The input, or why the equations do not determine it.
    """
    k = len(chain)
    h = features
    while True:
        k, output, slope = layer_chain.before(chain, k, h, slope, error)
        layer = chain[k]
        solved = _solved(layer, output)
        if solved is None:
            return f"the positive outputs of {layer.name} leave more than a few inputs open"
        x, directions, growth = solved
        error = error * growth
        if not any(sequential.ROLES[type(one.module)] is Role.LAYER for one in chain[:k]):
            return Peeled(x, directions, layer, slope, error)
        if directions.shape[1]:
            return f"the positive outputs of {layer.name} do not determine all inputs"
        h = x.reshape(layer.shape)
        slope = layer.back(slope)


def closed(samples: Sequence[Peeled], gradient: Tensor) -> list[Tensor] | None:
    """Determine what is open in all samples by the gradient of the first convolution.

    Args:
        samples: All samples that contribute to the gradient.
        gradient: (o, c, k, k) of the convolution's weights.

    Returns:
        The input (n,) of each sample; None if some direction stays open.
    """
    left = gradient - sum(_gradient(one, one.x[None]) for one in samples)
    columns = []
    for one in samples:
        columns.extend(_gradient(one, direction[None]).flatten() for direction in one.open.T)
    if not columns:
        return [one.x for one in samples]
    matrix = torch.stack(columns, dim=1)
    size = matrix.norm(dim=0)
    strength = torch.linalg.svdvals(matrix / size.clamp_min(torch.finfo(size.dtype).tiny))
    if len(matrix) < len(columns) or not float(strength[-1]) > WEAK * float(strength[0]):
        return None
    steps = torch.linalg.lstsq(matrix, left.flatten()[:, None]).solution[:, 0]
    parts = steps.split([one.open.shape[1] for one in samples])
    return [one.x + one.open @ part for one, part in zip(samples, parts, strict=True)]


def _gradient(sample: Peeled, x: Tensor) -> Tensor:
    """Return the gradient of the first convolution's weights for an input (1, n) of one sample."""
    layer = sample.layer
    m = layer.module
    assert isinstance(m, nn.Conv2d)
    weight = layer.parameters["weight"]
    image = x.reshape(1, *layer.shape)
    found: Tensor = nn.grad.conv2d_weight(
        image, list(weight.shape), sample.slope[None], m.stride, _pair(m.padding), m.dilation
    )
    return found


def _solved(layer: Layer, output: Output) -> tuple[Tensor, Tensor, float] | None:
    """Solve for a convolution's input by sparse least squares, given a part of its output.

    Returns:
        A solution (n,), the directions (n, d) that the equations leave open, and the factor by
        which relative errors grow; None if too many directions are open.
    """
    from scipy.sparse import eye_array
    from scipy.sparse.linalg import splu  # slow to import

    known = output.known.flatten()
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
    rng = np.random.default_rng(0)
    block = rng.standard_normal((len(x), min(DIRECTIONS, len(x))))
    for _ in range(STEPS):
        block = np.linalg.qr(factor.solve(block))[0]
    values, turn = np.linalg.eigh(block.T @ (normal @ block))
    is_open = values < OPEN * largest
    if is_open.all():
        return None
    growth = math.sqrt(largest / float(values[~is_open].min()))
    directions = block @ turn[:, is_open]
    like = output.value
    return torch.from_numpy(x).to(like), torch.from_numpy(directions).to(like), growth


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
    patches = nn.functional.unfold(
        places, m.kernel_size, m.dilation, _pair(m.padding), m.stride
    )[0].long()  # (c k k, positions)
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
