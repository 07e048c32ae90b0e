"""The noise mechanisms of DP-dKM, calibrated as its paper prints them, and drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Generator, Tensor

from leakaudit._util.bisection import crossing
from leakaudit.errors import LeakauditError
from leakaudit.relations.expression import Law

Mechanism: TypeAlias = Literal[
    "none", "laplace", "gaussian", "truncated_laplace", "truncated_gaussian"
]
SQRT_PI = math.sqrt(math.pi)


@dataclass(frozen=True)
class Noise:
    """Independent noise of mean 0 on every coordinate, with density C exp(-|z / scale|^power) on [-width, width]."""

    power: Literal[1, 2]
    scale: float
    width: float = math.inf

    @property
    def law(self) -> Law:
        """What a declaration calls it."""
        if self.power == 1:
            return "truncated_laplace" if math.isfinite(self.width) else "laplace"
        return "truncated_gaussian" if math.isfinite(self.width) else "gaussian"

    @property
    def std(self) -> float:
        """Standard deviation of a coordinate."""
        s, u = self.scale, self.width / self.scale
        if math.isinf(u):
            return s * math.sqrt(2 / self.power**2)
        if self.power == 1:
            return s * math.sqrt(2 - (u * u + 2 * u) / math.expm1(u))
        return s * math.sqrt(0.5 - u * math.exp(-u * u) / (SQRT_PI * math.erf(u)))

    def draw(self, like: Tensor, generator: Generator) -> Tensor:
        """Return noise of the shape, dtype and device of `like`; the inverse of the distribution function is taken in float64."""
        if self.law == "gaussian":
            return (
                torch.randn(like.shape, generator=generator, dtype=like.dtype)
                .mul_(self.std)
                .to(like.device)
            )
        sides = torch.rand(like.shape, generator=generator, dtype=torch.float64).mul_(2).sub_(1)
        u = self.width / self.scale
        if self.power == 2:
            return torch.erfinv(sides * math.erf(u)).mul_(self.scale).to(like)
        return (
            torch.log1p(sides.abs() * math.expm1(-u)).mul_(sides.sign()).mul_(-self.scale).to(like)
        )


def calibrated(
    mechanism: Mechanism, epsilon: float, delta: float, sensitivity: float
) -> Noise | None:
    """Return the noise that the paper gives one release of this sensitivity Delta; None for ``none``.

    laplace: scale Delta / epsilon. gaussian: variance 2 log(1.25 / delta) Delta^2 / epsilon^2. truncated_laplace: the same scale as
    laplace on A = Delta / epsilon log(1 + (e^epsilon - 1) / (2 delta)) (Definition 6). truncated_gaussian: exp(-(z / sigma)^2) with
    sigma^2 = Delta^2 / epsilon, and A from the two equations of Theorem 6: the mass of [A - Delta, A] is delta.
    Raises LeakauditError where Theorem 6 has no A.
    """
    if mechanism == "none":
        return None
    if mechanism == "gaussian":
        return Noise(2, 2 * math.sqrt(math.log(1.25 / delta)) * sensitivity / epsilon)
    if mechanism == "truncated_gaussian":
        sigma = sensitivity / math.sqrt(epsilon)
        return Noise(2, sigma, sigma * _edge(math.sqrt(epsilon), delta))
    scale = sensitivity / epsilon
    cut = scale * math.log1p(math.expm1(epsilon) / (2 * delta))
    return Noise(1, scale, cut if mechanism == "truncated_laplace" else math.inf)


def _edge(shift: float, delta: float) -> float:
    """Return u = A / sigma with (erf(u) - erf(u - shift)) / (2 erf(u)) = delta, by bisection."""

    def mass(u: float) -> float:
        return (math.erfc(u - shift) - math.erfc(u)) / (2 * math.erf(u))

    low, high = shift / 2, shift + 26.0  # erfc is zero beyond 27
    if not mass(high) < delta < mass(low):
        raise LeakauditError(
            f"truncated_gaussian: Theorem 6 has no A for delta {delta:g}; use a delta between 1e-290 and 0.5"
        )
    return crossing(lambda u: mass(u) <= delta, low, high, side="above")
