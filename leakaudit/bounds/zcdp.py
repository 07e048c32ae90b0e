"""Zero-concentrated differential privacy: all Renyi divergences of order alpha are at most rho alpha.

Gaussian noise of standard deviation sigma on a sensitivity Delta has rho = Delta^2 / (2 sigma^2) (Bun, Steinke 2016, Proposition 1.6).

>>> round(delta(4.728386985, rho=0.5), 9), round(loose_epsilon(1e-5, rho=0.5), 9)
(1e-05, 5.298525912)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from leakaudit._util.bisection import crossing
from leakaudit.bounds.guarantee import (
    Adjacency,
    Guarantee,
    at_least_zero,
    greatest_power,
    least_epsilon,
    probability,
)

FINEST = 700.0  # |log(alpha - 1)| up to which floats reach


@dataclass(frozen=True)
class Zcdp(Guarantee):
    """rho-zCDP; several releases, chosen adaptively or not, add their rho (Bun, Steinke 2016, Lemma 2.3)."""

    rho: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        at_least_zero("rho", self.rho)

    def delta(self, epsilon: float) -> float:
        """The best simple conversion (`delta`)."""
        return delta(epsilon, self.rho)

    def epsilon(self, delta: float) -> float:
        """Inverse of `delta`; inf at delta = 0 unless rho = 0."""
        return least_epsilon(self.delta, delta) if delta or not self.rho else math.inf

    def power(self, false_positives: float) -> float:
        """The smaller of the curve's bound and exp(-(sqrt(log 1/a) - sqrt(rho))^2), Hoelder's inequality at its best order."""
        a = false_positives
        curve = greatest_power(self.delta, a)
        if a == 0 or (far := -math.log(a)) <= self.rho:
            return curve
        return min(curve, math.exp(-((math.sqrt(far) - math.sqrt(self.rho)) ** 2)))

    def plus(self, other: Zcdp) -> Zcdp:
        """Sum of the rho."""
        return Zcdp(self.rho + other.rho, self.adjacency)


def delta(epsilon: float, rho: float) -> float:
    """Return inf over alpha > 1 of e^{(alpha-1)(alpha rho - eps)} / (alpha-1) (1 - 1/alpha)^alpha, which rho-zCDP implies.

    Source: Canonne, Kamath, Steinke 2020, Corollary 13. It is not the exact curve of Gaussian noise, which is lower.
    """
    at_least_zero("epsilon", epsilon)
    at_least_zero("rho", rho)
    if rho == 0 or epsilon == math.inf:
        return 0.0 if rho < math.inf else 1.0
    if rho == math.inf:
        return 1.0

    def rises(log_b: float) -> bool:
        # the derivative by alpha rises: (2 alpha - 1) rho - eps + log(1 - 1/alpha), b = alpha - 1
        b = math.exp(log_b)
        return (2 * b + 1) * rho - epsilon - math.log1p(1 / b) > 0

    low = crossing(rises, -FINEST, FINEST, side="below")
    b = math.exp(low)
    exponent = b * ((b + 1) * rho - epsilon) - low - (b + 1) * (math.log1p(b) - low)
    return math.exp(min(exponent, 0.0))


def loose_epsilon(delta: float, rho: float) -> float:
    """Return rho + 2 sqrt(rho log(1 / delta)), the conversion that papers print (Bun, Steinke 2016, Proposition 1.3)."""
    probability("delta", delta)
    at_least_zero("rho", rho)
    return (
        rho + 2 * math.sqrt(rho * -math.log(delta)) if delta and rho else (math.inf if rho else 0.0)
    )
