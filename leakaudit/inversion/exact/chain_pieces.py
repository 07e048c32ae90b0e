"""A chain of convolutions, activations and average pooling, linearised at some images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vjp
from torch.nn.grad import conv2d_input, conv2d_weight

from leakaudit.tasks.activations import ACTIVATIONS
from leakaudit.tasks.layer_chain import Layer

# With ReLU, the chain is piecewise linear: on the piece where some images are, that is, as long as
# no ReLU changes between active and inactive, all values in the network are affine in the pixels.
# With sigmoid or tanh, they are so to first order. `Piece` is this affine function, applied in both
# directions without building its matrix.

AVERAGES = (nn.AvgPool2d, nn.AdaptiveAvgPool2d)
SILENT = (nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout2d)
ACTING = (nn.ReLU, nn.Sigmoid, nn.Tanh)


@dataclass(frozen=True, eq=False)
class ComposedFunction:
    """Convolutions, activations and average pooling as one function of images."""

    # the layers, without a last activation and without what only changes the shape
    layers: list[Layer]
    last: nn.Module | None  # the last activation, which was left out; None if there is none

    @classmethod
    def of(cls, chain: list[Layer]) -> ComposedFunction | str:
        """Compose the layers before the features, or explain why they cannot be composed."""
        acting = [layer for layer in chain if not isinstance(layer.module, SILENT)]
        for layer in acting:
            if not isinstance(layer.module, (nn.Conv2d, *ACTING, *AVERAGES)):
                kind = type(layer.module).__name__
                return f"{layer.name} is a {kind}, which is only inverted layer by layer"
        if acting and isinstance(acting[-1].module, ACTING):
            return cls(acting[:-1], acting[-1].module)
        return cls(acting, None)

    @property
    def convolutions(self) -> list[Layer]:
        """The convolutions in order."""
        return [layer for layer in self.layers if isinstance(layer.module, nn.Conv2d)]

    def piece(self, x: Tensor, faint: float = 0.0) -> Piece:
        """Evaluate images (b, *shape), as the network receives them, and remember their piece.

        Outputs of inner ReLUs below the share `faint` of their root mean square count as
        inactive.
        """
        inputs = x
        active: list[Tensor] = []
        for layer in self.layers:
            if isinstance(layer.module, nn.ReLU):
                least = faint * x.square().mean().sqrt()
                active.append((x > least).to(x))
                x = x.relu()
                continue
            if isinstance(layer.module, ACTING):
                x = layer(x)
                slope = ACTIVATIONS[type(layer.module)].slope
                assert slope is not None  # all of `ACTING` have one
                active.append(slope(x))
                continue
            if isinstance(layer.module, nn.Conv2d):
                inputs = x
            x = layer(x)
        return Piece(self, x, inputs, active)


@dataclass(frozen=True, eq=False)
class Piece:
    """The affine function that a chain is around some images."""

    chain: ComposedFunction
    shaped: Tensor  # (b, ...) outputs of the chain at these images
    inputs: Tensor  # (b, c, h, w) inputs of the last convolution
    # for each activation inside, (b, c, h, w) its slopes. That of a ReLU is 1 if the output is
    # active, and 0 otherwise.
    active: list[Tensor]

    @property
    def out(self) -> Tensor:
        """(b, m) outputs of the chain at these images."""
        return self.shaped.flatten(1)

    def along(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the derivative to changes of the images (b, *shape).

        Returns changes of the outputs (b, m), and of the last convolution's inputs.
        """
        changes = v
        active = iter(self.active)
        for layer in self.chain.layers:
            if isinstance(layer.module, ACTING):
                v = v * next(active)
            elif isinstance(layer.module, nn.Conv2d):
                changes = v
                v = layer.convolved(v, layer.parameters["weight"])
            else:
                v = layer(v)  # an average is linear
        return v.flatten(1), changes

    def back(self, d: Tensor, more: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Apply the transposed derivative to slopes in the outputs (b, m).

        `more` is added to those in the last convolution's inputs. Returns the slopes in the images
        (b, *shape), and in the last convolution's outputs.
        """
        active = list(self.active)
        d = d.reshape(self.shaped.shape)
        slopes: Tensor | None = None
        for layer in reversed(self.chain.layers):
            m = layer.module
            if isinstance(m, ACTING):
                d = d * active.pop()
            elif not isinstance(m, nn.Conv2d):
                d = vjp(layer, d.new_zeros(len(d), *layer.shape))[1](d)[0]
            elif slopes is None:
                slopes = d
                d = input_slopes(layer, d, layer.parameters["weight"])
                if more is not None:
                    d = d + more
            else:
                d = input_slopes(layer, d, layer.parameters["weight"])
        return d, d if slopes is None else slopes


def weight_gradient(layer: Layer, inputs: Tensor, slopes: Tensor) -> Tensor:
    """Return the gradient (o, c, k, k) of a convolution's weights, summed over samples."""
    m = layer.module
    assert isinstance(m, nn.Conv2d)
    shape = list(layer.parameters["weight"].shape)
    found: Tensor = conv2d_weight(inputs, shape, slopes, m.stride, padding(m), m.dilation)
    return found


def input_slopes(layer: Layer, slopes: Tensor, weight: Tensor) -> Tensor:
    """Return slopes (b, c, h, w) in a convolution's inputs, given those in its outputs.

    With slopes in the gradient as `weight` (o, c, k, k), it is the transpose of
    `weight_gradient`.
    """
    m = layer.module
    assert isinstance(m, nn.Conv2d)
    size = [len(slopes), *layer.shape]
    found: Tensor = conv2d_input(size, weight, slopes, m.stride, padding(m), m.dilation)
    return found


def places(m: nn.Conv2d, shape: Sequence[int]) -> Tensor:
    """Return which input each entry of each patch is, (positions, c k k), -1 outside the image."""
    # The patches of an image of indices. Padding is 0, so that indices count from 1.
    indices = torch.arange(1.0, math.prod(shape) + 1, dtype=torch.float64).reshape(1, *shape)
    patches = nn.functional.unfold(indices, m.kernel_size, m.dilation, padding(m), m.stride)[0]
    return patches.T.long() - 1


def padding(m: nn.Conv2d) -> tuple[int, ...]:
    """Return the zero padding of a convolution."""
    assert not isinstance(m.padding, str)  # `sequential.plain`
    return m.padding


def folded(chain: list[Layer]) -> list[Layer]:
    """Fold batch normalisation with running statistics into the convolution directly before it.

    (z - mean) / sqrt(var + eps) * gain + shift of z = W x + b is a convolution with the weights
    s W and the bias s (b - mean) + shift, s = gain / sqrt(var + eps).
    """
    found: list[Layer] = []
    for layer in chain:
        if isinstance(layer.module, nn.BatchNorm2d) and found:
            found[-1] = _folded(found[-1], layer)
        else:
            found.append(layer)
    return found


def _folded(convolution: Layer, norm: Layer) -> Layer:
    m = convolution.module
    after = norm.module
    assert isinstance(m, nn.Conv2d)
    assert isinstance(after, nn.BatchNorm2d)
    weight = convolution.parameters["weight"]
    zero = weight.new_zeros(len(weight))
    own = norm.parameters
    scale = own.get("weight", zero + 1) * (own["running_var"] + after.eps).rsqrt()
    bias = convolution.parameters.get("bias", zero)
    parameters = {
        "weight": weight * scale[:, None, None, None],
        "bias": (bias - own["running_mean"]) * scale + own.get("bias", zero),
    }
    module = nn.Conv2d(
        m.in_channels,
        m.out_channels,
        (m.kernel_size[0], m.kernel_size[1]),
        (m.stride[0], m.stride[1]),
        (padding(m)[0], padding(m)[1]),
        (m.dilation[0], m.dilation[1]),
        device="meta",
    )
    return Layer(convolution.name, module, parameters, convolution.shape, scale)
