"""The estimators of `leakaudit.theory.bounds`, each as a test of one claim at level alpha."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from leakaudit.judging.selfcheck.mechanism import Law, Mechanism
from leakaudit.theory.bounds import empirical, one_run, reconstruction
from leakaudit.theory.bounds.approximate import approximate
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import Adjacency
from leakaudit.theory.bounds.joint import joint_test

Outcomes: TypeAlias = NDArray[np.int64]
CUT = (
    1 - 1e-9
)  # factor of the score with the record, so that rounding keeps it beyond the threshold
KAPPA = 0.1  # probability that a blind guess recovers the record: a choice
AT_ONCE = 1 << 21  # numbers per batch of draws, 16 MiB: a choice


@dataclass(frozen=True)
class Estimator:
    """A test of a claimed epsilon (Laplace noise, delta 0) or mu (Gaussian noise)."""

    name: str
    law: Law
    # (mechanism, runs, trials, generator) -> (runs, k) counts of every run
    observe: Callable[[Mechanism, int, int, np.random.Generator], Outcomes]
    # (counts of a run, trials, claimed, alpha) -> whether they contradict the claim at confidence 1
    # - alpha
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
        """Return the number of runs that refute the claim."""
        block = max(1, AT_ONCE // (2 * trials * mechanism.rounds))
        total = 0
        for at in range(0, runs, block):
            seen = self.observe(mechanism, min(block, runs - at), trials, generator)
            # Many runs have the same counts, and a test is slow: evaluate each outcome once.
            outcomes, often = np.unique(seen, axis=0, return_counts=True)
            for outcome, times in zip(outcomes.tolist(), often.tolist(), strict=True):
                if self.refutes(tuple(outcome), trials, claimed, alpha):
                    total += times
        return total


def _counts(
    mechanism: Mechanism, runs: int, trials: int, generator: np.random.Generator
) -> Outcomes:
    """Return true and false positives of equally many trials with and without the record.

    The threshold is fixed: in the middle for Gaussian noise; at the record's own value for Laplace
    noise, beyond which the likelihood ratio is the largest, e^epsilon.
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
    """Return correct guesses on the most certain half of `trials` canaries of one run."""
    there = generator.random((runs, trials)) < 0.5
    middle = sum(mechanism.ends) / 2
    far = mechanism.scores(there, generator) - middle
    guessed = _guessed(trials)
    surest = np.argpartition(-np.abs(far), guessed - 1, axis=1)[:, :guessed]
    right = np.take_along_axis((far > 0) == there, surest, 1)
    return np.asarray(right.sum(1, keepdims=True), np.int64)


def _guessed(trials: int) -> int:
    return max(1, trials // 2)


def _hits(mechanism: Mechanism, runs: int, trials: int, generator: np.random.Generator) -> Outcomes:
    """Return recoveries of the record, by the best test whose blind success rate is KAPPA."""
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
    claim = Gdp(claimed, Adjacency.ADD_REMOVE)
    return one_run.refutes(trials, _guessed(trials), seen[0], claim, alpha)


def _recovery(seen: tuple[int, ...], trials: int, claimed: float, alpha: float) -> bool:
    possible = reconstruction.success(Gdp(claimed, Adjacency.ADD_REMOVE), KAPPA)
    return empirical.lower(seen[0], trials, alpha) > possible


ESTIMATORS = (
    Estimator("epsilon, both error rates", "laplace", _counts, _epsilon),
    Estimator("mu, both error rates", "gaussian", _counts, _mu),
    Estimator("epsilon, one run", "laplace", _guesses, _one_run),
    Estimator("f-DP, one run", "gaussian", _guesses, _one_run_curve),
    Estimator("recovery", "gaussian", _hits, _recovery),
)
