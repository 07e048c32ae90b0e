"""The canary test keeps its level and uses it up: all outcomes are summed here, with none of the implementation's own sums."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import binom, norm

from leakaudit.judging.auditing.canary import counted
from leakaudit.judging.auditing.evidence import Canary, OneRun, Successes, detects
from leakaudit.judging.auditing.promise import Promise
from leakaudit.judging.auditing.replays import Replays
from leakaudit.judging.selfcheck.estimators import ESTIMATORS
from leakaudit.theory.bounds import gaussian
from leakaudit.theory.bounds.empirical import Counts
from leakaudit.theory.bounds.guarantee import Adjacency
from leakaudit.theory.bounds.joint import joint_test, perfect

DELTA = 1e-5
Floats = NDArray[np.float64]


def of_mu(mu: float) -> Promise:
    return Promise(
        "a view", gaussian.epsilon(DELTA, mu), DELTA, gaussian.Gdp(mu, Adjacency.REPLACE)
    )


def of_epsilon(epsilon: float, delta: float = DELTA) -> Promise:
    return Promise("a claim", epsilon, delta)


def boundary(promise: Promise) -> tuple[Floats, Floats]:
    """False positive rates, and the greatest true positive rates there, from the definitions: 1,200 points, dense at both ends."""
    few = np.geomspace(1e-7, 0.5, 400)
    if promise.mu is not None:
        q = np.concatenate([few, 1 - few, norm.sf(np.linspace(-4, 4 + promise.mu, 400))])
        return q, norm.sf(norm.isf(q) - promise.mu)
    steep = math.exp(promise.epsilon)
    corner = (1 - promise.delta) / (1 + steep)
    q = np.concatenate([few, 1 - few, corner * np.linspace(0, 2, 401).clip(0, 1 / corner)])
    return q, np.minimum(
        np.minimum(steep * q + promise.delta, 1 - (1 - promise.delta - q) / steep), 1.0
    )


class Null:
    """Chances of all counts along the boundary of what a promise allows."""

    def __init__(self, promise: Promise, positives: int, negatives: int) -> None:
        q, p = boundary(promise)
        self.there = binom.pmf(np.arange(positives + 1), positives, p[:, None])
        self.gone = binom.pmf(np.arange(negatives + 1), negatives, q[:, None])

    def level(self, rejected: NDArray[np.bool_]) -> float:
        """Greatest chance of a rejected outcome (x, y)."""
        return float(((self.there @ rejected.astype(float)) * self.gone).sum(1).max())


def p_values(promise: Promise, positives: int, negatives: int) -> Floats:
    """The p-value of every outcome (n_1 + 1, n_0 + 1), each asked for by itself."""
    found = np.ones((positives + 1, negatives + 1))
    for x, y in np.ndindex(*found.shape):
        found[x, y] = Canary(Counts(x, positives, y, negatives)).p_value(promise)
    return found


def region(promise: Promise, positives: int, negatives: int, alpha: float) -> NDArray[np.bool_]:
    """The same as the implementation's own table has them."""
    least = joint_test(promise.guarantee, positives, negatives).least_hits(alpha)
    return np.arange(positives + 1)[:, None] >= least[None, :]


PROMISES = [
    of_mu(0.0),
    of_mu(0.3),
    of_mu(1.0),
    of_mu(2.0),
    of_epsilon(0.0),
    of_epsilon(0.5),
    of_epsilon(1.0),
    of_epsilon(2.0, 0.0),
]
# 150 counted replays of 200, with an even and an uneven draw of who was there; half as many, and twice as many
USUAL = [(75, 75, 0.05), (75, 75, 0.01), (64, 86, 0.01), (38, 37, 0.05), (150, 150, 0.05)]


@pytest.mark.parametrize(("positives", "negatives", "alpha"), USUAL)
def test_the_level_is_between_six_tenths_of_alpha_and_alpha(
    positives: int, negatives: int, alpha: float
) -> None:
    levels = [
        Null(promise, positives, negatives).level(region(promise, positives, negatives, alpha))
        for promise in PROMISES
    ]
    assert max(levels) <= alpha
    assert min(levels) >= 0.6 * alpha, [f"{level:.4f}" for level in levels]


