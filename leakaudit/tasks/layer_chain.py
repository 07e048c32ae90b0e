"""A network as a chain of invertible layers and activations that can be traversed both ways."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vjp

from leakaudit.core.errors import LeakauditError
from leakaudit.tasks import sequential
from leakaudit.tasks.activations import ACTIVATIONS
from leakaudit.tasks.sequential import ChainModule, ModuleRole

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


@dataclass(frozen=True, eq=False)
class Output:
    """The known part of a layer's output (o, ...)."""

    value: Tensor  # its value, valid if `known`
    known: Tensor  # whether the value is known, bool; otherwise it is at most 0
    trust: Tensor  # weight of its error, at most 1

    def reshape(self, shape: tuple[int, ...]) -> Output:
        """Return the output in another shape."""
        return Output(
            self.value.reshape(shape), self.known.reshape(shape), self.trust.reshape(shape)
        )


def unfit(task: Task) -> str | None:
    """Return the reason why a network cannot be inverted layer by layer, as part of a sentence.

    It must be a chain of layers with weights, each followed by at most one activation, that ends in
    a linear layer with a bias.
    """
    parts = sequential.parts(task.module)
    if parts is None:
        return f"{task.spec.model} is not a plain chain of layers"
    for part in parts:
        name, m = part.name, part.module
        if not _can_be_undone(part):
            return (
                f"{name} is a {type(m).__name__}, but only convolutions, linear layers, "
                "ReLU, LeakyReLU, sigmoid and tanh can be inverted"
            )
        if isinstance(m, nn.Conv2d) and not sequential.plain(m):
            return f"{name} is a convolution with groups or with padding other than zeros"
        if any(f"{name}.{n}" not in task.layout.names for n, _ in m.named_parameters()):
            return f"{name} is not trained, so it has no gradient"
    for one, next_one in pairwise(parts):
        if one.role is next_one.role is ModuleRole.ACTIVATION:
            return "one activation follows another"
    last = parts[-1].module if parts else None
    if not isinstance(last, nn.Linear) or last.bias is None:
        return "the last layer is not linear with a bias"
    for layer in layers(task, torch.zeros(task.layout.size, device=task.device)):
        if not isinstance(layer.module, nn.Conv2d):
            continue
        pixels = math.prod(layer.shape[1:])
        if pixels > PIXELS:
            return f"{layer.name} has {pixels} input pixels per channel, the limit is {PIXELS}"
    return None


def _can_be_undone(part: ChainModule) -> bool:
    if part.role is ModuleRole.ACTIVATION:
        return ACTIVATIONS[type(part.module)].undo is not None
    return part.role is not ModuleRole.OTHER


def layers(task: Task, theta: Tensor) -> list[Layer]:
    """Return the chain of a plain ``Sequential``, with the parameters (d,) of one model."""
    parts = sequential.parts(task.module)
    if parts is None:
        raise LeakauditError(f"{task.spec.model} is not a plain chain of layers")
    params = task.layout.split(theta)
    x = theta.new_zeros(1, *task.spec.shape)  # a test input, to determine the shape of every layer
    chain = []
    for part in parts:
        own = {n: params[f"{part.name}.{n}"] for n, _ in part.module.named_parameters()}
        for name, _ in part.module.named_buffers():
            value = task.buffers[f"{part.name}.{name}"]
            own[name] = value.to(theta) if value.is_floating_point() else value
        layer = Layer(part.name, part.module, own, tuple(x.shape[1:]))
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
) -> tuple[int, Output, Tensor]:
    """Go from the input of a layer back to the previous layer with weights, inverting the others.

    Returns:
        The index of the previous layer with weights, -1 if there is none; what is known of its
        output, or of the input of the chain; and the slope of the loss in it.
    """
    out = Output(h, torch.ones_like(h, dtype=torch.bool), torch.ones_like(h))
    while k and sequential.ROLES[type(chain[k - 1].module)] is not ModuleRole.LAYER:
        k -= 1
        m = chain[k].module
        if type(m) in ACTIVATIONS:
            undo = ACTIVATIONS[type(m)].undo
            assert undo is not None
            found = undo(m, out.value, error)
            out = Output(found.value, found.known, found.trust)
            slope = slope * found.slope
        shape = chain[k].shape
        out = out.reshape(shape)
        slope = slope.reshape(shape)
    return k - 1, out, slope
