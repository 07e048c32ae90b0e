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
    # the whole curve, if it is known; otherwise only (epsilon, delta) is
    curve: Guarantee | None = None

    @property
    def mu(self) -> float | None:
        """Parameter of Gaussian differential privacy, if the curve is that of Gaussian noise."""
        return self.curve.mu if isinstance(self.curve, Gdp) else None

    @property
    def guarantee(self) -> Guarantee:
        """The curve, for replaced records."""
        if self.curve is not None:
            return self.curve
        return approximate(self.epsilon, self.delta, Adjacency.REPLACE)

    @property
    def empty(self) -> bool:
        """Whether it allows everything."""
        return self.epsilon == math.inf or self.delta >= 1
