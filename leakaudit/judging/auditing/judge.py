"""Verdicts: all tests that could refute a guarantee share one alpha by Holm's procedure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leakaudit._util import holm
from leakaudit.core.adversary import Adversary
from leakaudit.core.verdict import MOST_TRIALS, Verdict
from leakaudit.judging.auditing.promise import POWER, Promise, TrialCounts, checked, detects
from leakaudit.reporting.results.model import Figures


@dataclass(frozen=True)
class Test:
    """One guarantee and the counts of one test, at one point of the grid."""

    level: int  # index of the point in the grid
    adversary: Adversary  # the adversary whose view was attacked
    node: int
    test: str  # its name (`leakaudit.reporting.results.audit_names`)
    attack: str  # the attack or method that guessed
    promise: Promise | None  # the guarantee that is tested; None if there is none
    evidence: TrialCounts | None  # the counts; None if the test was impossible
    why: str = ""  # why it was impossible, otherwise empty
    figures: Figures | None = None  # the measured figures, for programs; None if there are none

    __test__ = False  # pytest would collect it


@dataclass(frozen=True)
class JudgedTest:
    """A test with its verdict."""

    test: Test
    verdict: Verdict
    says: str  # explanation of the outcome
    power: str = ""  # what would have been detected, in words
    p: float | None = None  # p-value of the test; None if it needs no statistics or was impossible
    # level for which the power holds; None under the same conditions as `p`
    alpha: float | None = None
    # number of trials that a perfect attack would need; None if the trials were sufficient, or if
    # no number is
    needs: int | None = None


def judge(tests: Sequence[Test], alpha: float) -> list[JudgedTest]:
    """Judge all tests together.

    Which tests share alpha depends only on their trials, never on their counts: those in which a
    perfect attack would refute the guarantee at level alpha. Holm's procedure (Holm 1979) compares
    the smallest p-value with alpha / K, the next with alpha / (K - 1), and so on, and stops at the
    first that is larger.
    """
    places = []
    values = []
    for place, test in enumerate(tests):
        if test.evidence is not None and test.promise is not None and _able(test, alpha):
            places.append(place)
            values.append(checked(test.evidence, test.promise))
    refuted = {places[k] for k in holm.rejected(values, alpha)}
    level = alpha / max(1, len(values))
    return [_verdict(test, level, place in refuted) for place, test in enumerate(tests)]


def _able(test: Test, alpha: float) -> bool:
    """Return whether a perfect attack would refute the guarantee at level alpha."""
    if test.evidence is None or test.promise is None or test.promise.empty:
        return False
    return test.evidence.best(test.promise) <= alpha


def _verdict(test: Test, level: float, refuted: bool) -> JudgedTest:
    promise = test.promise
    evidence = test.evidence
    if promise is None or promise.empty:
        says = "there is no guarantee to test"
        if test.why:
            says = f"{says}; {test.why}"
        return JudgedTest(test, Verdict.UNCLAIMED, says)
    if evidence is None:
        return JudgedTest(test, Verdict.INCONCLUSIVE, f"not measured: {test.why}")
    p = checked(evidence, promise)
    power = _power(detects(evidence, promise, level))
    if refuted:
        says = f"p = {_p(p)}: exceeds what {_words(promise)} allows"
        return JudgedTest(test, Verdict.REFUTED, says, power, p, level)
    if evidence.best(promise) > level:
        needs = evidence.needs(promise, level)
        says = f"too few samples to test {_words(promise)}: {_needed(needs)}"
        return JudgedTest(test, Verdict.INCONCLUSIVE, says, power, p, level, needs)
    says = f"p = {_p(p)}: within what {_words(promise)} allows"
    return JudgedTest(test, Verdict.NOT_REFUTED, says, power, p, level)


def _needed(needs: int | None) -> str:
    if needs is None:
        return "no number of trials would suffice"
    if needs > MOST_TRIALS:
        return "more than ten million trials would be needed"
    return f"about {needs} trials would be needed"


def _words(promise: Promise) -> str:
    return f"{promise.name} (epsilon {promise.epsilon:.4g}, delta {promise.delta:g})"


def _power(epsilon: float | None) -> str:
    if epsilon is None or epsilon == math.inf:
        return f"no epsilon would have been detected with probability {POWER:g}"
    return f"would have detected epsilon >= {epsilon:.3g} with probability {POWER:g}"


def _p(p: float) -> str:
    return f"{p:.2g}" if p >= 1e-12 else "below 1e-12"
