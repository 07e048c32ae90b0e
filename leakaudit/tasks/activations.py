"""Closed formulas of each activation: its derivatives and its inverse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leakaudit.tasks.smoothed_relu import SmoothedReLU

# The table has three uses. Gradients of fully connected stacks need the slope as a function of the
# output, which they store anyway; gradients that are differentiated again need both derivatives as
# functions of the input; inverting a network layer by layer needs the inverse. An activation may
# lack some of the three.

# Outputs of ReLU below this fraction of the largest one count as zero. The inverse is applied to
# values solved in float64: this is nine orders of magnitude above their rounding. A choice.
ZERO = 1e-7
# The same fraction in multiples of the values' own relative error, if that is larger. A choice.
ZERO_ERRORS = 20
# Minimum distance of an output of sigmoid or tanh from its limits, so the inverse stays finite:
# at most 28 for sigmoid and 14 for tanh. A choice.
INSIDE = 1e-12

Bends = tuple[Tensor, Tensor | None, Tensor | None]


@dataclass(frozen=True, eq=False)
class Inverse:
    """The information in the output of one or several activations about its input z."""

    value: Tensor  # estimate of z
    known: Tensor  # whether z has this value, bool; otherwise z is at most 0
    trust: Tensor  # weight of an error of the output in z, at most 1
    slope: Tensor  # s'(z), or the slope of the loss in z

    def reshape(self, shape: tuple[int, ...]) -> Inverse:
        """Return all in another shape."""
        parts = (self.value, self.known, self.trust, self.slope)
        return Inverse(*(part.reshape(shape) for part in parts))


@dataclass(frozen=True)
class _Activation:
    """Elementwise formulas of one activation a = s(z); None for an unknown one."""

    slope: Callable[[Tensor], Tensor] | None = None  # maps a to s'(z)
    # maps the module and z to s(z), s'(z) and s''(z); None in place of a second derivative of zero
    bends: Callable[[Any, Tensor], Bends] | None = None
    # maps the module, a and the relative error of a to its `Inverse`
    undo: Callable[[Any, Tensor, float], Inverse] | None = None


def _relu_slope(a: Tensor) -> Tensor:
    return a > 0


def _relu_bends(_: nn.Module, z: Tensor) -> Bends:
    return z.relu(), (z > 0).to(z), None


def _relu_undo(_: nn.Module, a: Tensor, error: float) -> Inverse:
    on = a > max(ZERO, ZERO_ERRORS * error) * a.max()
    return Inverse(a * on, on, torch.ones_like(a), on.to(a))


def _leaky_undo(module: nn.LeakyReLU, a: Tensor, error: float) -> Inverse:
    one = torch.ones_like(a)
    slope = torch.where(a > 0, one, module.negative_slope * one)
    return Inverse(a / slope, one > 0, one, slope)


def _sigmoid_slope(a: Tensor) -> Tensor:
    return a * (1 - a)


def _sigmoid_bends(_: nn.Module, z: Tensor) -> Bends:
    a = z.sigmoid()
    slope = a * (1 - a)
    return a, slope, slope * (1 - 2 * a)


def _sigmoid_undo(_: nn.Module, a: Tensor, error: float) -> Inverse:
    inside = a.clamp(INSIDE, 1 - INSIDE)
    slope = inside * (1 - inside)
    # The slope is at most 1/4, so four times the slope is a weight of at most 1.
    return Inverse(inside.logit(), torch.ones_like(a) > 0, 4 * slope, slope)


def _tanh_slope(a: Tensor) -> Tensor:
    return 1 - a * a


def _tanh_bends(_: nn.Module, z: Tensor) -> Bends:
    a = z.tanh()
    slope = 1 - a * a
    return a, slope, -2 * a * slope


def _tanh_undo(_: nn.Module, a: Tensor, error: float) -> Inverse:
    inside = a.clamp(-1 + INSIDE, 1 - INSIDE)
    slope = 1 - inside.square()
    return Inverse(inside.atanh(), torch.ones_like(a) > 0, slope, slope)


def _rounded_bends(module: SmoothedReLU, z: Tensor) -> Bends:
    return module.bends(z)


ACTIVATIONS: dict[type[nn.Module], _Activation] = {
    nn.ReLU: _Activation(_relu_slope, _relu_bends, _relu_undo),
    nn.LeakyReLU: _Activation(undo=_leaky_undo),
    nn.Sigmoid: _Activation(_sigmoid_slope, _sigmoid_bends, _sigmoid_undo),
    nn.Tanh: _Activation(_tanh_slope, _tanh_bends, _tanh_undo),
    SmoothedReLU: _Activation(bends=_rounded_bends),
}
