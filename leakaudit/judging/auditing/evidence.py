"""The three kinds of counts, and how each tests a guarantee, valid for every sample size.

All have the same methods. `p_value` is an upper limit of the probability of these or more extreme
counts, `best` that of a perfect attack, `needs` the number of trials with which a perfect attack
refutes the guarantee, `power` the probability that the best attack does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from scipy.special import ndtr

from leakaudit._util.bisection import crossing, crossing_integer
from leakaudit._util.plain import Figures
from leakaudit.core.errors import LeakauditError
from leakaudit.core.verdict import MOST_TRIALS
from leakaudit.judging.auditing.promise import Promise
from leakaudit.theory.bounds import empirical, gaussian, one_run
from leakaudit.theory.bounds.empirical import Counts
from leakaudit.theory.bounds.joint import LARGEST, Floats, JointTest, joint_test, perfect
from leakaudit.theory.bounds.reconstruction import success

SMALLEST = 1e-280  # smallest p-value that is computed; well inside the range of a double
PILOT = 0.25  # share of the canary replays that are used only to choose the threshold: a choice
LEAST = 2  # scores that a pilot needs on each side: two have a deviation
TRIED = 48  # thresholds of the grid: a choice
FAR = 3.0  # the grid extends this many deviations beyond both means
PILOTS = 64  # number of pilots over which the power is averaged: a choice
MOST_CANARIES = 1 << 20  # most canaries that are recommended
POWER = 0.8  # the usual choice in statistics for a worthwhile test
# mu beyond which nothing changes: Phi(-40 / 2) < 1e-88, so the best test makes no errors.
WIDEST = 40.0


@dataclass(frozen=True)
class Successes:
    """Reconstruction: how often an attack succeeded, compared with what the guarantee allows.

    The bound is `leakaudit.theory.bounds.reconstruction`: Phi(Phi^-1(kappa) + mu).
    """

    hits: int  # number of trials that succeeded
    trials: int
    kappa: float  # upper limit of the probability that a blind guess succeeds

    def ceiling(self, promise: Promise) -> float:
        """Return the largest success rate that a guarantee allows."""
        return 1.0 if promise.empty else success(promise.guarantee, self.kappa)

    def lower(self, alpha: float) -> float:
        """Return the lower limit of the success rate (Clopper and Pearson)."""
        return empirical.lower(self.hits, self.trials, alpha)

    def p_value(self, promise: Promise) -> float:
        """Return the probability of so many hits at the ceiling."""
        return float(empirical.at_least(self.hits, self.trials, self.ceiling(promise)))

    def best(self, promise: Promise) -> float:
        """Return the p-value if all trials succeed."""
        return replace(self, hits=self.trials).p_value(promise)

    def needs(self, promise: Promise, alpha: float) -> int | None:
        """Return how many successful trials refute the guarantee, if any number does."""
        ceiling = self.ceiling(promise)
        if ceiling >= 1:
            return None
        if ceiling <= 0:
            return 1
        # All of n trials succeed with probability ceiling^n.
        return max(1, math.ceil(math.log(alpha) / math.log(ceiling)))

    def power(self, promise: Promise, alpha: float, mu: float) -> float:
        """Return the power of the best attack, with success Phi(Phi^-1(kappa) + mu)."""
        rate = gaussian.power(self.kappa, mu)
        return empirical.detection(self.trials, self.ceiling(promise), rate, alpha)

    def figures(self, promise: Promise | None) -> Figures:
        """Return the counts, for programs."""
        ceiling = None
        if promise is not None and not promise.empty:
            ceiling = self.ceiling(promise)
        return {**vars(self), "ceiling": ceiling}


@dataclass(frozen=True)
class Canary:
    """Guesses on replays with one of two records, tested jointly (`theory.bounds.joint`)."""

    counts: Counts  # guesses that the record was present, and trials, on both sides

    def p_value(self, promise: Promise) -> float:
        """Return the p-value of the joint test, for at most `joint.LARGEST` trials.

        For more, it is the smallest alpha at which the separate limits of both error rates exceed
        the guarantee.
        """
        c = self.counts
        if promise.empty or not min(c.positives, c.negatives):
            return 1.0
        if (c.true_positives, c.false_positives) == (c.positives, 0):
            return perfect(promise.guarantee, c.positives, c.negatives)
        if max(c.positives, c.negatives) > LARGEST:
            return _least_alpha(lambda alpha: self._limit(promise, alpha) > _value(promise))
        test = joint_test(promise.guarantee, c.positives, c.negatives)
        return test.p_value(c.true_positives, c.false_positives)

    def best(self, promise: Promise) -> float:
        """Return the p-value if no replay has an error."""
        c = self.counts
        return Canary(Counts(c.positives, c.positives, 0, c.negatives)).p_value(promise)

    def needs(self, promise: Promise, alpha: float) -> int | None:
        """Return how many replays without an error, half on each side, refute the guarantee.

        The p-value of n pairs is about that of one pair to the power n; two loops correct rounding.
        """
        if promise.empty:
            return None
        guarantee = promise.guarantee
        one = math.log(perfect(guarantee, 1, 1))
        if one * MOST_TRIALS > math.log(alpha):
            return None
        number = max(1, math.ceil(math.log(alpha) / one))
        while perfect(guarantee, number, number) > alpha:
            number += 1
        while number > 1 and perfect(guarantee, number - 1, number - 1) <= alpha:
            number -= 1
        return 2 * number

    def power(self, promise: Promise, alpha: float, mu: float) -> float:
        """Return the power at the thresholds that pilots choose, averaged over `PILOTS` pilots."""
        return _canary_power(promise, self.counts.positives, self.counts.negatives, alpha, mu)

    def figures(self, promise: Promise | None) -> Figures:
        """Return the counts, for programs."""
        return dict(vars(self.counts))

    def _limit(self, promise: Promise, alpha: float) -> float:
        """Return the lower limit of mu or epsilon, whichever the guarantee bounds."""
        if promise.mu is not None:
            return empirical.mu_lower(self.counts, alpha)
        return empirical.epsilon_lower(self.counts, promise.delta, alpha, both=True)


@dataclass(frozen=True)
class OneRun:
    """Correct guesses among the canaries of one run (`leakaudit.theory.bounds.one_run`)."""

    canaries: int  # number of records that were each included or not by the flip of a coin
    guesses: int  # number of canaries that were guessed
    right: int  # number of correct guesses

    def p_value(self, promise: Promise) -> float:
        """Return the p-value of Steinke, Nasr and Jagielski for (epsilon, delta).

        For a known curve, it is the smallest alpha at which the whole curve is refuted.
        """
        if promise.empty or not self.guesses:
            return 1.0
        if promise.curve is None:
            return one_run.p_value(
                self.canaries, self.guesses, self.right, promise.epsilon, promise.delta
            )
        guarantee = promise.guarantee
        return _least_alpha(
            lambda alpha: one_run.refutes(self.canaries, self.guesses, self.right, guarantee, alpha)
        )

    def best(self, promise: Promise) -> float:
        """Return the p-value if all guesses are right."""
        return replace(self, right=self.guesses).p_value(promise)

    def needs(self, promise: Promise, alpha: float) -> int | None:
        """Return how many canaries refute it, to a power of 2, all guesses being right."""
        share = self.guesses / self.canaries if self.canaries else 1.0
        canaries = 1
        while canaries <= MOST_CANARIES:
            guesses = max(1, math.ceil(share * canaries))
            if OneRun(canaries, guesses, guesses).p_value(promise) <= alpha:
                return canaries
            canaries *= 2
        return None

    def power(self, promise: Promise, alpha: float, mu: float) -> float:
        """Estimate the power: guesses are right independently, with probability Phi(mu / 2)."""
        if not self.guesses:
            return 0.0
        least = _least_right(self.canaries, self.guesses, promise, alpha)
        return float(empirical.at_least(least, self.guesses, float(ndtr(mu / 2))))

    def figures(self, promise: Promise | None) -> Figures:
        """Return the counts, for programs."""
        return dict(vars(self))


TrialCounts: TypeAlias = Successes | Canary | OneRun


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


@lru_cache(maxsize=4096)
def _canary_power(
    promise: Promise, positives: int, negatives: int, alpha: float, mu: float
) -> float:
    """Return the power of canaries, which depends on the numbers of trials only.

    The score of a replay is normal with deviation 1 and mean mu / 2 with the record, -mu / 2
    without it. `PILOTS` pilots choose thresholds, which are evaluated under the true model.
    """
    if promise.empty or not 0 < min(positives, negatives) <= max(positives, negatives) <= LARGEST:
        return 0.0
    test = joint_test(promise.guarantee, positives, negatives)
    at = np.array([mu, -mu]) / 2  # means of the score, with the record and without
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
    """Return the threshold (m,) of greatest power for each of several normal models of a score.

    `means` (m, 2) are with the record and without it, `deviations` (m,) the same on both sides.
    Without any power, the threshold is 0, the middle of a likelihood ratio.
    """
    # 0 is tried first, because argmax selects the first of several thresholds of equal power.
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
    """Return how many correct guesses refute it; `guesses` + 1 if no number does."""

    def refuted(right: int) -> bool:
        return OneRun(canaries, guesses, right).p_value(promise) <= alpha

    return crossing_integer(refuted, 0, guesses + 1)


def _value(promise: Promise) -> float:
    return promise.epsilon if promise.mu is None else promise.mu


def _least_alpha(refuted: Callable[[float], bool]) -> float:
    """Return the smallest alpha, rounded up, at which `refuted` holds, at most 1."""
    if not refuted(0.999):
        return 1.0
    if refuted(SMALLEST):
        return SMALLEST
    low = math.log(SMALLEST)
    high = math.log(0.999)
    log_alpha = crossing(lambda a: refuted(math.exp(a)), low, high, side="above", halvings=40)
    return math.exp(log_alpha)
