"""Lower limits from one training run with many canaries, each put in by its own independent fair coin.

m canaries, of which the auditor guesses r (the surest) and gets v right; adjacency: one canary is there or not. Canaries held by one
node audit that node alone, and coins that are not independent void everything here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import expit
from scipy.stats import binom

from leakaudit._util.bisection import bracket, crossing
from leakaudit.bounds.gaussian import Gdp
from leakaudit.bounds.guarantee import Adjacency, Guarantee, at_least_zero, probability
from leakaudit.errors import LeakauditError

CLOSE = 1e-12  # relative width of a bracket: a p-value costs a pass over all counts, and papers print three digits


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return the chance of `right` or more right guesses under (epsilon, delta)-DP, at most.

    P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i with B ~ Binomial(r, e^eps / (1 + e^eps)).
    Source: Steinke, Nasr, Jagielski 2023, Theorem 5.2.
    """
    _counts(canaries, guesses, right)
    probability("delta", delta)
    chance = float(expit(at_least_zero("epsilon", epsilon)))
    tail = float(binom.sf(right - 1, guesses, chance))
    if not right or not delta:
        return tail
    i = np.arange(1, right + 1)
    slope = float(((binom.sf(right - i - 1, guesses, chance) - tail) / i).max())
    return min(1.0, tail + 2 * canaries * delta * max(0.0, slope))


def epsilon_lower(canaries: int, guesses: int, right: int, delta: float, alpha: float) -> float:
    """Return the largest epsilon that the counts refute at confidence 1 - alpha, 0 where none; needs delta far below 1 / canaries."""
    _alpha(alpha)
    return _largest(lambda e: p_value(canaries, guesses, right, e, delta) <= alpha)


def refutes(canaries: int, guesses: int, right: int, guarantee: Guarantee, alpha: float) -> bool:
    """Whether the counts refute a guarantee as a whole, by its trade-off curve, at confidence 1 - alpha.

    Under the guarantee, the share of outcomes with exactly i right guesses limits that with i - 1: the algorithm starts at the
    boundary alpha and walks down; counts that the shares cannot reach contradict it. Needs a curve that is the same in both
    directions. Source: Mahloujifar, Melis, Chaudhuri 2025, Algorithm 3 with k = 2, h_{i} = f-bar^{-1}(r_{i+1}).
    """
    _counts(canaries, guesses, right)
    _alpha(alpha)
    if not right:
        return False
    wrong_share, right_share = alpha * (guesses - right) / canaries, alpha * right / canaries
    for i in range(right - 1, -1, -1):
        least = 1 - guarantee.power(1 - right_share)
        if least <= wrong_share:
            break
        right_share = min(1.0, right_share + (least - wrong_share) * i / (guesses - i))
        wrong_share = least
    return wrong_share + right_share > guesses / canaries


def mu_lower(canaries: int, guesses: int, right: int, alpha: float) -> float:
    """Return the largest mu whose mu-GDP the counts refute, 0 where none: evidence against Gaussian claims (`refutes`)."""
    _counts(canaries, guesses, right)
    _alpha(alpha)
    return _largest(
        lambda mu: refutes(canaries, guesses, right, Gdp(mu, Adjacency.ADD_REMOVE), alpha)
    )


def _largest(refuted: Callable[[float], bool]) -> float:
    """Return the largest value >= 0 that is refuted, rounded down; what is refuted stays so below."""
    if not refuted(0.0):
        return 0.0

    def allowed(value: float) -> bool:
        return not refuted(value)

    low, high = bracket(allowed)
    if high == math.inf:
        return math.inf
    return crossing(allowed, low, high, side="below", tolerance=CLOSE)


def _counts(canaries: int, guesses: int, right: int) -> None:
    if not 0 <= right <= guesses <= canaries:
        raise LeakauditError(
            f"expected right <= guesses <= canaries, got {right} of {guesses} of {canaries}"
        )


def _alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise LeakauditError(f"expected 0 < alpha < 1, got {alpha}")
