"""ReLUs with a rounded kink that a search sharpens gradually."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import Tensor, nn

from leakaudit.core.errors import LeakauditError

# The gradient of a ReLU network jumps when an input switches a unit, and its slopes do not indicate
# the direction of these jumps: a search that matches gradients stops at the first wrong pattern of
# switches. Rounded units switch gradually, so their slopes point towards the pattern that fits.

SHARPER = (
    40  # ratio of the first width to the last, a choice: docs/iterative.md was measured with it
)
LEAST = (
    1e-9  # width of the kink in a layer whose inputs are all zero: any positive number avoids 0/0
)


@dataclass
class Rounding:
    """Width of the kinks, as a fraction of the root mean square of each activation's inputs.

    A search and the network that it evaluates share one instance, and the search changes it.
    """

    first: float  # the first width; `share` holds the current one

    def __post_init__(self) -> None:
        if self.first < 0:
            raise LeakauditError(f"rounding: expected a width of at least 0, got {self.first}")
        self.share = self.first

    def at(self, done: float) -> None:
        """Set the width after a fraction of the search; it falls geometrically to a fortieth."""
        self.share = self.first * SHARPER**-done


class SmoothedReLU(nn.Module):
    """The activation (z + sqrt(z^2 + e^2)) / 2 (squareplus, Barron 2021), which is ReLU for e = 0.

    The width e is a fraction of the root mean square of z. Derivatives treat it as constant.
    """

    def __init__(self, rounding: Rounding) -> None:
        super().__init__()
        self.rounding = rounding

    def forward(self, z: Tensor) -> Tensor:
        """Apply the activation to the inputs of one network."""
        square = self._square(z.detach(), tuple(range(z.dim())))
        return 0.5 * (z + (z * z + square).sqrt())

    def bends(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return value, first and second derivative for n networks, each of its own width."""
        square = self._square(z, tuple(range(1, z.dim())))
        w = (z * z + square).sqrt()
        ratio = z / w
        return 0.5 * (z + w), 0.5 * (1 + ratio), 0.5 * (1 - ratio * ratio) / w

    def _square(self, z: Tensor, dims: tuple[int, ...]) -> Tensor:
        """Return e^2, with the mean over some dimensions."""
        return (z.square().mean(dims, keepdim=True) * self.rounding.share**2).clamp_min(LEAST**2)


def rounded(module: nn.Module, rounding: Rounding) -> nn.Module:
    """Copy a module with every ReLU rounded."""
    if not any(type(m) is nn.ReLU for m in module.modules()):
        return module
    found = copy.deepcopy(module)
    parents = [m for m in found.modules() if not isinstance(m, nn.ReLU)]
    for parent in parents:
        for name, child in list(parent.named_children()):
            if type(child) is nn.ReLU:
                setattr(parent, name, SmoothedReLU(rounding))
    return found
