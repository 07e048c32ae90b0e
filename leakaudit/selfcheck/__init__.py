"""The auditor audited: false alarms and power of the estimators on mechanisms of known privacy.

A true claim must be refuted in at most a share alpha of the runs, and a claim that a planted
mistake has made false in at least nine of ten. Both rates carry Clopper and Pearson's limits, and
both can fail: fewer runs or trials widen them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

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

SLACK = 1.5  # a rate of false alarms up to 1.5 alpha passes, so that 1,000 runs can tell; a choice
POWER = 0.9  # share of the runs that find a planted mistake; a choice
MISS = 0.05  # chance that a limit of a rate is wrong
TRUE = ((0.0, 1), (0.5, 1), (1.0, 1), (2.0, 1), (0.5, 4))  # signal of a round, rounds
MANY = 10  # rounds of which one is charged
PLANTED = (
    "noise halved",
    "seed re-used",
    "composition forgotten",
    "replace-one charged as add/remove",
)


@dataclass(frozen=True)
class Row:
    """One estimator on one mechanism.

    Attributes:
        estimator: Its name.
        law: Of the noise.
        planted: The mistake that makes the claim false, empty if the claim is true.
        rounds: Of the mechanism.
        known: Its mu or epsilon, of all rounds.
        claimed: The mu or epsilon that was tested.
        refuted: Number of runs in which the claim was refuted.
        runs: Number of all runs.
        alpha: Level of each test.
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
        """Share of the runs that refute the claim: of false alarms, or the power."""
        return self.refuted / self.runs

    @property
    def limits(self) -> tuple[float, float]:
        """Lower and upper limit of the rate, each at confidence .95."""
        return lower(self.refuted, self.runs, MISS), upper(self.refuted, self.runs, MISS)

    @property
    def allowed(self) -> float:
        """The least power, or the most false alarms."""
        return POWER if self.planted else SLACK * self.alpha

    @property
    def ok(self) -> bool:
        """Whether the limit of the rate on the bad side is allowed."""
        low, high = self.limits
        if self.planted:
            return low >= self.allowed
        return high <= self.allowed

    def to_json(self) -> dict[str, Json]:
        """Return plain values; a mu of infinity is the text ``inf``."""
        low, high = self.limits
        known = "inf" if self.known == float("inf") else self.known
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


def check(
    runs: int = 1000,
    trials: int = 1000,
    alpha: float = 0.05,
    seed: int = 0,
    estimators: Sequence[Estimator] = ESTIMATORS,
) -> Iterator[Row]:
    """Yield the rates of every estimator: on true claims first, then on planted mistakes.

    Args:
        runs: Audits of each row.
        trials: Trials of one audit, with the record and as many without, or canaries of one run.
        alpha: Level of each test.
        seed: Of all draws.
        estimators: What is tested.

    Raises:
        LeakauditError: A number is below 1, or alpha is not between 0 and 1.
    """
    if not (runs >= 1 and trials >= 1 and 0 < alpha < 1):
        raise LeakauditError(
            f"expected runs, trials >= 1 and 0 < alpha < 1, got {runs}, {trials} and {alpha}"
        )
    total = len(estimators) * (len(TRUE) + len(PLANTED))
    done = 0
    generators = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(total))

    def row(estimator: Estimator, planted: str, mechanism: Mechanism, claimed: float) -> Row:
        nonlocal done
        refuted = estimator.refuted(mechanism, claimed, runs, trials, alpha, next(generators))
        done += 1
        step("estimators", done, total)
        return Row(
            estimator.name,
            estimator.law,
            planted,
            mechanism.rounds,
            mechanism.known,
            claimed,
            refuted,
            runs,
            alpha,
        )

    for estimator, (signal, rounds) in product(estimators, TRUE):
        honest = Mechanism(estimator.law, signal, rounds)
        yield row(estimator, "", honest, honest.known)
    for estimator, planted in product(estimators, PLANTED):
        yield row(estimator, planted, *planting(planted, estimator.law))


def planting(planted: str, law: Law, signal: float = 1.0) -> tuple[Mechanism, float]:
    """Return a mechanism with a mistake, and what is claimed of it by someone who does not know.

    Args:
        planted: One of `PLANTED`.
        law: Of the noise.
        signal: The claimed mu or epsilon of a round.

    Raises:
        LeakauditError: There is no such mistake.
    """
    if planted == "noise halved":
        return Mechanism(law, 2 * signal), signal
    if planted == "seed re-used":
        return Mechanism(law, signal, 2, reused=True), composed(law, signal, 2)
    if planted == "composition forgotten":
        return Mechanism(law, signal, MANY), signal
    if planted == "replace-one charged as add/remove":
        return Mechanism(law, signal, opposite=True), signal
    raise LeakauditError(f"expected a mistake among {', '.join(PLANTED)}, got {planted!r}")
