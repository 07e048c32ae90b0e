"""The guarantee under test, what a test must tell, and the least epsilon that it detects."""

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

POWER = 0.8  # the usual choice in statistics for a test that is worth making
# mu beyond which nothing more is detected: Phi(-40 / 2) < 1e-88, so a best test makes no error.
WIDEST = 40.0


@dataclass(frozen=True)
class Promise:
    """The guarantee under test.

    Attributes:
        name: Whose it is.
        epsilon: At `delta`.
        delta: Of (epsilon, delta) privacy.
        mu: Of Gaussian differential privacy, if the noise is Gaussian; the whole curve is then
            known. None if only (epsilon, delta) is.
    """

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


class TrialCounts(Protocol):
    """Counts of one test; a value that hashes."""

    def __hash__(self) -> int: ...

    def p_value(self, promise: Promise) -> float:
        """Return an upper limit of the chance of counts like these, or worse, under the promise.

        Args:
            promise: What is tested.
        """

    def best(self, promise: Promise) -> float:
        """Return the least p-value that these trials could give: that of a perfect attack.

        Args:
            promise: What is tested.
        """

    def needs(self, promise: Promise, alpha: float) -> int | None:
        """Return how many trials a perfect attack needs to refute the promise.

        Args:
            promise: What is tested.
            alpha: Level of the test.

        Returns:
            The number; None if no number is enough.
        """

    def power(self, promise: Promise, alpha: float, mu: float) -> float:
        """Return the chance that the best attack refutes the promise.

        Args:
            promise: What is tested.
            alpha: Level of the test.
            mu: What the noise really gives, if it is Gaussian.
        """


def detects(evidence: TrialCounts, promise: Promise, alpha: float) -> float | None:
    """Return the least epsilon that would have been detected with probability `POWER`.

    Args:
        evidence: The trials; what they counted does not matter.
        promise: What is tested.
        alpha: Level of the test.

    Returns:
        The epsilon at the promise's delta; None if no epsilon would have been detected.
    """
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
    """Return the p-value of a test.

    Args:
        evidence: Its counts.
        promise: What is tested.

    Raises:
        LeakauditError: It is not a probability, which would be an error of this program.
    """
    p = evidence.p_value(promise)
    if not 0 <= p <= 1:
        raise LeakauditError(
            f"audit: expected a p-value, got {p} of {evidence} against {promise}; "
            "please report this"
        )
    return p
