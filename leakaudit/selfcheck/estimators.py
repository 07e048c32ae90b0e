"""The estimators of `leakaudit.bounds`, each as a test of one claim at level alpha.

They are those of `joint`, `one_run` and `reconstruction`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from leakaudit.bounds import empirical, one_run, reconstruction
from leakaudit.bounds.approximate import approximate
from leakaudit.bounds.gaussian import Gdp
from leakaudit.bounds.guarantee import Adjacency
from leakaudit.bounds.joint import joint_test
from leakaudit.selfcheck.mechanism import Law, Mechanism

Outcomes: TypeAlias = NDArray[np.int64]
CUT = 1 - 1e-9  # of the score with the record: a threshold that rounding does not reach
KAPPA = 0.1  # chance of the blind guess in a recovery
AT_ONCE = 1 << 21  # numbers that are drawn together


@dataclass(frozen=True)
class Estimator:
    """A test of a claimed epsilon (Laplace noise, delta 0) or mu (Gaussian noise).

    Attributes:
        name: What a reader calls it.
        law: Of the noise.
        observe: From a mechanism, runs, trials and a generator to the counts of every run
            (runs, k).
        refutes: From the counts of a run, trials, the claim and alpha to whether they contradict
            the claim at confidence 1 - alpha.
    """

    name: str
    law: Law
    observe: Callable[[Mechanism, int, int, np.random.Generator], Outcomes]
    refutes: Callable[[tuple[int, ...], int, float, float], bool]

    def refuted(
        self,
        mechanism: Mechanism,
        claimed: float,
        runs: int,
        trials: int,
        alpha: float,
        generator: np.random.Generator,
    ) -> int:
        """Return in how many of the runs the claim is refuted.

        Args:
            mechanism: What is audited.
            claimed: Its claimed mu or epsilon.
            runs: Number of audits.
            trials: Of each audit.
            alpha: Level of each test.
            generator: Source of randomness.
        """
        block = max(1, AT_ONCE // (2 * trials * mechanism.rounds))
        total = 0
        for at in range(0, runs, block):
            seen = self.observe(mechanism, min(block, runs - at), trials, generator)
            outcomes, often = np.unique(seen, axis=0, return_counts=True)
            for outcome, times in zip(outcomes.tolist(), often.tolist(), strict=True):
                total += times * self.refutes(tuple(outcome), trials, claimed, alpha)
        return total


def _counts(
    mechanism: Mechanism, runs: int, trials: int, generator: np.random.Generator
) -> Outcomes:
    """Count true and false positives of `trials` trials with the record and as many without.

    The threshold is fixed beforehand: in the middle for Gaussian noise; at the record's own value
    for Laplace noise, beyond which the likelihood ratio is the largest, e^epsilon.
    """
    absent, present = mechanism.ends
    if mechanism.law == "gaussian":
        level = (absent + present) / 2
    else:
        level = absent + (present - absent) * CUT
    found = []
    for there in (True, False):
        scores = mechanism.scores(np.full((runs, trials), there), generator)
        found.append((scores >= level).sum(1))
    return np.asarray(np.stack(found, 1), np.int64)


def _guesses(
    mechanism: Mechanism, runs: int, trials: int, generator: np.random.Generator
) -> Outcomes:
    """Count right guesses among the surest half of `trials` canaries of one run.

    Each is there by its own fair coin.
    """
    there = generator.random((runs, trials)) < 0.5
    far = mechanism.scores(there, generator) - sum(mechanism.ends) / 2
    surest = np.argpartition(-np.abs(far), _guessed(trials) - 1, axis=1)[:, : _guessed(trials)]
    right = np.take_along_axis((far > 0) == there, surest, 1)
    return np.asarray(right.sum(1, keepdims=True), np.int64)


def _guessed(trials: int) -> int:
    return max(1, trials // 2)


def _hits(mechanism: Mechanism, runs: int, trials: int, generator: np.random.Generator) -> Outcomes:
    """Count recoveries of the record, by the best test whose blind success rate is KAPPA."""
    spread = np.sqrt(mechanism.rounds)
    level = mechanism.ends[0] - spread * float(ndtri(KAPPA))
    found = mechanism.scores(np.ones((runs, trials), bool), generator) >= level
    return np.asarray(found.sum(1, keepdims=True), np.int64)


def _epsilon(seen: tuple[int, ...], trials: int, claimed: float, alpha: float) -> bool:
    claim = approximate(claimed, 0.0, Adjacency.ADD_REMOVE)
    return joint_test(claim, trials, trials).refutes(seen[0], seen[1], alpha)


def _mu(seen: tuple[int, ...], trials: int, claimed: float, alpha: float) -> bool:
    claim = Gdp(claimed, Adjacency.ADD_REMOVE)
    return joint_test(claim, trials, trials).refutes(seen[0], seen[1], alpha)


def _one_run(seen: tuple[int, ...], trials: int, claimed: float, alpha: float) -> bool:
    return one_run.p_value(trials, _guessed(trials), seen[0], claimed, 0.0) <= alpha


def _one_run_curve(seen: tuple[int, ...], trials: int, claimed: float, alpha: float) -> bool:
    return one_run.refutes(
        trials, _guessed(trials), seen[0], Gdp(claimed, Adjacency.ADD_REMOVE), alpha
    )


def _recovery(seen: tuple[int, ...], trials: int, claimed: float, alpha: float) -> bool:
    return empirical.lower(seen[0], trials, alpha) > reconstruction.success(
        Gdp(claimed, Adjacency.ADD_REMOVE), KAPPA
    )


ESTIMATORS = (
    Estimator("epsilon, both error rates", "laplace", _counts, _epsilon),
    Estimator("mu, both error rates", "gaussian", _counts, _mu),
    Estimator("epsilon, one run", "laplace", _guesses, _one_run),
    Estimator("f-DP, one run", "gaussian", _guesses, _one_run_curve),
    Estimator("recovery", "gaussian", _hits, _recovery),
)
