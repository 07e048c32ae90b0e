"""(epsilon, delta)-DP without further knowledge: optimal composition (Kairouz, Oh, Viswanath 2015).

Every (epsilon, delta)-DP mechanism is a post-processing of one that reveals everything with
probability delta and otherwise randomises a bit with odds e^epsilon. The loss of several is a sum
of +-epsilon_l, so the total delta(epsilon) is a finite sum (Theorem 3.3; for different epsilons
Murtagh, Vadhan 2016). For Gaussian noise of known sigma, mu-GDP is always tighter.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds.guarantee import (
    Adjacency,
    Guarantee,
    at_least_zero,
    greatest_power,
    least_epsilon,
    probability,
)

Floats = NDArray[np.float64]

EXACT = 1 << 18  # most different sums of losses that are enumerated: 4 MB; a choice
LATTICE = (
    1 << 15
)  # points of the lattice on which more are rounded up: by 3e-5 of the sum of all epsilons at most
# Different sums at which a power is evaluated besides the grid; more lie closer than the grid's
# points.
KINKS = 256


@dataclass(frozen=True)
class Approximate(Guarantee):
    """Releases each of which is (epsilon, delta)-DP, chosen adaptively.

    The total is exact up to 2^18 different sums of losses. Beyond, each epsilon is rounded up to a
    lattice of 2^-15 of the sum, so that the result still holds.

    Attributes:
        terms: Distinct (epsilon, delta, how often), sorted.
        adjacency: The pairs of data sets that they compare.
    """

    terms: tuple[tuple[float, float, int], ...]
    adjacency: Adjacency

    def __post_init__(self) -> None:
        for epsilon, delta, times in self.terms:
            probability("delta", delta)
            if not (0 <= epsilon < math.inf and times >= 1):
                raise LeakauditError(
                    f"expected a finite epsilon >= 0 at least once, got {epsilon} {times} times"
                )

    def delta(self, epsilon: float) -> float:
        """The optimal total delta at a total epsilon (Theorem 3.3)."""
        at_least_zero("epsilon", epsilon)
        losses, chance = self._losses
        more = losses > epsilon
        rest = 0.0
        if more.any():
            rest = float(chance[more] @ -np.expm1(epsilon - losses[more]))
        return min(1.0, self.lost + (1 - self.lost) * rest)

    def epsilon(self, delta: float) -> float:
        """Inverse of `delta`; finite at delta = 0 if every term has delta = 0."""
        return least_epsilon(self.delta, delta)

    def power(self, false_positives: float) -> float:
        """One minus the trade-off curve, exact at up to 256 different sums of losses."""
        losses = self._losses[0]
        kinks: Iterable[float] = ()
        if len(losses) <= KINKS:
            kinks = map(float, losses[losses > 0])
        return greatest_power(self.delta, false_positives, kinks)

    def plus(self, other: Approximate) -> Approximate:
        """The terms of both guarantees."""
        count: Counter[tuple[float, float]] = Counter()
        for epsilon, delta, times in self.terms + other.terms:
            count[epsilon, delta] += times
        terms = sorted((epsilon, delta, times) for (epsilon, delta), times in count.items())
        return Approximate(tuple(terms), self.adjacency)

    @cached_property
    def lost(self) -> float:
        """The probability that some release reveals everything: 1 - prod (1 - delta_l)."""
        if any(d == 1 for _, d, _ in self.terms):
            return 1.0
        return -math.expm1(math.fsum(n * math.log1p(-d) for _, d, n in self.terms))

    @cached_property
    def _losses(self) -> tuple[Floats, Floats]:
        """Values (m,) of the sum of +-epsilon_l and their chances (m,)."""
        from scipy.stats import binom  # slow to import; protocols need other parts of this module

        groups: Counter[float] = Counter()
        for epsilon, _, times in self.terms:
            groups[epsilon] += times
        if math.prod(n + 1 for n in groups.values()) > EXACT:
            return _on_lattice(groups)
        losses = np.zeros(1)
        chance = np.ones(1)
        for epsilon, n in groups.items():
            # n equal epsilons: k of them with a plus sign, k binomial with the odds of randomised
            # response.
            ups = np.arange(n + 1)
            losses = np.add.outer(losses, (2 * ups - n) * epsilon).ravel()
            chance = np.multiply.outer(chance, binom.pmf(ups, n, expit(epsilon))).ravel()
        return losses, chance


def approximate(epsilon: float, delta: float, adjacency: Adjacency) -> Approximate:
    """Return the guarantee of one release that is (epsilon, delta)-DP.

    Args:
        epsilon: Finite and at least 0.
        delta: Between 0 and 1; 0 is pure DP.
        adjacency: The pairs of data sets that it compares.
    """
    return Approximate(((epsilon, delta, 1),), adjacency)


def _on_lattice(groups: Counter[float]) -> tuple[Floats, Floats]:
    """Return losses and chances with each epsilon rounded up to a multiple of one width."""
    from scipy.stats import binom

    width = math.fsum(e * n for e, n in groups.items()) / LATTICE
    chance = np.ones(1)
    for epsilon, n in groups.items():
        steps = math.ceil(epsilon / width)
        if not steps:
            continue
        # The sum of n losses +-steps has the values -n steps, ..., n steps, every 2 steps.
        one = np.zeros(2 * steps * n + 1)
        one[:: 2 * steps] = binom.pmf(np.arange(n + 1), n, expit(steps * width))
        chance = _convolve(chance, one)
    return (2 * np.arange(len(chance)) - len(chance) + 1) / 2 * width, chance


def _convolve(a: Floats, b: Floats) -> Floats:
    """Return the convolution as a sum of shifted copies, for b of few entries, without rounding."""
    out = np.zeros(len(a) + len(b) - 1)
    for k in np.flatnonzero(b):
        out[k : k + len(a)] += b[k] * a
    return out
