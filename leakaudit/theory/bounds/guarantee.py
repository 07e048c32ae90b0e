"""The interface of every guarantee: a privacy curve, and the largest power of any test.

The curve delta(epsilon) bounds both directions, D against D' and D' against D. It therefore also
has values at negative epsilon: delta(-e) = 1 - e^{-e} (1 - delta(e)) (Kairouz, Oh, Viswanath 2015,
section 2). All logarithms are natural.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Self

from leakaudit._util.bisection import bracket, crossing
from leakaudit.core.claim import Adjacency as Adjacency  # the side of a claim, and of a guarantee
from leakaudit.core.errors import LeakauditError

# Epsilons of the grid that brackets the best one for a power. The grid is quadratic, so it is fine
# near 0, where curves bend. A choice: every epsilon gives a valid bound, so a coarse grid only
# makes the bound less tight, and a search between two points follows.
GRID = 48

# The smallest upper end of the grid. At e^-60 = 9e-27, every curve is flat in float64.
FAR = 60.0

# Golden sections, each .618 of the previous one: .618^32 = 2e-7 of the bracket. Near a minimum, the
# value changes by the square of that.
SECTIONS = 32


class Guarantee(ABC):
    """The joint guarantee of releases; only `theory.bounds.composition` composes guarantees.

    Attributes:
        adjacency: The pairs of data sets that the guarantee compares.
    """

    adjacency: Adjacency

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """Return a delta for which (epsilon, delta)-DP holds; epsilon may be inf."""

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """Return the least epsilon >= 0 for which (epsilon, delta)-DP holds; inf if none does."""

    @abstractmethod
    def power(self, false_positives: float) -> float:
        """Return an upper bound on the true positive rate of every test, 1 - f(alpha).

        f is the trade-off curve, and alpha the test's false positive rate.
        """

    @abstractmethod
    def plus(self, other: Self) -> Self:
        """Return the guarantee of both releases, the second of which may be chosen adaptively."""


def least_epsilon(curve: Callable[[float], float], delta: float) -> float:
    """Return the smallest epsilon >= 0 with curve(epsilon) <= delta, rounded up; inf if none.

    Args:
        curve: delta(epsilon), a non-increasing function.
        delta: Between 0 and 1.
    """
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
    """Return the largest true positive rate that a whole privacy curve allows.

    At every epsilon, (epsilon, curve(epsilon))-DP allows min(e^eps a + delta, 1 - e^-eps (1 - delta
    - a)) at a false positive rate a (Kairouz, Oh, Viswanath 2015, section 2). The result is the
    smallest of these, so it is valid wherever the search ends.

    Args:
        curve: delta(epsilon), for epsilon >= 0 and inf.
        false_positives: The false positive rate a.
        kinks: Epsilons to evaluate besides the grid, such as those at which the curve bends.
    """
    a = probability("the false positive rate", false_positives)
    if a == 0:
        return curve(math.inf)

    def allowed(epsilon: float) -> float:
        delta = curve(epsilon)
        above = 1.0
        if epsilon + math.log(a) < 0:  # e^eps a < 1, so it cannot overflow
            above = math.exp(epsilon + math.log(a)) + delta
        return min(1.0, above, 1 - math.exp(-epsilon) * (1 - delta - a))

    # Beyond -log a, the first bound exceeds 1 and the second 1 - a, so the minimum is below.
    end = max(FAR, -math.log(a))
    tried = [end * (k / GRID) ** 2 for k in range(GRID + 1)]
    best = min(range(GRID + 1), key=lambda k: allowed(tried[k]))
    low = tried[max(best - 1, 0)]
    high = tried[min(best + 1, GRID)]
    between = _valley(allowed, low, high)
    least = min([allowed(tried[best]), allowed(between), *map(allowed, kinks)])
    return max(a, least)  # random guessing attains a


def probability(name: str, value: float) -> float:
    """Return a value; raise LeakauditError if it is not between 0 and 1.

    Args:
        name: For the message.
        value: The value.
    """
    if not 0 <= value <= 1:
        raise LeakauditError(f"expected {name} between 0 and 1, got {value}")
    return value


def at_least_zero(name: str, value: float) -> float:
    """Return a value; raise LeakauditError if it is negative or not a number.

    Args:
        name: For the message.
        value: The value.
    """
    if not value >= 0:
        raise LeakauditError(f"expected {name} >= 0, got {value}")
    return value


def _valley(value: Callable[[float], float], low: float, high: float) -> float:
    """Return a point near the minimum of a function with one valley, by golden sections.

    The method is Kiefer's (1953). Two inner points divide the bracket in the golden ratio, so that
    after discarding the outer part beside the worse one, the better one is again an inner point,
    and each step costs one evaluation. `scipy.optimize.minimize_scalar` does not find better minima
    on 400 curves.
    """
    share = (math.sqrt(5) - 1) / 2
    left = high - share * (high - low)
    right = low + share * (high - low)
    at_left = value(left)
    at_right = value(right)
    for _ in range(SECTIONS):
        if at_left <= at_right:
            high = right
            right = left
            at_right = at_left
            left = high - share * (high - low)
            at_left = value(left)
        else:
            low = left
            left = right
            at_left = at_right
            right = low + share * (high - low)
            at_right = value(right)
    return left if at_left <= at_right else right
