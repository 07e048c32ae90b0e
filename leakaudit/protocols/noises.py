"""The noise mechanisms of DP-dKM, calibrated as printed in its paper, and their sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Generator, Tensor

from leakaudit._util.bisection import crossing
from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds.mechanisms import Additive, truncated_laplace
from leakaudit.theory.relations.expression import Expression, Law

if TYPE_CHECKING:
    from leakaudit.theory.relations import Relations

Mechanism: TypeAlias = Literal[
    "none", "laplace", "gaussian", "truncated_laplace", "truncated_gaussian"
]
ZERO = 26.0  # from here on erfc(u) is below 1e-295, so every accepted delta lies below this u


@dataclass(frozen=True)
class Noise(Additive):
    """The noise of a release."""

    @property
    def law(self) -> Law:
        """The name of this noise in a declaration."""
        if self.power == 1:
            return "truncated_laplace" if math.isfinite(self.width) else "laplace"
        return "truncated_gaussian" if math.isfinite(self.width) else "gaussian"

    def declared(self, p: Relations, name: str, owner: int) -> Expression:
        """Declare one draw."""
        return p.noise(name, self.std, owner, law=self.law, width=self.width)

    def draw(self, like: Tensor, generator: Generator) -> Tensor:
        """Draw noise; truncated kinds use the inverse distribution function, in float64."""
        if self.law == "gaussian":
            drawn = torch.randn(like.shape, generator=generator, dtype=like.dtype)
            return drawn.mul_(self.std).to(like.device)
        sides = torch.rand(like.shape, generator=generator, dtype=torch.float64).mul_(2).sub_(1)
        u = self.width / self.scale
        if self.power == 2:
            return torch.erfinv(sides * math.erf(u)).mul_(self.scale).to(like)
        size = torch.log1p(sides.abs() * math.expm1(-u))  # negative absolute value over the scale
        return size.mul_(sides.sign()).mul_(-self.scale).to(like)


def calibrated(
    mechanism: Mechanism, epsilon: float, delta: float, sensitivity: float
) -> Noise | None:
    """Return the noise that the paper adds to one release.

    ``laplace`` has the scale Delta / epsilon. ``gaussian`` has the variance
    2 log(1.25 / delta) Delta^2 / epsilon^2. ``truncated_laplace`` (Definition 6) has the scale of
    laplace on A = Delta / epsilon log(1 + (e^epsilon - 1) / (2 delta)). ``truncated_gaussian``
    has the density exp(-(z / sigma)^2) with sigma^2 = Delta^2 / epsilon, and A from the two
    equations of Theorem 6: the mass of [A - Delta, A] is delta.

    Args:
        delta: Delta of the guarantee, between 0 and 1/2; laplace does not use it.

    Returns:
        The noise; None for ``none``.
    """
    if mechanism == "none":
        return None
    if mechanism == "gaussian":
        return Noise(2, 2 * math.sqrt(math.log(1.25 / delta)) * sensitivity / epsilon)
    if mechanism == "truncated_gaussian":
        sigma = sensitivity / math.sqrt(epsilon)
        return Noise(2, sigma, sigma * _edge(math.sqrt(epsilon), delta))
    if mechanism == "truncated_laplace":
        cut = truncated_laplace(epsilon, delta, sensitivity)
        return Noise(1, cut.scale, cut.width)
    return Noise(1, sensitivity / epsilon)


def _edge(shift: float, delta: float) -> float:
    """Return u = A / sigma with (erf(u) - erf(u - shift)) / (2 erf(u)) = delta, by bisection."""

    def mass(u: float) -> float:
        return (math.erfc(u - shift) - math.erfc(u)) / (2 * math.erf(u))

    low = shift / 2
    high = shift + ZERO
    if not mass(high) < delta < mass(low):
        raise LeakauditError(
            f"truncated_gaussian: Theorem 6 has no A for delta {delta:g}; "
            "use a delta between 1e-290 and 0.5"
        )
    return crossing(lambda u: mass(u) <= delta, low, high, side="above")
