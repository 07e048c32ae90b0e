"""Membership: how much better than a coin anyone can tell whether a record was there.

A fair and independent coin decided whether it was. The advantage is the largest true minus false
positive rate, which is the total variation distance of the two worlds.
"""

from __future__ import annotations

import math

from leakaudit.theory.bounds.guarantee import GRID, Guarantee, at_least_zero

FARTHEST = 40.0  # epsilon; beyond it, the first term, tanh(eps / 2), is 1 up to rounding


def advantage(guarantee: Guarantee) -> float:
    """Return the largest advantage under the guarantee's adjacency.

    It is min over epsilon of (e^eps - 1 + 2 delta(eps)) / (e^eps + 1). mu-GDP: 2 Phi(mu/2) - 1,
    reached at epsilon = 0. One (eps, delta): the fraction itself (Humphries et al. 2023; Kairouz,
    Oh, Viswanath 2015, section 2). Every epsilon gives a valid bound, so a grid of them does.

    Args:
        guarantee: Of all releases.
    """

    def bound(epsilon: float) -> float:
        # (e^eps - 1) / (e^eps + 1) = tanh(eps / 2), without overflow
        return math.tanh(epsilon / 2) + guarantee.delta(epsilon) * 2 / (1 + math.exp(epsilon))

    tried = [FARTHEST * (k / GRID) ** 2 for k in range(GRID + 1)]
    return min(1.0, *map(bound, tried))


def yeom(epsilon: float) -> float:
    """Return min(1, e^eps - 1) for pure DP, a loose bound (Yeom et al. 2018, Theorem 1).

    Args:
        epsilon: At least 0.
    """
    at_least_zero("epsilon", epsilon)
    return min(1.0, math.expm1(min(epsilon, 1.0)))