@pytest.mark.parametrize("promise", [of_mu(0.5), of_epsilon(1.0)])
@pytest.mark.parametrize("trials", [(2, 2), (5, 3), (12, 10)], ids=str)
def test_every_p_value_is_one(trials: tuple[int, int], promise: Promise) -> None:
    """P[p <= a] <= a for every a that occurs, and the table of `least_hits` holds the outcomes whose p-value is at most alpha."""
    values, null = p_values(promise, *trials), Null(promise, *trials)
    for a in np.unique(values[values < 0.5]):
        assert null.level(values <= a) <= a
    for alpha in (0.2, 0.05, 0.003):
        assert (region(promise, *trials, alpha) == (values <= alpha)).all()
    assert (
        np.diff(values, axis=0) <= 1e-12
    ).all()  # more true positives never speak for the promise
    assert (np.diff(values, axis=1) >= -1e-12).all()


def test_random_promises_and_trials_keep_their_level(
    fresh_seed: int, fresh_cases: Callable[[int], int]
) -> None:
    random = np.random.default_rng(fresh_seed)
    for case in range(fresh_cases(6)):
        positives, negatives = (int(n) for n in random.integers(1, 60, 2))
        mu, epsilon, delta = (
            random.exponential(1.5),
            random.exponential(1.5),
            float(10 ** random.uniform(-9, -0.5)),
        )
        promise = of_mu(float(mu)) if case % 2 else of_epsilon(float(epsilon), delta)
        alpha = float(10 ** random.uniform(-4, -0.5))
        found = Null(promise, positives, negatives).level(
            region(promise, positives, negatives, alpha)
        )
        assert found <= alpha, (fresh_seed, case, positives, negatives, promise, alpha, found)


@pytest.mark.parametrize("promise", [of_mu(0.5), of_mu(3.0), of_epsilon(1.0), of_epsilon(4.0, 0.0)])
@pytest.mark.parametrize(
    ("positives", "negatives"), [(1, 1), (20, 30), (400, 90), (100_000, 100_000)]
)
def test_a_perfect_attack_has_the_p_value_of_its_definition(
    promise: Promise, positives: int, negatives: int
) -> None:
    """sup over the boundary of p^n1 (1 - q)^n0, rounded up by no more than a millionth."""
    q, p = boundary(promise)
    with np.errstate(divide="ignore"):
        near = math.exp(float((positives * np.log(p) + negatives * np.log1p(-q)).max()))
    found = perfect(promise.guarantee, positives, negatives)
    assert found >= near
    if promise.mu is not None and positives == negatives:
        assert found == pytest.approx(
            norm.cdf(promise.mu / 2) ** (2 * positives), rel=1e-6 if positives < 1000 else 0.01
        )
    if positives < 1000:
        assert found <= 1.02 * near


@pytest.mark.parametrize(
    ("trials", "promise"),
    [((100, 100), of_mu(0.5)), ((75, 75), of_epsilon(1.0)), ((200, 200), of_mu(1.0))],
)
def test_the_power_is_that_of_its_region_at_the_thresholds_that_pilots_choose(
    trials: tuple[int, int], promise: Promise
) -> None:
    """No power exceeds that of the best threshold, and the choice of a pilot costs little of it: summed over all outcomes."""
    alpha = 0.05
    evidence = Canary(Counts(0, trials[0], 0, trials[1]))
    refuted = region(promise, *trials, alpha)
    for mu in (0.7, 1.5, 2.5):
        best = 0.0
        for cut in np.linspace(-3, 3, 61):
            there = binom.pmf(np.arange(trials[0] + 1), trials[0], norm.cdf(mu / 2 - cut))
            gone = binom.pmf(np.arange(trials[1] + 1), trials[1], norm.cdf(-mu / 2 - cut))
            best = max(best, float(there @ refuted @ gone))
        said = evidence.power(promise, alpha, mu)
        assert best - 0.12 <= said <= best + 1e-3


