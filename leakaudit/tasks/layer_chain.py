"""A network as a chain of invertible layers and activations that can be traversed both ways."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vjp

from leakaudit.core.errors import LeakauditError
from leakaudit.tasks import sequential
from leakaudit.tasks.activations import ACTIVATIONS, Inverse

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# Maximum pixels per channel of a convolution's input, 64x64. The layer's matrix has that many
# columns, and its singular value decomposition takes cubic time. A choice.
PIXELS = 4096


@dataclass(frozen=True, eq=False)
class Layer:
    """A module of a chain, with the parameters of one model."""

    name: str  # the module's qualified name
    module: nn.Module
    parameters: dict[str, Tensor]  # its parameters and buffers by their own names
    shape: tuple[int, ...]  # shape of its input, without the batch
    # (o,) what the weights of a convolution were multiplied by, if batch normalisation was folded
    # into it
    scale: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output for a batch."""
        if not self.parameters:
            plain: Tensor = self.module(x)
            return plain
        out: Tensor = functional_call(self.module, self.parameters, (x,))
        return out

    def convolved(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the convolution of x (b, c, h, w) with other weights (o, c, k, k), no bias."""
        m = self.module
        assert isinstance(m, nn.Conv2d)
        return F.conv2d(x, weight, None, m.stride, m.padding, m.dilation)

    def back(self, d: Tensor) -> Tensor:
        """Return the slope of the loss in the input of a layer with weights."""
        # A layer with weights is affine, so its derivative is the same at every input, for example
        # at zero.
        found: Tensor = vjp(self, d.new_zeros(1, *self.shape))[1](d[None])[0][0]
        return found


def unfit(task: Task) -> str | None:
    """Return the reason why a network cannot be inverted layer by layer, as part of a sentence.

    It must be a chain of layers with weights, each followed by at most one activation, that ends in
    a linear layer with a bias.
    """
    parts = sequential.parts(task.module)
    if parts is None:
        return f"{task.spec.model} is not a plain chain of layers"
    for name, m in parts:
        if not _can_be_undone(m):
            return (
                f"{name} is a {type(m).__name__}, but only convolutions, linear layers, "
                "ReLU, LeakyReLU, sigmoid and tanh can be inverted"
            )
        if isinstance(m, nn.Conv2d) and not sequential.plain(m):
            return f"{name} is a convolution with groups or with padding other than zeros"
        if any(f"{name}.{n}" not in task.layout.names for n, _ in m.named_parameters()):
            return f"{name} is not trained, so it has no gradient"
    for (_, one), (_, next_one) in pairwise(parts):
        if sequential.role(one) == sequential.role(next_one) == "activation":
            return "one activation follows another"
    last = parts[-1][1] if parts else None
    if not isinstance(last, nn.Linear) or last.bias is None:
        return "the last layer is not linear with a bias"
    for layer in layers(task, torch.zeros(task.layout.size, device=task.device)):
        if not isinstance(layer.module, nn.Conv2d):
            continue
        pixels = math.prod(layer.shape[1:])
        if pixels > PIXELS:
            return f"{layer.name} has {pixels} input pixels per channel, the limit is {PIXELS}"
    return None


def _can_be_undone(m: nn.Module) -> bool:
    if type(m) in ACTIVATIONS:
        return ACTIVATIONS[type(m)].undo is not None
    return sequential.role(m) != "other"


def layers(task: Task, theta: Tensor) -> list[Layer]:
    """Return the chain of a plain ``Sequential``, with the parameters (d,) of one model."""
    parts = sequential.parts(task.module)
    if parts is None:
        raise LeakauditError(f"{task.spec.model} is not a plain chain of layers")
    params = task.layout.split(theta)
    x = theta.new_zeros(1, *task.spec.shape)  # a test input, to determine the shape of every layer
    chain = []
    for at, m in parts:
        own = {n: params[f"{at}.{n}"] for n, _ in m.named_parameters()}
        for name, _ in m.named_buffers():
            value = task.buffers[f"{at}.{name}"]
            own[name] = value.to(theta) if value.is_floating_point() else value
        layer = Layer(at, m, own, tuple(x.shape[1:]))
        chain.append(layer)
        x = layer(x)
    return chain


def run(chain: list[Layer], x: Tensor) -> Tensor:
    """Return the output of consecutive layers for a batch of inputs."""
    for layer in chain:
        x = layer(x)
    return x


def before(
    chain: list[Layer], k: int, h: Tensor, slope: Tensor, error: float
) -> tuple[int, Inverse]:
    """Go from the input of a layer back to the previous layer with weights, inverting the others.

    Returns the index of the previous layer with weights, -1 if there is none, and what is known of
    its output, or of the input of the chain, with the slope of the loss in it.
    """
    out = Inverse(h, torch.ones_like(h, dtype=torch.bool), torch.ones_like(h), slope)
    while k and sequential.role(chain[k - 1].module) != "layer":
        k -= 1
        m = chain[k].module
        if type(m) in ACTIVATIONS:
            undo = ACTIVATIONS[type(m)].undo
            assert undo is not None
            found = undo(m, out.value, error)
            out = replace(found, slope=out.slope * found.slope)
        out = out.reshape(chain[k].shape)
    return k - 1, out
