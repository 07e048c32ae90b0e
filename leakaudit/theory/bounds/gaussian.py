"""mu-GDP, the exact differential privacy of Gaussian noise.

Sources: Dong, Roth, Su 2022; Balle, Wang 2018, Theorem 8. mu = sensitivity / sigma under some
adjacency; inf protects nothing, 0 reveals nothing. All formulas are evaluated in the logarithm:
epsilon of several hundred and delta of 1e-300 are exact to rounding.

>>> round(delta(1.0, mu=1.0), 6), round(epsilon(1e-5, mu=1.0), 6)
(0.126937, 4.377178)
>>> compose([3.0, 4.0])
5.0
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from leakaudit._util.bisection import bracket, crossing
from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds.guarantee import Adjacency, Guarantee, at_least_zero, probability


@dataclass(frozen=True)
class Gdp(Guarantee):
    """mu-GDP as a guarantee, exact for Gaussian noise.

    Adaptive releases add the squares of their mu (Corollary 3.3).

    Attributes:
        mu: Sensitivity divided by standard deviation, at least 0; may be inf.
        adjacency: The pairs of data sets that the sensitivity compares.
    """

    mu: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        at_least_zero("mu", self.mu)

    def delta(self, epsilon: float) -> float:
        """`delta` of this mu."""
        return delta(epsilon, self.mu)

    def epsilon(self, delta: float) -> float:
        """`epsilon` of this mu."""
        return epsilon(delta, self.mu)

    def power(self, false_positives: float) -> float:
        """`power` of this mu."""
        return power(false_positives, self.mu)

    def plus(self, other: Gdp) -> Gdp:
        """Root of the sum of squares."""
        return Gdp(compose([self.mu, other.mu]), self.adjacency)


def delta(epsilon: float, mu: float) -> float:
    """Return the smallest delta for which mu-GDP implies (epsilon, delta)-DP.

    delta = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu) (Balle, Wang 2018,
    Theorem 8), computed without overflow or cancellation.

    Args:
        epsilon: At least 0; may be inf.
        mu: At least 0; may be inf.
    """
    return math.exp(log_delta(epsilon, mu))


def log_delta(epsilon: float, mu: float) -> float:
    """Return the logarithm of `delta`, which does not underflow.

    Args:
        epsilon: At least 0; may be inf.
        mu: At least 0; may be inf.
    """
    at_least_zero("epsilon", epsilon)
    at_least_zero("mu", mu)
    if mu == 0 or epsilon == math.inf:
        return -math.inf if mu < math.inf else 0.0
    if mu == math.inf:
        return 0.0
    from scipy.special import erfcx, log_ndtr  # slow to import, and mu is often 0 or inf

    # delta = Phi(z) (1 - share), with share = e^epsilon Phi(z - mu) / Phi(z) between 0 and 1.
    z = mu / 2 - epsilon / mu
    first = float(log_ndtr(z))
    if first == -math.inf:
        return first
    if z <= 0:
        # Both normal tails are small and nearly equal. Since epsilon = ((z - mu)^2 - z^2) / 2, the
        # factor e^epsilon cancels against their Gaussian parts, and the share is a ratio of scaled
        # tails erfcx(x) = e^(x^2) erfc(x).
        share = float(erfcx((mu - z) / math.sqrt(2)) / erfcx(-z / math.sqrt(2)))
    else:
        # Rounding may raise the exponent above 0; the share is at most 1.
        share = math.exp(min(epsilon + float(log_ndtr(z - mu)) - first, 0.0))
    return first + _log1m(share)


@lru_cache(maxsize=4096)  # many views of a node have one mu
def epsilon(delta: float, mu: float) -> float:
    """Return the smallest epsilon >= 0 for which mu-GDP implies (epsilon, delta)-DP, rounded up.

    Args:
        delta: Between 0 and 1.
        mu: At least 0; may be inf.
    """
    probability("a delta", delta)
    at_least_zero("mu", mu)
    if mu == 0 or delta == 1:
        return 0.0
    if mu == math.inf or delta == 0:
        return math.inf
    wanted = math.log(delta)
    if log_delta(0.0, mu) <= wanted:
        return 0.0
    # delta(epsilon) <= Phi(-x) <= exp(-x^2 / 2) with x = epsilon / mu - mu / 2, which is delta at
    # this upper end.
    high = mu * mu / 2 + mu * math.sqrt(-2 * wanted)
    return crossing(lambda e: log_delta(e, mu) <= wanted, 0.0, high, side="above")


def least_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu for which mu-GDP implies (epsilon, delta)-DP, rounded down.

    The name refers to the least noise that a claim requires, sensitivity / mu.

    Args:
        epsilon: At least 0.
        delta: Above 0 and below 1.
    """
    if not 0 < delta < 1:
        raise LeakauditError(f"expected a delta between 0 and 1, got {delta}")
    at_least_zero("epsilon", epsilon)
    wanted = math.log(delta)

    def too_large(mu: float) -> bool:
        return log_delta(epsilon, mu) > wanted

    low, high = bracket(too_large)
    if high == math.inf:
        return math.inf
    return crossing(too_large, low, high, side="below")


def compose(mus: Iterable[float]) -> float:
    """Return the mu of several, also adaptive, releases with independent noise: sqrt(sum mu_t^2).

    Args:
        mus: Of each release.
    """
    values = list(mus)
    for mu in values:
        at_least_zero("mu", mu)
    return math.hypot(*values)


def group(mu: float, size: int) -> float:
    """Return the mu for `size` records that change together: size * mu.

    Source: Dong, Roth, Su 2022, Theorem 2.14.

    Args:
        mu: For one record.
        size: At least 0.
    """
    at_least_zero("mu", mu)
    if size < 0:
        raise LeakauditError(f"expected a group size >= 0, got {size}")
    return mu * size if size else 0.0


def power(false_positives: float, mu: float) -> float:
    """Return the largest true positive rate of any test: Phi(Phi^-1(alpha) + mu) = 1 - G_mu(alpha).

    Args:
        false_positives: The false positive rate alpha.
        mu: At least 0; may be inf.
    """
    probability("a false positive rate", false_positives)
    at_least_zero("mu", mu)
    if mu == math.inf or false_positives == 1:
        return 1.0
    from scipy.special import ndtr, ndtri  # slow to import

    return float(ndtr(ndtri(false_positives) + mu))


def _log1m(share: float) -> float:
    return math.log1p(-share) if share < 1 else -math.inf
