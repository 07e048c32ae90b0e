"""ReLUs with a rounded kink, which a search sharpens as it goes.

The gradient of a ReLU network jumps where an input switches a unit, and slopes say nothing of jumps: a search that matches gradients ends
at the first wrong pattern of switches. Rounded units switch gradually, so that their slopes point at the pattern that fits.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import Tensor, nn

from leakaudit.errors import LeakauditError

SHARPER = 40  # first width over the last
LEAST = 1e-9  # width of the kink of a layer whose inputs are all zero


@dataclass
class Rounding:
    """Width of the kinks: a share of the root mean square of what goes into each activation.

    A search and the network that it looks at have one in common, and the search moves it.
    """

    first: float

    def __post_init__(self) -> None:
        """Begin at the first width; raises LeakauditError where it is below 0."""
        if self.first < 0:
            raise LeakauditError(f"rounding: expected a width of at least 0, got {self.first}")
        self.share = self.first

    def at(self, done: float) -> None:
        """Set the width for a part of the search that is done, 0 to 1: it falls by equal factors to a fortieth."""
        self.share = self.first * SHARPER**-done


class Rounded(nn.Module):
    """(z + sqrt(z^2 + e^2)) / 2 (squareplus, Barron 2021), which is ReLU for e = 0; e is a share of the root mean square of z."""

    def __init__(self, rounding: Rounding) -> None:
        """Take the share from `rounding` at each call."""
        super().__init__()
        self.rounding = rounding

    def forward(self, z: Tensor) -> Tensor:
        """Values, of the shape of z, which is of one network; the width is a constant in all derivatives."""
        return 0.5 * (z + (z * z + self._square(z.detach(), tuple(range(z.dim())))).sqrt())

    def bends(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Value, first and second derivative for z (n, ...) of n networks, each with a width of its own."""
        square = self._square(z, tuple(range(1, z.dim())))
        w = (z * z + square).sqrt()
        ratio = z / w
        return 0.5 * (z + w), 0.5 * (1 + ratio), 0.5 * (1 - ratio * ratio) / w

    def _square(self, z: Tensor, dims: tuple[int, ...]) -> Tensor:
        return (z.square().mean(dims, keepdim=True) * self.rounding.share**2).clamp_min(LEAST**2)


def rounded(module: nn.Module, rounding: Rounding) -> nn.Module:
    """Copy a module with every ReLU rounded; the module itself where it has none."""
    if not any(type(m) is nn.ReLU for m in module.modules()):
        return module
    found = copy.deepcopy(module)
    for parent in [m for m in found.modules() if not isinstance(m, nn.ReLU)]:
        for name, child in list(parent.named_children()):
            if type(child) is nn.ReLU:
                setattr(parent, name, Rounded(rounding))
    return found
