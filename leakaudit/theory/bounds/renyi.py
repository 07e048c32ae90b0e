"""Renyi differential privacy on a grid of orders (Mironov 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds.guarantee import (
    Adjacency,
    Guarantee,
    at_least_zero,
    greatest_power,
    least_epsilon,
    probability,
)

# The default orders of dp-accounting, without 1024: tenths up to 10.9, integers up to 63, and three
# large ones.
ORDERS = (*(1 + k / 10 for k in range(1, 100)), *map(float, range(11, 64)), 128.0, 256.0, 512.0)


@dataclass(frozen=True)
class Rdp(Guarantee):
    """Renyi divergences at several orders.

    Adaptive releases add them (Mironov 2017, Proposition 1).

    Attributes:
        values: (n,) Upper bounds on the Renyi divergence; may be inf.
        adjacency: The pairs of data sets that the divergences compare.
        orders: (n,) Their orders, above 1.
    """

    values: tuple[float, ...]
    adjacency: Adjacency
    orders: tuple[float, ...] = ORDERS

    def __post_init__(self) -> None:
        if len(self.values) != len(self.orders) or not self.orders:
            raise LeakauditError(
                f"expected one value for each of {len(self.orders)} orders, got {len(self.values)}"
            )
        if not min(self.orders) > 1:
            raise LeakauditError(f"expected Renyi orders above 1, got {min(self.orders)}")
        for value in self.values:
            at_least_zero("a Renyi divergence", value)

    def delta(self, epsilon: float) -> float:
        """The conversion of Canonne, Kamath, Steinke 2020, Proposition 12, at the best order."""
        at_least_zero("epsilon", epsilon)
        if epsilon == math.inf:
            return 0.0 if min(self.values) < math.inf else 1.0
        a, r = self._arrays  # e^{(a-1)(r - eps)} (1 - 1/a)^{a-1} / a
        logarithms = (a - 1) * (r - epsilon + np.log1p(-1 / a)) - np.log(a)
        return math.exp(min(float(logarithms.min()), 0.0))

    def epsilon(self, delta: float) -> float:
        """Inverse of `delta`; inf at delta = 0 unless an order has divergence 0."""
        if delta == 0 and min(self.values):
            return math.inf
        return least_epsilon(self.delta, delta)

    def power(self, false_positives: float) -> float:
        """The smaller of the curve's bound and (x e^r)^{(a-1)/a} at the best order.

        Source of the latter: Balle, Cherubin, Hayes 2022, reconstruction by RDP.
        """
        if probability("the false positive rate", false_positives) == 0:
            return 0.0 if min(self.values) < math.inf else 1.0
        a, r = self._arrays
        logarithms = (1 - 1 / a) * (r + math.log(false_positives))
        best = math.exp(min(float(logarithms.min()), 0.0))
        return min(greatest_power(self.delta, false_positives), best)

    def plus(self, other: Rdp) -> Rdp:
        """Sum of the values, order by order."""
        if self.orders != other.orders:
            raise LeakauditError(
                "expected the same Renyi orders in both guarantees; give them the same `orders`"
            )
        total = tuple(a + b for a, b in zip(self.values, other.values, strict=True))
        return Rdp(total, self.adjacency, self.orders)

    @cached_property
    def _arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The orders (n,) and their values (n,)."""
        return np.array(self.orders), np.array(self.values)


def randomised_response(epsilon: float, order: float) -> float:
    """Return the divergence of randomised response, which no epsilon-DP mechanism exceeds.

    Source: Mironov 2017, Proposition 5. log(p^a (1-p)^{1-a} + (1-p)^a p^{1-a}) / (a - 1) with p =
    e^eps / (1 + e^eps).

    Args:
        epsilon: At least 0.
        order: a, above 1.
    """
    at_least_zero("epsilon", epsilon)
    p = float(expit(epsilon))
    q = float(expit(-epsilon))
    if q == 0:  # e^-epsilon underflows, and the divergence is epsilon to rounding
        return epsilon
    both = [
        order * math.log(p) + (1 - order) * math.log(q),
        order * math.log(q) + (1 - order) * math.log(p),
    ]
    return max(0.0, float(logsumexp(both)) / (order - 1))
