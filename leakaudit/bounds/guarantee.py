"""The shape of every guarantee: a privacy curve delta(epsilon) under one adjacency, and the largest power of any test that it allows.

A curve here bounds both directions, D against D' and D' against D, so it also says at a negative epsilon
delta(-e) = 1 - e^{-e} (1 - delta(e)) (Kairouz, Oh, Viswanath 2015, section 2). All logarithms are natural.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Self

from leakaudit._util.bisection import bracket, crossing
from leakaudit.errors import LeakauditError

GRID, FAR = 48, 60.0  # epsilons that are tried for a power; beyond e^-60 nothing is said


class Adjacency(StrEnum):
    """What two neighbouring data sets differ in."""

    ADD_REMOVE = "one record is added or removed"
    ZERO_OUT = "one record is replaced by an empty one"
    REPLACE = "one record is replaced by any other"
    NODE = "all records of one node are replaced"


class Guarantee(ABC):
    """What some releases together promise; `leakaudit.bounds.composition` composes guarantees and is the only place that does."""

    adjacency: Adjacency

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """Return a delta for which (epsilon, delta)-DP holds; epsilon may be inf."""

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """Return the least epsilon >= 0 for which this guarantee gives (epsilon, delta)-DP, inf where there is none."""

    @abstractmethod
    def power(self, false_positives: float) -> float:
        """Return an upper bound on the true positive rate of every test, 1 - f(alpha) of its trade-off curve f."""

    @abstractmethod
    def plus(self, other: Self) -> Self:
        """Return the guarantee of both releases, of the same kind and adjacency, the second chosen adaptively."""


def least_epsilon(curve: Callable[[float], float], delta: float) -> float:
    """Return the least epsilon >= 0 with curve(epsilon) <= delta, rounded up, for a curve that falls; inf where there is none."""
    probability("delta", delta)
    if curve(0.0) <= delta:
        return 0.0
    if curve(math.inf) > delta:
        return math.inf

    def enough(epsilon: float) -> bool:
        return curve(epsilon) <= delta

    low, high = bracket(enough)
    return crossing(enough, low, high, side="above")


def greatest_power(
    curve: Callable[[float], float], false_positives: float, kinks: Iterable[float] = ()
) -> float:
    """Return inf over epsilon >= 0 of what (epsilon, curve(epsilon))-DP allows: min(e^eps a + delta, 1 - e^-eps (1 - delta - a)).

    Every epsilon gives a valid bound, so the result holds wherever the search ends. kinks: epsilons that are tried besides the grid.
    Source: Kairouz, Oh, Viswanath 2015, section 2, minimised over the curve.
    """
    a = probability("the false positive rate", false_positives)
    if a == 0:
        return curve(math.inf)

    def allowed(epsilon: float) -> float:
        d = curve(epsilon)
        above = math.exp(epsilon + math.log(a)) + d if epsilon + math.log(a) < 0 else 1.0
        return min(1.0, above, 1 - math.exp(-epsilon) * (1 - d - a))

    end = max(FAR, -math.log(a))
    tried = [end * (k / GRID) ** 2 for k in range(GRID + 1)]
    best = min(range(GRID + 1), key=lambda k: allowed(tried[k]))
    low, high = tried[max(best - 1, 0)], tried[min(best + 1, GRID)]
    return max(
        a, min([allowed(tried[best]), allowed(_golden(allowed, low, high)), *map(allowed, kinks)])
    )


def probability(name: str, value: float) -> float:
    """Return `value`, or raise LeakauditError where it is no probability."""
    if not 0 <= value <= 1:
        raise LeakauditError(f"expected {name} between 0 and 1, got {value}")
    return value


def at_least_zero(name: str, value: float) -> float:
    """Return `value`, or raise LeakauditError where it is negative or not a number."""
    if not value >= 0:
        raise LeakauditError(f"expected {name} >= 0, got {value}")
    return value


def _golden(value: Callable[[float], float], low: float, high: float) -> float:
    """Return a point near the minimum of a function with one valley, by golden sections."""
    share = (math.sqrt(5) - 1) / 2
    left, right = high - share * (high - low), low + share * (high - low)
    at_left, at_right = value(left), value(right)
    for _ in range(32):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - share * (high - low)
            at_left = value(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + share * (high - low)
            at_right = value(right)
    return left if at_left <= at_right else right
