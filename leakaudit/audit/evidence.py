"""The three kinds of counts, and what each says against a promise: p-value, least possible p-value, trials needed, power.

All three kinds hold at every sample size, zero trials and no errors included: then the p-value is 1 or what Clopper and Pearson's limits
leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import beta, binom

from leakaudit.audit.promise import Promise
from leakaudit.bounds import empirical, gaussian, onerun
from leakaudit.bounds.empirical import Counts
from leakaudit.bounds.reconstruction import success

SMALLEST = 1e-280


@dataclass(frozen=True)
class Successes:
    """Reconstruction: how often an attack met an event whose blind chance is kappa at most (bounds/reconstruction)."""

    hits: int
    trials: int
    kappa: float

    def ceiling(self, promise: Promise) -> float:
        """Return the largest success rate that the promise allows."""
        return 1.0 if promise.empty else success(promise.guarantee, self.kappa)

    def lower(self, alpha: float) -> float:
        """Return the lower limit of the success rate (Clopper and Pearson)."""
        return empirical.lower(self.hits, self.trials, alpha)

    def p_value(self, promise: Promise) -> float:
        """Chance of as many hits at the ceiling."""
        return float(binom.sf(self.hits - 1, self.trials, self.ceiling(promise)))

    def best(self, promise: Promise) -> float:
        """All trials hit."""
        return replace(self, hits=self.trials).p_value(promise)

    def needs(self, promise: Promise, alpha: float) -> int | None:
        """Trials that all hit."""
        ceiling = self.ceiling(promise)
        if ceiling >= 1:
            return None
        return 1 if ceiling <= 0 else max(1, math.ceil(math.log(alpha) / math.log(ceiling)))

    def power(self, promise: Promise, alpha: float, mu: float) -> float:
        """The best attack meets Phi(Phi^-1(kappa) + mu)."""
        return empirical.detection(self.trials, self.ceiling(promise), gaussian.power(self.kappa, mu), alpha)


@dataclass(frozen=True)
class Canary:
    """Guesses on replays with a record and with another (bounds/empirical)."""

    counts: Counts

    def p_value(self, promise: Promise) -> float:
        """The least alpha at which the lower limit of epsilon, or of mu where the noise is Gaussian, exceeds the promise."""
        return _least_alpha(lambda alpha: self._limit(promise, alpha) > _value(promise))

    def best(self, promise: Promise) -> float:
        """No error in any replay."""
        c = self.counts
        return Canary(Counts(c.positives, c.positives, 0, c.negatives)).p_value(promise)

    def needs(self, promise: Promise, alpha: float) -> int | None:
        """Replays on both sides together."""
        if promise.empty:
            return None
        high = 1
        while Canary(Counts(high, high, 0, high))._limit(promise, alpha) <= _value(promise):
            high *= 2
            if high > empirical.MOST:
                return None
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            enough = Canary(Counts(middle, middle, 0, middle))._limit(promise, alpha) > _value(promise)
            low, high = (low, middle) if enough else (middle, high)
        return 2 * high

    def power(self, promise: Promise, alpha: float, mu: float) -> float:
        """Sum over all counts of the likelihood-ratio test whose two error rates are equal."""
        c = self.counts
        if not min(c.positives, c.negatives):
            return 0.0
        least = _least_hits(c.positives, c.negatives, promise, alpha)
        rate = float(ndtr(mu / 2))
        false = binom.pmf(np.arange(c.negatives + 1), c.negatives, 1 - rate)
        return float(false @ binom.sf(least - 1, c.positives, rate))

    def _limit(self, promise: Promise, alpha: float) -> float:
        if promise.mu is not None:
            return empirical.mu_lower(self.counts, alpha)
        return empirical.epsilon_lower(self.counts, promise.delta, alpha, both=True)


@dataclass(frozen=True)
class OneRun:
    """Right guesses among the canaries of one run (bounds/onerun)."""

    canaries: int
    guesses: int
    right: int

    def p_value(self, promise: Promise) -> float:
        """Of (epsilon, delta) by Steinke, Nasr and Jagielski; of a Gaussian promise by its whole curve."""
        if promise.empty or not self.guesses:
            return 1.0
        if promise.mu is not None:
            guarantee = promise.guarantee
            return _least_alpha(lambda alpha: onerun.refutes(self.canaries, self.guesses, self.right, guarantee, alpha))
        return onerun.p_value(self.canaries, self.guesses, self.right, promise.epsilon, promise.delta)

    def best(self, promise: Promise) -> float:
        """All guesses right."""
        return replace(self, right=self.guesses).p_value(promise)

    def needs(self, promise: Promise, alpha: float) -> int | None:
        """Canaries of which the same share is guessed, all right."""
        share = self.guesses / self.canaries if self.canaries else 1.0
        high = 1
        while high <= 1 << 20:
            guesses = max(1, math.ceil(share * high))
            if OneRun(high, guesses, guesses).p_value(promise) <= alpha:
                return high
            high *= 2
        return None

    def power(self, promise: Promise, alpha: float, mu: float) -> float:
        """Guesses that are right independently with the chance of the best test at even odds, Phi(mu / 2): an estimate, not a bound."""
        if not self.guesses:
            return 0.0
        least = _least_right(self.canaries, self.guesses, promise, alpha)
        return float(binom.sf(least - 1, self.guesses, float(ndtr(mu / 2))))


@lru_cache(maxsize=64)
def _least_hits(positives: int, negatives: int, promise: Promise, alpha: float) -> np.ndarray:
    """Return, for every number of false positives, how many true positives refute the promise (negatives + 1,); positives + 1 for none.

    One-sided: the complementary event, which `p_value` also looks at, can only add to it.
    """
    share = alpha / (2 if promise.mu is not None else 4)
    hits, false = np.arange(positives + 1), np.arange(negatives + 1)
    high = np.where(false < negatives, beta.isf(share, false + 1, np.maximum(negatives - false, 1)), 1.0)
    if promise.mu is not None:
        missed = np.where(hits > 0, beta.isf(share, positives - hits + 1, np.maximum(hits, 1)), 1.0)
        enough = -ndtri(high)[:, None] - ndtri(missed)[None] > promise.mu
    else:
        low = np.where(hits > 0, beta.ppf(share, np.maximum(hits, 1), positives - hits + 1), 0.0)
        with np.errstate(divide="ignore"):
            enough = np.log(np.maximum(low - promise.delta, 0))[None] - np.log(high)[:, None] > promise.epsilon
    return np.where(enough.any(1), enough.argmax(1), positives + 1)


@lru_cache(maxsize=64)
def _least_right(canaries: int, guesses: int, promise: Promise, alpha: float) -> int:
    """Return how many right guesses refute the promise, one more than all where none do."""
    low, high = 0, guesses + 1
    while high - low > 1:
        middle = (low + high) // 2
        refuted = OneRun(canaries, guesses, middle).p_value(promise) <= alpha
        low, high = (low, middle) if refuted else (middle, high)
    return high


def _value(promise: Promise) -> float:
    return promise.epsilon if promise.mu is None else promise.mu


def _least_alpha(refuted: Callable[[float], bool]) -> float:
    """Return the least alpha, rounded up, at which something is refuted; 1 where it never is."""
    if not refuted(0.999):
        return 1.0
    low, high = math.log(SMALLEST), math.log(0.999)
    if refuted(SMALLEST):
        return SMALLEST
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if refuted(math.exp(middle)) else (middle, high)
    return math.exp(high)
