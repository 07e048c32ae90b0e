"""A network as a chain of convolutions, linear layers and activations that can be undone, and how to walk it in both directions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vjp

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

PIXELS = (
    4096  # most pixels of a convolution's input: its matrix has as many columns, and is decomposed
)
ZERO = 1e-7  # outputs of ReLU this small beside the largest are zero, or 20 times their error
INSIDE = 1e-12  # least distance of an output of sigmoid or tanh to its limits
WEIGHTS = (nn.Linear, nn.Conv2d)
ACTIVE = (nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh)
PASSIVE = (nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout2d)


@dataclass(frozen=True, eq=False)
class Layer:
    """A module of a chain, its parameters by their own names, and the shape of its input without the batch."""

    name: str
    module: nn.Module
    parameters: dict[str, Tensor]
    shape: tuple[int, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """Output for a batch of inputs."""
        out: Tensor = (
            functional_call(self.module, self.parameters, (x,))
            if self.parameters
            else self.module(x)
        )
        return out

    def convolved(self, x: Tensor, weight: Tensor) -> Tensor:
        """Output of a convolution with other weights and no bias."""
        m = self.module
        assert isinstance(m, nn.Conv2d)
        return F.conv2d(x, weight, None, m.stride, m.padding, m.dilation)

    def back(self, d: Tensor) -> Tensor:
        """Slope of the loss in the input of a layer with weights, from the slope d in its output."""
        found: Tensor = vjp(self, d.new_zeros(1, *self.shape))[1](d[None])[0][0]
        return found


@dataclass(frozen=True, eq=False)
class Output:
    """What is known of a layer's output (o, ...): its value where `known`, elsewhere that it is at most 0.

    trust: weight of its error, at most 1.
    """

    value: Tensor
    known: Tensor
    trust: Tensor


def unfit(task: Task) -> str | None:
    """Say why a network cannot be taken apart, None where it can: a chain of layers that ends in a linear one with a bias."""
    if type(task.module) is not nn.Sequential:
        return f"{task.spec.model} is no plain chain of layers"
    modules = _modules(task)
    for name, m in modules:
        if type(m) not in (*WEIGHTS, *PASSIVE, *ACTIVE):
            return f"{name} is a {type(m).__name__}, and it undoes convolutions, linear layers, ReLU, LeakyReLU, sigmoid and tanh"
        if isinstance(m, nn.Conv2d) and (
            m.groups != 1 or m.padding_mode != "zeros" or isinstance(m.padding, str)
        ):
            return f"{name} is a convolution with groups or with padding other than zeros"
        if any(f"{name}.{n}" not in task.layout.names for n, _ in m.named_parameters()):
            return f"{name} is not trained, so there is no gradient of it"
    if any(isinstance(a, ACTIVE) and isinstance(b, ACTIVE) for (_, a), (_, b) in pairwise(modules)):
        return "one activation follows another"
    if not modules or not isinstance(modules[-1][1], nn.Linear) or modules[-1][1].bias is None:
        return "the last layer is not linear with a bias"
    for layer in layers(task, torch.zeros(task.layout.size, device=task.device)):
        if isinstance(layer.module, nn.Conv2d) and (n := math.prod(layer.shape[1:])) > PIXELS:
            return f"{layer.name} sees {n} pixels a channel, and at most {PIXELS} are taken"
    return None


def layers(task: Task, theta: Tensor) -> list[Layer]:
    """Return the chain at the model theta (d,)."""
    parts, x, out = task.layout.split(theta), theta.new_zeros(1, *task.spec.shape), []
    for name, module in _modules(task):
        own = {n: parts[f"{name}.{n}"] for n, _ in module.named_parameters()}
        out.append(Layer(name, module, own, tuple(x.shape[1:])))
        x = out[-1](x)
    return out


def run(chain: list[Layer], x: Tensor) -> Tensor:
    """Output of some layers in order."""
    for layer in chain:
        x = layer(x)
    return x


def units(task: Task) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation that the model's input is normalised with, in float64 and in the input's dimensions."""
    sides = [1] * (len(task.spec.shape) - 1)
    mean, std = (
        torch.tensor(v, dtype=torch.float64, device=task.device).reshape(-1, *sides)
        for v in (task.spec.mean, task.spec.std)
    )
    return mean, std


def before(
    chain: list[Layer], k: int, h: Tensor, slope: Tensor, error: float
) -> tuple[int, Output, Tensor]:
    """Go down from the input h of layer k, with the loss's slope in it, to the next layer with weights; -1 where there is none.

    Returns its place, what is known of its output (the input of the chain where there is none), and the loss's slope in it. error: of h,
    relative.
    """
    out = Output(h, torch.ones_like(h, dtype=torch.bool), torch.ones_like(h))
    while k and not isinstance(chain[k - 1].module, WEIGHTS):
        k, m = k - 1, chain[k - 1].module
        if isinstance(m, ACTIVE):
            out, rises = _undo(m, out.value, error)
            slope = slope * rises
        shape = chain[k].shape
        out, slope = (
            Output(out.value.reshape(shape), out.known.reshape(shape), out.trust.reshape(shape)),
            slope.reshape(shape),
        )
    return k - 1, out, slope


def _undo(m: nn.Module, h: Tensor, error: float) -> tuple[Output, Tensor]:
    """What an activation's output h says of its input, and the activation's slope there."""
    one = torch.ones_like(h)
    if isinstance(m, nn.ReLU):
        on = h > max(ZERO, 20 * error) * h.max()
        return Output(h * on, on, one), on.to(h)
    if isinstance(m, nn.LeakyReLU):
        rises = torch.where(h > 0, one, m.negative_slope * one)
        return Output(h / rises, one > 0, one), rises
    if isinstance(m, nn.Sigmoid):
        inside = h.clamp(INSIDE, 1 - INSIDE)
        rises = inside * (1 - inside)
        return Output(inside.logit(), one > 0, 4 * rises), rises
    inside = h.clamp(-1 + INSIDE, 1 - INSIDE)
    rises = 1 - inside.square()
    return Output(inside.atanh(), one > 0, rises), rises


def _modules(task: Task) -> list[tuple[str, nn.Module]]:
    """Modules in order, without their containers; one that is used twice comes twice."""
    named = task.module.named_modules(remove_duplicate=False)
    return [(n, m) for n, m in named if type(m) is not nn.Sequential]
