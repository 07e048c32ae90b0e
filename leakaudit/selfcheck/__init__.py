"""Audit the auditor: false alarms and power of the estimators, on mechanisms with known privacy.

A true claim must be refuted in at most a share alpha of the runs, and a claim that a planted
mistake has made false in at least nine of ten. Both rates carry Clopper and Pearson's limits, and
both can fail: fewer runs or trials widen them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from leakaudit.bounds.empirical import lower, upper
from leakaudit.errors import LeakauditError
from leakaudit.progress import step
from leakaudit.selfcheck.estimators import ESTIMATORS, Estimator
from leakaudit.selfcheck.mechanism import Law, Mechanism, composed
from leakaudit.trace import Json

__all__ = [
    "ESTIMATORS",
    "PLANTED",
    "TRUE",
    "Estimator",
    "Law",
    "Mechanism",
    "Row",
    "check",
    "composed",
]

# All are choices. At alpha .05 the slack allows .075, and 1,000 runs with a rate of .05 have an
# upper limit of .063.
SLACK = 1.5  # a rate of false alarms may be up to this many alpha
POWER = 0.9  # least share of false claims that are refuted
MISS = 0.05  # chance that a limit of a rate is wrong
TRUE = ((0.0, 1), (0.5, 1), (1.0, 1), (2.0, 1), (0.5, 4))  # signal of a round, rounds
MANY = 10  # rounds of which only one is charged
PLANTED = (
    "noise halved",
    "seed reused",
    "composition forgotten",
    "replace-one charged as add/remove",
)


@dataclass(frozen=True)
class Row:
    """One estimator on one mechanism.

    Attributes:
        estimator: its name.
        law: of the noise.
        planted: the mistake that makes the claim false; empty if the claim is true.
        rounds: of the mechanism.
        known: exact mu or epsilon of all rounds.
        claimed: mu or epsilon that is claimed of all rounds.
        refuted: how many runs refute the claim at level alpha.
        runs: how many there are.
        alpha: level of the estimator.
    """

    estimator: str
    law: Law
    planted: str
    rounds: int
    known: float
    claimed: float
    refuted: int
    runs: int
    alpha: float

    @property
    def rate(self) -> float:
        """Share of the runs that refute the claim: false alarms, or the power."""
        return self.refuted / self.runs

    @property
    def limits(self) -> tuple[float, float]:
        """Lower and upper limit of the rate, each at confidence .95."""
        low = lower(self.refuted, self.runs, MISS)
        high = upper(self.refuted, self.runs, MISS)
        return low, high

    @property
    def allowed(self) -> float:
        """The least power, or the highest rate of false alarms."""
        if self.planted:
            return POWER
        return SLACK * self.alpha

    @property
    def ok(self) -> bool:
        """Whether the rate is allowed even at its worse limit."""
        low, high = self.limits
        if self.planted:
            return low >= self.allowed
        return high <= self.allowed

    def to_json(self) -> dict[str, Json]:
        """Return plain values; an infinite mu is the text ``inf``."""
        low, high = self.limits
        known: Json = self.known
        if self.known == float("inf"):
            known = "inf"
        return {
            "estimator": self.estimator,
            "noise": self.law,
            "planted": self.planted or None,
            "rounds": self.rounds,
            "known": known,
            "claimed": self.claimed,
            "refuted": self.refuted,
            "runs": self.runs,
            "rate": self.rate,
            "low": low,
            "high": high,
            "allowed": self.allowed,
            "ok": self.ok,
        }


@dataclass(frozen=True)
class _Trial:
    """One estimator on one mechanism, before it is run.

    Attributes:
        estimator: the test.
        planted: the mistake; empty if the claim is true.
        mechanism: what is tested.
        claimed: mu or epsilon that is claimed of it.
    """

    estimator: Estimator
    planted: str
    mechanism: Mechanism
    claimed: float


def check(
    runs: int = 1000,
    trials: int = 1000,
    alpha: float = 0.05,
    seed: int = 0,
    estimators: Sequence[Estimator] = ESTIMATORS,
) -> Iterator[Row]:
    """Yield the rates of every estimator: true claims first, then planted mistakes.

    Args:
        runs: audits in each row.
        trials: of one audit, as many with the record as without, or canaries of one run.
        alpha: level of the estimators, between 0 and 1.
        seed: of all draws.
        estimators: to test.

    Raises:
        LeakauditError: runs or trials are below 1, or alpha is not between 0 and 1.
    """
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
        yield Row(
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
    """Yield every estimator on true claims."""
    for estimator in estimators:
        for signal, rounds in TRUE:
            honest = Mechanism(estimator.law, signal, rounds)
            yield _Trial(estimator, "", honest, honest.known)


def _planted(estimators: Sequence[Estimator]) -> Iterator[_Trial]:
    """Yield every estimator on planted mistakes."""
    for estimator in estimators:
        for planted in PLANTED:
            mechanism, claimed = planting(planted, estimator.law)
            yield _Trial(estimator, planted, mechanism, claimed)


def planting(planted: str, law: Law, signal: float = 1.0) -> tuple[Mechanism, float]:
    """Return a mechanism with a mistake, and the claim of somebody who does not know about it.

    Args:
        planted: the mistake, one of `PLANTED`.
        law: of the noise.
        signal: claimed mu or epsilon of one round.

    Returns:
        The mechanism, and the claimed mu or epsilon of all rounds.

    Raises:
        LeakauditError: there is no such mistake.
    """
    if planted == "noise halved":
        return Mechanism(law, 2 * signal), signal
    if planted == "seed reused":
        return Mechanism(law, signal, 2, reused=True), composed(law, signal, 2)
    if planted == "composition forgotten":
        return Mechanism(law, signal, MANY), signal
    if planted == "replace-one charged as add/remove":
        return Mechanism(law, signal, opposite=True), signal
    raise LeakauditError(f"expected a mistake among {', '.join(PLANTED)}, got {planted!r}")
