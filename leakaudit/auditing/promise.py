"""What is tested, what a test must say of itself, and the least epsilon that it would have detected."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from leakaudit._util.bisection import crossing
from leakaudit.bounds import gaussian
from leakaudit.bounds.approximate import approximate
from leakaudit.bounds.gaussian import Gdp
from leakaudit.bounds.guarantee import Adjacency, Guarantee
from leakaudit.errors import LeakauditError

POWER = 0.8
WIDEST = 40.0  # mu beyond which nothing more is detected


@dataclass(frozen=True)
class Promise:
    """What is tested. name: whose. mu: where it is of Gaussian noise, whose curve is then known; else (epsilon, delta) alone."""

    name: str
    epsilon: float
    delta: float
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


class Evidence(Protocol):
    """Counts of one test; a value that hashes."""

    def __hash__(self) -> int: ...

    def p_value(self, promise: Promise) -> float:
        """Return the chance of counts like these, or worse, under the promise, at most."""

    def best(self, promise: Promise) -> float:
        """Return the least p-value that these trials could give: that of a perfect attack."""

    def needs(self, promise: Promise, alpha: float) -> int | None:
        """Return how many trials a perfect attack needs to refute the promise, None where no number does."""

    def power(self, promise: Promise, alpha: float, mu: float) -> float:
        """Return the chance to refute the promise at level alpha if the noise is Gaussian and gives mu, at the best attack."""


def detects(evidence: Evidence, promise: Promise, alpha: float) -> float | None:
    """Return the least epsilon at the promise's delta that would have been detected with probability .8, None where none would."""
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
def checked(evidence: Evidence, promise: Promise) -> float:
    """Return the p-value; raises LeakauditError where it is no probability, which would be an error of ours."""
    p = evidence.p_value(promise)
    if not 0 <= p <= 1:
        raise LeakauditError(
            f"audit: expected a p-value, got {p} of {evidence} against {promise}; please report this"
        )
    return p
