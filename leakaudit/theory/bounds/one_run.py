"""Lower limits from one training run with many canaries.

For each of m canaries, an independent fair coin decided whether it was included. The auditor
guesses the coins of the r most certain ones, and v guesses are correct. Adjacency: one canary is
present or absent. Canaries of one node audit only that node, and coins that are not independent
invalidate every result.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import expit

from leakaudit._util.bisection import bracket, crossing
from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds.empirical import at_least
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import Adjacency, Guarantee, at_least_zero, probability

# Relative width of the bracket at which the search for a limit ends. A choice: each step evaluates
# the tails of up to `right` counts, and the counts themselves determine only the first few digits.
CLOSE = 1e-12


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return an upper bound on the probability of this many correct guesses.

    Under (epsilon, delta)-DP, it is P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i with
    B ~ Binomial(r, e^eps / (1 + e^eps)): a guess is correct with at most the probability of
    randomised response, and delta allows some guesses to be correct with certainty. Source:
    Steinke, Nasr, Jagielski 2023, Theorem 5.2.

    Args:
        canaries: m.
        guesses: r, at most m.
        right: v, at most r.
        epsilon: At least 0.
        delta: Between 0 and 1.
    """
    _check_counts(canaries, guesses, right)
    probability("delta", delta)
    chance = float(expit(at_least_zero("epsilon", epsilon)))
    tail = float(at_least(right, guesses, chance))
    if not right or not delta:
        return tail
    i = np.arange(1, right + 1)
    slope = float(((at_least(right - i, guesses, chance) - tail) / i).max())
    return min(1.0, tail + 2 * canaries * delta * max(0.0, slope))


def epsilon_lower(canaries: int, guesses: int, right: int, delta: float, alpha: float) -> float:
    """Return the largest epsilon that the counts refute at confidence 1 - alpha; 0 if none.

    Args:
        canaries: m.
        guesses: r, at most m.
        right: v, at most r.
        delta: Far below 1 / canaries, or nothing is refuted.
        alpha: Chance of a false alarm.
    """
    _check_alpha(alpha)
    return _largest(lambda e: p_value(canaries, guesses, right, e, delta) <= alpha)


def refutes(canaries: int, guesses: int, right: int, guarantee: Guarantee, alpha: float) -> bool:
    """Return whether the counts refute a guarantee by its trade-off curve, at level alpha.

    Suppose that `right` or more correct guesses have probability alpha under the guarantee. The
    curve f then limits how much more likely i correct guesses are than i - 1. From i = right
    downwards, shares of outcomes are followed; if they finally exceed the number of guesses per
    canary, no such mechanism exists. Source: Mahloujifar, Melis, Chaudhuri 2025, Algorithm 3 with k
    = 2, h_{i} = f-bar^{-1}(r_{i+1}).

    Args:
        canaries: m.
        guesses: r, at most m.
        right: v, at most r.
        guarantee: With the same curve in both directions.
        alpha: Chance of a false alarm.
    """
    _check_counts(canaries, guesses, right)
    _check_alpha(alpha)
    if not right:
        return False
    wrong_share = alpha * (guesses - right) / canaries
    right_share = alpha * right / canaries
    for i in range(right - 1, -1, -1):
        # h_i: the smallest share of wrong guesses that the curve allows together with this share of
        # correct ones.
        least = 1 - guarantee.power(1 - right_share)
        if least <= wrong_share:
            break
        right_share = min(1.0, right_share + (least - wrong_share) * i / (guesses - i))
        wrong_share = least
    return wrong_share + right_share > guesses / canaries


def mu_lower(canaries: int, guesses: int, right: int, alpha: float) -> float:
    """Return the largest mu whose mu-GDP the counts refute (`refutes`), or 0, rounded down.

    Args:
        canaries: m.
        guesses: r, at most m.
        right: v, at most r.
        alpha: Chance of a false alarm.
    """
    _check_counts(canaries, guesses, right)
    _check_alpha(alpha)

    def refuted(mu: float) -> bool:
        return refutes(canaries, guesses, right, Gdp(mu, Adjacency.ADD_REMOVE), alpha)

    return _largest(refuted)


def _largest(refuted: Callable[[float], bool]) -> float:
    """Return the largest value >= 0 that is refuted, as every smaller one is, rounded down."""
    if not refuted(0.0):
        return 0.0

    def allowed(value: float) -> bool:
        return not refuted(value)

    low, high = bracket(allowed)
    if high == math.inf:
        return math.inf
    return crossing(allowed, low, high, side="below", tolerance=CLOSE)


def _check_counts(canaries: int, guesses: int, right: int) -> None:
    if not 0 <= right <= guesses <= canaries:
        raise LeakauditError(
            f"expected right <= guesses <= canaries, got {right} of {guesses} of {canaries}"
        )


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise LeakauditError(f"expected 0 < alpha < 1, got {alpha}")
