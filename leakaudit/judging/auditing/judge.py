"""Verdicts: all tests that could refute a guarantee share one alpha by Holm's procedure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from leakaudit._util import holm
from leakaudit._util.plain import Figures
from leakaudit.core.adversary import Adversary
from leakaudit.core.verdict import MOST_TRIALS, Verdict
from leakaudit.judging.auditing.evidence import POWER, TrialCounts, checked, detects
from leakaudit.judging.auditing.promise import Promise


@dataclass(frozen=True)
class Test:
    """One guarantee, the counts of one test at one point of the grid, and the verdict."""

    level: int  # index of the point in the grid
    adversary: Adversary  # the adversary whose view was attacked
    node: int
    test: str  # its name (`leakaudit.reporting.results.audit_names`)
    attack: str  # the attack or method that guessed
    promise: Promise | None = None  # the guarantee that is tested; None if there is none
    evidence: TrialCounts | None = None  # the counts; None if the test was impossible
    why: str = ""  # why it was impossible, otherwise empty
    figures: Figures | None = None  # the measured figures, for programs; None if there are none
    verdict: Verdict = Verdict.INCONCLUSIVE  # until it is judged
    says: str = ""  # explanation of the outcome
    power: str = ""  # what would have been detected, in words
    p: float | None = None  # p-value of the test; None if it needs no statistics or was impossible
    # level for which the power holds; None under the same conditions as `p`
    alpha: float | None = None
    # number of trials that a perfect attack would need; None if the trials were sufficient, or if
    # no number is
    needs: int | None = None

    __test__ = False  # pytest would collect it


def judge(tests: Sequence[Test], alpha: float) -> list[Test]:
    """Judge all tests together by Holm's procedure (Holm 1979).

    Which tests share alpha depends only on their trials, never on their counts: those in which a
    perfect attack would refute the guarantee at level alpha.
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
    """Return whether a perfect attack would refute the guarantee."""
    if test.evidence is None or test.promise is None or test.promise.empty:
        return False
    return test.evidence.best(test.promise) <= alpha


def _verdict(test: Test, level: float, refuted: bool) -> Test:
    promise = test.promise
    evidence = test.evidence
    if promise is None or promise.empty:
        says = "; ".join(filter(None, ["there is no guarantee to test", test.why]))
        return replace(test, verdict=Verdict.UNCLAIMED, says=says)
    if evidence is None:
        return replace(test, says=f"not measured: {test.why}")
    p = checked(evidence, promise)
    words = f"{promise.name} (epsilon {promise.epsilon:.4g}, delta {promise.delta:g})"
    test = replace(test, power=_power(detects(evidence, promise, level)), p=p, alpha=level)
    if refuted:
        says = f"p = {_p(p)}: exceeds what {words} allows"
        return replace(test, verdict=Verdict.REFUTED, says=says)
    if evidence.best(promise) > level:
        needs = evidence.needs(promise, level)
        says = f"too few samples to test {words}: {_needed(needs)}"
        return replace(test, says=says, needs=needs)
    says = f"p = {_p(p)}: within what {words} allows"
    return replace(test, verdict=Verdict.NOT_REFUTED, says=says)


def _needed(needs: int | None) -> str:
    if needs is None:
        return "no number of trials would suffice"
    if needs > MOST_TRIALS:
        return "more than ten million trials would be needed"
    return f"about {needs} trials would be needed"


def _power(epsilon: float | None) -> str:
    if epsilon is None or epsilon == math.inf:
        return f"no epsilon would have been detected with probability {POWER:g}"
    return f"would have detected epsilon >= {epsilon:.3g} with probability {POWER:g}"


def _p(p: float) -> str:
    return f"{p:.2g}" if p >= 1e-12 else "below 1e-12"
