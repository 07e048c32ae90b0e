"""The three kinds of counts, and what each says against a promise: p-value, least possible p-value, trials needed, power.

All three kinds hold at every sample size, zero trials and no errors included.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom

from leakaudit._util.bisection import crossing, crossing_integer
from leakaudit.auditing.promise import Promise
from leakaudit.bounds import empirical, gaussian, one_run
from leakaudit.bounds.empirical import Counts
from leakaudit.bounds.joint import LARGEST, Floats, JointTest, joint_test, perfect
from leakaudit.bounds.reconstruction import success

SMALLEST = 1e-280
PILOT = 0.25  # share of the canary replays that choose the threshold, and nothing else
LEAST = 2  # scores on each side that a pilot needs
TRIED, FAR = 48, 3.0  # thresholds, to so many deviations beyond both means
PILOTS = 64  # over whose choices the power is averaged


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
        return empirical.detection(
            self.trials, self.ceiling(promise), gaussian.power(self.kappa, mu), alpha
        )


@dataclass(frozen=True)
class Canary:
    """Guesses on replays with a record and with another, both error rates tested together (bounds/joint)."""

    counts: Counts

    def p_value(self, promise: Promise) -> float:
        """Of the joint test; beyond `joint.LARGEST` trials the least alpha at which the separate limits exceed the promise."""
        c = self.counts
        if promise.empty or not min(c.positives, c.negatives):
            return 1.0
        if (c.true_positives, c.false_positives) == (c.positives, 0):
            return perfect(promise.guarantee, c.positives, c.negatives)
        if max(c.positives, c.negatives) > LARGEST:
            return _least_alpha(lambda alpha: self._limit(promise, alpha) > _value(promise))
        return joint_test(promise.guarantee, c.positives, c.negatives).p_value(
            c.true_positives, c.false_positives
        )

    def best(self, promise: Promise) -> float:
        """No error in any replay."""
        c = self.counts
        return Canary(Counts(c.positives, c.positives, 0, c.negatives)).p_value(promise)

    def needs(self, promise: Promise, alpha: float) -> int | None:
        """Replays on both sides together, as many on each; their p-value is that of one pair to the power of their number."""
        if promise.empty:
            return None
        guarantee = promise.guarantee
        one = math.log(perfect(guarantee, 1, 1))
        if one * empirical.MOST > math.log(alpha):
            return None
        number = max(1, math.ceil(math.log(alpha) / one))
        while perfect(guarantee, number, number) > alpha:
            number += 1
        while number > 1 and perfect(guarantee, number - 1, number - 1) <= alpha:
            number -= 1
        return 2 * number

    def power(self, promise: Promise, alpha: float, mu: float) -> float:
        """Sum over all counts that refute, at the thresholds that pilots choose: the mean over `PILOTS` pilots of a fixed generator."""
        return _canary_power(promise, self.counts.positives, self.counts.negatives, alpha, mu)

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
            return _least_alpha(
                lambda alpha: one_run.refutes(
                    self.canaries, self.guesses, self.right, guarantee, alpha
                )
            )
        return one_run.p_value(
            self.canaries, self.guesses, self.right, promise.epsilon, promise.delta
        )

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


@lru_cache(maxsize=4096)
def _canary_power(
    promise: Promise, positives: int, negatives: int, alpha: float, mu: float
) -> float:
    """Return the power of canaries, which depends on the numbers of their trials and not on what was counted."""
    if promise.empty or not 0 < min(positives, negatives) <= max(positives, negatives) <= LARGEST:
        return 0.0
    test = joint_test(promise.guarantee, positives, negatives)
    at = np.array([mu, -mu]) / 2  # means of the score of deviation 1, with the record and without
    sizes = [round(n * PILOT / (1 - PILOT)) for n in (positives, negatives)]
    if min(sizes) < LEAST:
        chosen = np.zeros(1)
    else:
        random = np.random.default_rng(0)
        means = at + random.standard_normal((PILOTS, 2)) / np.sqrt(sizes)
        freedom = sum(sizes) - 2
        deviations = np.sqrt(random.chisquare(freedom, PILOTS) / freedom)
        chosen = best_thresholds(test, alpha, means, deviations)
    return float(test.power(alpha, ndtr(at[0] - chosen), ndtr(at[1] - chosen)).mean())


def best_thresholds(test: JointTest, alpha: float, means: Floats, deviations: Floats) -> Floats:
    """Return the threshold of greatest power for each of several normal models of a score.

    Args:
        test: What is tested with the guesses.
        alpha: Its level.
        means: (m, 2) Means of the score with the record and without.
        deviations: (m,) Its standard deviation, the same on both sides.

    Returns:
        (m,) The thresholds, on the scale of the score; 0, the middle of a likelihood ratio, if none has any power.
    """
    steps = np.linspace(0.0, 1.0, TRIED)
    low = means.min(1) - FAR * deviations
    high = means.max(1) + FAR * deviations
    tried = low[:, None] + (high - low)[:, None] * steps
    tried = np.concatenate([np.zeros((len(tried), 1)), tried], axis=1)
    there, gone = (ndtr((means[:, side, None] - tried) / deviations[:, None]) for side in (0, 1))
    powers = test.power(alpha, there.ravel(), gone.ravel()).reshape(tried.shape)
    return np.asarray(tried[np.arange(len(tried)), powers.argmax(1)])


@lru_cache(maxsize=64)
def _least_right(canaries: int, guesses: int, promise: Promise, alpha: float) -> int:
    """Return how many right guesses refute the promise, one more than all where none do."""

    def refuted(right: int) -> bool:
        return OneRun(canaries, guesses, right).p_value(promise) <= alpha

    return crossing_integer(refuted, 0, guesses + 1)


def _value(promise: Promise) -> float:
    return promise.epsilon if promise.mu is None else promise.mu


def _least_alpha(refuted: Callable[[float], bool]) -> float:
    """Return the least alpha, rounded up, at which something is refuted; 1 where it never is."""
    if not refuted(0.999):
        return 1.0
    if refuted(SMALLEST):
        return SMALLEST
    low = math.log(SMALLEST)
    high = math.log(0.999)
    log_alpha = crossing(lambda a: refuted(math.exp(a)), low, high, side="above", halvings=40)
    return math.exp(log_alpha)
