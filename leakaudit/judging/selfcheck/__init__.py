"""Audit the auditor: error rates of the estimators on mechanisms with known privacy.

A true claim must be refuted in at most a fraction alpha of the runs, and one that a planted mistake
makes false in nine of ten. A rate is "ok" if the worse of its Clopper-Pearson limits is within its
own, with some slack, and "outside" if the better one is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from leakaudit._util.plain import encoded
from leakaudit.core.errors import LeakauditError
from leakaudit.core.progress import step
from leakaudit.core.trace import Json
from leakaudit.judging.selfcheck.estimators import ESTIMATORS, Estimator
from leakaudit.judging.selfcheck.mechanism import Law, Mechanism, composed
from leakaudit.theory.bounds.empirical import lower, upper

__all__ = [
    "ESTIMATORS",
    "PLANTED",
    "TRUE",
    "ErrorRate",
    "Estimator",
    "Law",
    "Mechanism",
    "check",
    "composed",
]

# All are choices. At alpha .05 the slack allows .075, and 1,000 runs with a rate of .05 have an
# upper limit of .063.
SLACK = 1.5  # largest allowed false-positive rate, in units of alpha
POWER = 0.9  # smallest allowed fraction of false claims that are refuted
MISS = 0.05  # probability that a limit of a rate is wrong
# Probability that a rate is called outside by chance: 9e-4 for all 45 rates of a check together.
# With 1,000 runs at alpha .05, a false-positive rate of .12 is found with probability .99.
WRONG = 2e-5
TRUE = ((0.0, 1), (0.5, 1), (1.0, 1), (2.0, 1), (0.5, 4))  # signal of a round, rounds
MANY = 10  # number of rounds, of which only one is accounted for
PLANTED = (
    "noise halved",
    "seed reused",
    "composition forgotten",
    "replace-one charged as add/remove",
)


Outcome: TypeAlias = Literal["ok", "outside", "too few runs"]


@dataclass(frozen=True)
class ErrorRate:
    """One estimator on one mechanism."""

    estimator: str
    law: Law
    planted: str  # the mistake that makes the claim false; empty if the claim is true
    rounds: int
    known: float  # exact mu or epsilon of all rounds
    claimed: float  # claimed mu or epsilon of all rounds
    refuted: int  # number of runs that refute the claim at level alpha
    runs: int
    alpha: float  # level of the estimator

    @property
    def rate(self) -> float:
        """The false-positive rate, or the power."""
        return self.refuted / self.runs

    @property
    def limits(self) -> tuple[float, float]:
        """Limits of the rate, each at confidence .95."""
        low = lower(self.refuted, self.runs, MISS)
        high = upper(self.refuted, self.runs, MISS)
        return low, high

    @property
    def allowed(self) -> float:
        """Smallest allowed power, or largest allowed false-positive rate."""
        if self.planted:
            return POWER
        return SLACK * self.alpha

    @property
    def ok(self) -> bool:
        """Whether even the worse limit of the rate is allowed."""
        low, high = self.limits
        if self.planted:
            return low >= self.allowed
        return high <= self.allowed

    @property
    def outcome(self) -> Outcome:
        """What the runs show about the rate."""
        if self.ok:
            return "ok"
        if self.planted:
            outside = upper(self.refuted, self.runs, WRONG) < POWER
        else:
            outside = lower(self.refuted, self.runs, WRONG) > self.alpha
        return "outside" if outside else "too few runs"

    def to_json(self) -> dict[str, Json]:
        """Return plain values."""
        low, high = self.limits
        return {
            "estimator": self.estimator,
            "noise": self.law,
            "planted": self.planted or None,
            "rounds": self.rounds,
            "known": encoded(self.known),
            "claimed": self.claimed,
            "refuted": self.refuted,
            "runs": self.runs,
            "rate": self.rate,
            "low": low,
            "high": high,
            "allowed": self.allowed,
            "ok": self.ok,
            "outcome": self.outcome,
        }


@dataclass(frozen=True)
class _Trial:
    estimator: Estimator
    planted: str  # the mistake; empty if the claim is true
    mechanism: Mechanism  # what is tested
    claimed: float  # its claimed mu or epsilon


def check(
    runs: int = 1000,
    trials: int = 1000,
    alpha: float = 0.05,
    seed: int = 0,
    estimators: Sequence[Estimator] = ESTIMATORS,
) -> Iterator[ErrorRate]:
    """Yield the rates of every estimator: true claims first, then planted mistakes."""
    if not (runs >= 1 and trials >= 1 and 0 < alpha < 1):
        raise LeakauditError(
            f"expected runs, trials >= 1 and 0 < alpha < 1, got {runs}, {trials} and {alpha}"
        )
    planned = [*_true(estimators), *_planted(estimators)]
    seeds = np.random.SeedSequence(seed).spawn(len(planned))
    for done, (trial, child) in enumerate(zip(planned, seeds, strict=True), 1):
        estimator = trial.estimator
        mechanism = trial.mechanism
        generator = np.random.default_rng(child)
        refuted = estimator.refuted(mechanism, trial.claimed, runs, trials, alpha, generator)
        step("estimators", done, len(planned))
        yield ErrorRate(
            estimator=estimator.name,
            law=estimator.law,
            planted=trial.planted,
            rounds=mechanism.rounds,
            known=mechanism.known,
            claimed=trial.claimed,
            refuted=refuted,
            runs=runs,
            alpha=alpha,
        )


def _true(estimators: Sequence[Estimator]) -> Iterator[_Trial]:
    for estimator in estimators:
        for signal, rounds in TRUE:
            honest = Mechanism(estimator.law, signal, rounds)
            yield _Trial(estimator, "", honest, honest.known)


def _planted(estimators: Sequence[Estimator]) -> Iterator[_Trial]:
    for estimator in estimators:
        for planted in PLANTED:
            mechanism, claimed = planting(planted, estimator.law)
            yield _Trial(estimator, planted, mechanism, claimed)


def planting(planted: str, law: Law, signal: float = 1.0) -> tuple[Mechanism, float]:
    """Return a mechanism with a mistake, and the claim that ignores the mistake."""
    if planted == "noise halved":
        return Mechanism(law, 2 * signal), signal
    if planted == "seed reused":
        return Mechanism(law, signal, 2, reused=True), composed(law, signal, 2)
    if planted == "composition forgotten":
        return Mechanism(law, signal, MANY), signal
    if planted == "replace-one charged as add/remove":
        return Mechanism(law, signal, opposite=True), signal
    raise LeakauditError(f"expected a mistake among {', '.join(PLANTED)}, got {planted!r}")
