"""Zero-concentrated differential privacy: Renyi divergences of order alpha up to rho alpha.

Gaussian noise of standard deviation sigma on a sensitivity Delta has rho = Delta^2 / (2 sigma^2)
(Bun, Steinke 2016, Proposition 1.6).

>>> round(delta(4.728386985, rho=0.5), 9)
1e-05
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from leakaudit._util.bisection import crossing
from leakaudit.theory.bounds.guarantee import (
    Adjacency,
    Guarantee,
    at_least_zero,
    greatest_power,
    least_epsilon,
)

FINEST = 700.0  # searched range of |log(alpha - 1)|: beyond 709.8, exp overflows in float64


@dataclass(frozen=True)
class Zcdp(Guarantee):
    """rho-zCDP; several releases, chosen adaptively or not, add their rho.

    Source: Bun, Steinke 2016, Lemma 2.3.

    Attributes:
        rho: At least 0; may be inf.
        adjacency: The pairs of data sets that rho compares.
    """

    rho: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        at_least_zero("rho", self.rho)

    def delta(self, epsilon: float) -> float:
        """The best simple conversion (`delta`)."""
        return delta(epsilon, self.rho)

    def epsilon(self, delta: float) -> float:
        """Inverse of `delta`; inf at delta = 0 unless rho = 0."""
        if delta == 0 and self.rho:
            return math.inf
        return least_epsilon(self.delta, delta)

    def power(self, false_positives: float) -> float:
        """The smaller of the curve's bound and Hoelder's inequality at its best order.

        The latter is exp(-(sqrt(log 1/a) - sqrt(rho))^2).
        """
        a = false_positives
        curve = greatest_power(self.delta, a)
        if a == 0:
            return curve
        far = -math.log(a)
        if far <= self.rho:  # Hoelder's bound is 1
            return curve
        return min(curve, math.exp(-((math.sqrt(far) - math.sqrt(self.rho)) ** 2)))

    def plus(self, other: Zcdp) -> Zcdp:
        """Sum of the rho."""
        return Zcdp(self.rho + other.rho, self.adjacency)


def delta(epsilon: float, rho: float) -> float:
    """Return the delta that rho-zCDP implies.

    It is inf over alpha > 1 of e^{(alpha-1)(alpha rho - eps)} / (alpha-1) (1 - 1/alpha)^alpha.
    Source: Canonne, Kamath, Steinke 2020, Corollary 13. It is not the exact curve of Gaussian
    noise, which is lower.

    Args:
        epsilon: At least 0; may be inf.
        rho: At least 0; may be inf.
    """
    at_least_zero("epsilon", epsilon)
    at_least_zero("rho", rho)
    if rho == 0 or epsilon == math.inf:
        return 0.0 if rho < math.inf else 1.0
    if rho == math.inf:
        return 1.0

    def rising(log_b: float) -> bool:
        # With b = alpha - 1, the derivative of the logarithm by alpha is (2 alpha - 1) rho -
        # epsilon + log(1 - 1/alpha). It increases with alpha, so the function has one valley, whose
        # bottom is where the derivative becomes positive.
        b = math.exp(log_b)
        return (2 * b + 1) * rho - epsilon - math.log1p(1 / b) > 0

    # Every alpha gives a valid delta, so the side is free.
    log_b = crossing(rising, -FINEST, FINEST, side="below")
    b = math.exp(log_b)
    exponent = b * ((b + 1) * rho - epsilon) - log_b - (b + 1) * (math.log1p(b) - log_b)
    return math.exp(min(exponent, 0.0))
