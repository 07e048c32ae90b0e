"""How much of the truth's gradients the messages contain: a coefficient with its standard error.

A message minus the gradients of the truth is noise. If the messages contain c times these gradients
instead, the rest contains c - 1 times them. Regressing the rest on the gradients gives c - 1.
Because the noise is scaled to variance 1, the standard error of the regression is known without
estimating the noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from leakaudit.views.conformance.substitute import CLOSE, Floats, NormalisedNoise


@dataclass
class Fit:
    """How the noise of a node, or of all nodes, correlates with the gradients."""

    along: float = 0.0  # sum of <rest, signal>, whose variance is `power` if the rest is noise
    power: float = 0.0  # sum of |signal|^2
    beyond: float = 0.0  # sum of <rest, better>, whose variance is `margin` if the rest is noise
    margin: float = 0.0  # sum of |better|^2

    def add(self, one: NormalisedNoise) -> None:
        """Add the noise of a node in one recording."""
        self.regress(one.rest, one.signal)
        self.beyond += float((one.rest * one.better).sum())
        self.margin += float((one.better**2).sum())

    def regress(self, rest: Floats, signal: Floats) -> None:
        """Add a remainder (k, c) and what may be in it (k, c), without a guess."""
        self.along += float((rest * signal).sum())
        self.power += float((signal**2).sum())

    @classmethod
    def total(cls, some: Iterable[Fit]) -> Fit:
        """Return the sum of several fits."""
        found = cls()
        for one in some:
            found.along += one.along
            found.power += one.power
            found.beyond += one.beyond
            found.margin += one.margin
        return found

    @property
    def shift(self) -> float:
        """By how much the coefficient of the gradients differs from 1."""
        return self.along / self.power if self.power > 0 else 0.0

    @property
    def error(self) -> float:
        """Standard error of the coefficient, 0 without noise."""
        return 1 / math.sqrt(self.power) if self.power > 0 else 0.0

    @property
    def chance(self) -> float:
        """Probability that pure noise shifts the coefficient as far; 1 for shifts up to `CLOSE`."""
        if not abs(self.shift) > CLOSE:
            return 1.0
        return math.erfc(abs(self.shift) / self.error / math.sqrt(2))

    @property
    def chance_above(self) -> float:
        """Probability that pure noise shifts the coefficient as far upwards."""
        return self.chance / 2 if self.shift > 0 else 1.0
