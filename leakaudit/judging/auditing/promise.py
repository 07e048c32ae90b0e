"""The guarantee under test."""

from __future__ import annotations

import math
from dataclasses import dataclass

from leakaudit.theory.bounds.approximate import approximate
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import Adjacency, Guarantee


@dataclass(frozen=True)
class Promise:
    """The guarantee under test."""

    name: str
    epsilon: float
    delta: float  # delta of (epsilon, delta) privacy
    # parameter of Gaussian differential privacy, if the noise is Gaussian; the whole curve is then
    # known. None if only (epsilon, delta) is known.
    mu: float | None = None

    @property
    def guarantee(self) -> Guarantee:
        """The curve, for replaced records."""
        if self.mu is not None:
            return Gdp(self.mu, Adjacency.REPLACE)
        return approximate(self.epsilon, self.delta, Adjacency.REPLACE)

    @property
    def empty(self) -> bool:
        """Whether it allows everything."""
        return self.epsilon == math.inf or self.delta >= 1