@pytest.mark.parametrize(
    "promise",
    [
        pytest.param(of_mu(1.0), marks=pytest.mark.slow, id="mu"),
        pytest.param(of_epsilon(1.0), id="epsilon"),
    ],
)
def test_whole_audits_refute_as_often_as_their_power_says(promise: Promise) -> None:
    """200 replays, a quarter of them the pilot, at the mu that would be detected with probability .8."""
    alpha, replays, runs = 0.05, 200, 80
    found = detects(Canary(Counts(0, 75, 0, 75)), promise, alpha)
    assert found is not None
    mu = gaussian.least_mu(found, DELTA)
    random = np.random.default_rng(0)
    refuted = 0
    for _ in range(runs):
        drawn = random.integers(0, 2, replays)
        ratio = random.normal(np.where(drawn == 0, 1, -1) * mu**2 / 2, mu)
        scores = torch.stack([torch.tensor(ratio), torch.zeros(replays, dtype=torch.float64)], 1)
        counts = counted(Replays(torch.tensor(drawn), scores), promise, alpha)
        refuted += Canary(counts).p_value(promise) <= alpha
    assert refuted / runs == pytest.approx(0.8, abs=0.15)


def test_the_pilot_is_not_counted_and_chooses_without_the_rest() -> None:
    """Whatever comes after the first quarter leaves the threshold as it was."""
    random = np.random.default_rng(1)
    drawn = torch.tensor(random.integers(0, 2, 100))
    ratio = torch.tensor(random.normal(np.where(drawn == 0, 1.0, -1.0), 1.0))
    for promise in (None, of_mu(0.5), of_epsilon(0.5)):
        for rest in (torch.full((75,), -1e9), torch.full((75,), 1e9), torch.full((75,), math.nan)):
            scores = torch.stack(
                [torch.cat([ratio[:25], rest.double()]), torch.zeros(100, dtype=torch.float64)], 1
            )
            found = counted(Replays(drawn, scores), promise, 0.05)
            assert found.positives + found.negatives == 75
            present = int(bool(rest[0] > 0))
            assert (found.true_positives, found.false_positives) == (
                present * found.positives,
                present * found.negatives,
            )


def test_selfcheck_refutes_by_the_same_test() -> None:
    by_name = {estimator.name: estimator for estimator in ESTIMATORS}
    for name, promise in (
        ("mu, both error rates", of_mu(1.0)),
        ("epsilon, both error rates", of_epsilon(1.0, 0.0)),
    ):
        value = promise.epsilon if promise.mu is None else promise.mu
        for x in range(21):
            for y in range(21):
                refuted = Canary(Counts(x, 20, y, 20)).p_value(promise) <= 0.05
                assert by_name[name].refutes((x, y), 20, value, 0.05) is refuted


def test_other_evidence_keeps_its_level_too() -> None:
    """Right guesses of one run at randomised response, and recoveries at their ceiling, each outcome summed."""
    for guesses, epsilon in ((5, 0.0), (20, 1.0), (50, 2.0)):
        values = np.array(
            [
                OneRun(2 * guesses, guesses, v).p_value(of_epsilon(epsilon, 0.0))
                for v in range(guesses + 1)
            ]
        )
        chance = binom.pmf(np.arange(guesses + 1), guesses, 1 / (1 + math.exp(-epsilon)))
        assert float(chance[values <= 0.05].sum()) <= 0.05
    for trials, kappa, mu in ((10, 0.1, 1.0), (100, 0.01, 3.0)):
        values = np.array(
            [Successes(v, trials, kappa).p_value(of_mu(mu)) for v in range(trials + 1)]
        )
        chance = binom.pmf(np.arange(trials + 1), trials, norm.cdf(norm.ppf(kappa) + mu))
        assert float(chance[values <= 0.05].sum()) <= 0.05
