"""Membership: how much better than a coin anyone can tell whether a record was there, which a fair and independent coin decided.

The advantage is the largest true minus false positive rate, the total variation distance of the two worlds.
"""

from __future__ import annotations

import math

from leakaudit.bounds.guarantee import GRID, Guarantee, at_least_zero


def advantage(guarantee: Guarantee) -> float:
    """Return the largest advantage under the guarantee's adjacency: min over epsilon of (e^eps - 1 + 2 delta(eps)) / (e^eps + 1).

    mu-GDP: 2 Phi(mu/2) - 1, reached at epsilon = 0. One (eps, delta): the fraction itself (Humphries et al. 2023; Kairouz,
    Oh, Viswanath 2015, section 2). Every epsilon gives a valid bound, so a grid of them does.
    """
    tried = [40.0 * (k / GRID) ** 2 for k in range(GRID + 1)]
    return min(1.0, *(math.tanh(e / 2) + guarantee.delta(e) * 2 / (1 + math.exp(e)) for e in tried))


def yeom(epsilon: float) -> float:
    """Return min(1, e^eps - 1) for pure DP, loose (Yeom et al. 2018, Theorem 1)."""
    at_least_zero("epsilon", epsilon)
    return min(1.0, math.expm1(min(epsilon, 1.0)))
