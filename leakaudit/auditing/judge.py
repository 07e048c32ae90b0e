"""Verdicts: one alpha for the whole audit, shared by Holm over all tests that could refute anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from leakaudit._util import holm
from leakaudit.auditing.promise import POWER, Evidence, Promise, checked, detects
from leakaudit.bounds.empirical import MOST
from leakaudit.trace import Json
from leakaudit.verdict import Verdict


@dataclass(frozen=True)
class Test:
    """One promise against the counts of one test, at one point of the grid.

    level: place in the grid. test: in words. attack: what guessed. evidence: None where the test could not be made, and why.
    figures: what was measured, for programs.
    """

    level: int
    adversary: str
    node: int
    test: str
    attack: str
    promise: Promise | None
    evidence: Evidence | None
    why: str = ""
    figures: dict[str, Json] = field(default_factory=dict)

    __test__ = False  # no test of pytest


@dataclass(frozen=True)
class Judged:
    """A test with its verdict. p: value of the test; alpha: the level that its power is of. needs: trials of a perfect attack."""

    test: Test
    verdict: Verdict
    says: str
    power: str = ""
    p: float | None = None
    alpha: float | None = None
    needs: int | None = None


def judge(tests: Sequence[Test], alpha: float) -> list[Judged]:
    """Judge all tests together.

    Which tests share alpha is settled by their trials alone: those that a perfect attack would refute at alpha. Holm's procedure
    refutes the smallest p-value at alpha / K, the next at alpha / (K - 1), and so on up to the first that does not hold.
    """
    family = [t for t in tests if _able(t, alpha)]
    level = alpha / max(1, len(family))
    values = [checked(t.evidence, t.promise) for t in family if t.evidence and t.promise]
    refuted = {id(family[k]) for k in holm.rejected(values, alpha)}
    return [_verdict(t, level, id(t) in refuted) for t in tests]


def _able(test: Test, alpha: float) -> bool:
    if test.evidence is None or test.promise is None or test.promise.empty:
        return False
    return test.evidence.best(test.promise) <= alpha


def _verdict(test: Test, level: float, refuted: bool) -> Judged:
    promise, evidence = test.promise, test.evidence
    if promise is None or promise.empty:
        return Judged(
            test,
            Verdict.UNCLAIMED,
            "nothing is promised here, so nothing can be exceeded"
            + (f"; {test.why}" if test.why else ""),
        )
    if evidence is None:
        return Judged(test, Verdict.INCONCLUSIVE, f"not measured: {test.why}")
    p, found = checked(evidence, promise), detects(evidence, promise, level)
    power = _power(found)
    if refuted:
        says = f"p = {_p(p)}: beyond what {_words(promise)} allows"
        return Judged(test, Verdict.REFUTED, says, power, p, level)
    if evidence.best(promise) > level:
        needs = evidence.needs(promise, level)
        count = "more than ten million" if needs is not None and needs > MOST else f"about {needs}"
        asked = (
            "no number of trials could exceed what is allowed"
            if needs is None
            else f"would need {count} trials"
        )
        return Judged(
            test,
            Verdict.INCONCLUSIVE,
            f"too few samples to tell about {_words(promise)}: {asked}",
            power,
            p,
            level,
            needs,
        )
    says = f"p = {_p(p)}: within what {_words(promise)} allows"
    return Judged(test, Verdict.NOT_REFUTED, says, power, p, level)


def _words(promise: Promise) -> str:
    return f"{promise.name} (epsilon {promise.epsilon:.4g}, delta {promise.delta:g})"


def _power(epsilon: float | None) -> str:
    if epsilon is None or epsilon == math.inf:
        return f"no epsilon would have been detected with probability {POWER:g}"
    return f"would have detected epsilon >= {epsilon:.3g} with probability {POWER:g}"


def _p(p: float) -> str:
    return f"{p:.2g}" if p >= 1e-12 else "below 1e-12"
