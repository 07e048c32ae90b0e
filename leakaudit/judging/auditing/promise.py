"""The guarantee under test, the interface of a test, and the smallest detectable epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from leakaudit._util.bisection import crossing
from leakaudit._util.plain import Figures
from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds import gaussian
from leakaudit.theory.bounds.approximate import approximate
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import Adjacency, Guarantee

POWER = 0.8  # the usual choice in statistics for a worthwhile test
# mu beyond which nothing changes: Phi(-40 / 2) < 1e-88, so the best test makes no errors.
WIDEST = 40.0


@dataclass(frozen=True)
class Promise:
    """The guarantee under test."""

    name: str
    epsilon: float
    delta: float  # delta of (epsilon, delta) privacy
    # parameter of Gaussian differential privacy, if the noise is Gaussian; the whole curve is then
    # known. None if only (epsilon, delta) is known.
    mu: float | None = None

    @property
    def guarantee(self) -> Guarantee:
        """The curve, for replaced records."""
        if self.mu is not None:
            return Gdp(self.mu, Adjacency.REPLACE)
        return approximate(self.epsilon, self.delta, Adjacency.REPLACE)

    @property
    def empty(self) -> bool:
        """Whether it allows everything."""
        return self.epsilon == math.inf or self.delta >= 1


class TrialCounts(Protocol):
    """The counts of one test; a hashable value."""

    def __hash__(self) -> int: ...

    def p_value(self, promise: Promise) -> float:
        """Return an upper limit of the probability of these or more extreme counts."""

    def best(self, promise: Promise) -> float:
        """Return the p-value of a perfect attack."""

    def needs(self, promise: Promise, alpha: float) -> int | None:
        """Return how many trials a perfect attack needs; None if no number suffices."""

    def power(self, promise: Promise, alpha: float, mu: float) -> float:
        """Return the probability that the best attack refutes the guarantee."""

    def figures(self, promise: Promise | None) -> Figures:
        """Return the counts, for programs."""


def detects(evidence: TrialCounts, promise: Promise, alpha: float) -> float | None:
    """Return the smallest epsilon that is detected with probability `POWER`, if any."""
    if (
        promise.empty
        or evidence.best(promise) > alpha
        or evidence.power(promise, alpha, WIDEST) < POWER
    ):
        return None

    def detected(mu: float) -> bool:
        return evidence.power(promise, alpha, mu) >= POWER

    least_mu = crossing(detected, 0.0, WIDEST, side="above", halvings=30)
    return gaussian.epsilon(promise.delta, least_mu)


@lru_cache(maxsize=4096)
def checked(evidence: TrialCounts, promise: Promise) -> float:
    """Return the p-value of a test."""
    p = evidence.p_value(promise)
    if not 0 <= p <= 1:
        raise LeakauditError(
            f"audit: expected a p-value between 0 and 1, got {p} for {evidence} against {promise}; "
            "this is a bug of leakaudit, please report it"
        )
    return p
