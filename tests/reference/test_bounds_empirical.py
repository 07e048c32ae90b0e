"""Empirical limits: how often they raise a false alarm, by exact sums over all outcomes, and what they find."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom, norm

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds import one_run
from leakaudit.theory.bounds.approximate import approximate
from leakaudit.theory.bounds.composition import repeat
from leakaudit.theory.bounds.empirical import (
    Counts,
    at_least,
    certifiable,
    credible_epsilon,
    detection,
    epsilon_lower,
    lower,
    mu_lower,
    trials_for,
    upper,
)
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import Adjacency
from leakaudit.theory.bounds.pld import subsampled_gaussian

ONE, N = Adjacency.ADD_REMOVE, 14


@pytest.mark.parametrize("alpha", [0.05, 0.2])
@pytest.mark.parametrize("rate", [0.0, 0.07, 0.5, 0.93, 1.0])
def test_an_interval_misses_no_more_often_than_it_says(rate: float, alpha: float) -> None:
    chance = binom.pmf(np.arange(31), 30, rate)
    assert sum(chance[k] for k in range(31) if lower(k, 30, alpha) > rate) <= alpha
    assert sum(chance[k] for k in range(31) if upper(k, 30, alpha) < rate) <= alpha


def false_alarms(tpr: float, fpr: float, alarm: object) -> float:
    """Exact chance over both binomials."""
    there, gone = binom.pmf(np.arange(N + 1), N, tpr), binom.pmf(np.arange(N + 1), N, fpr)
    return sum(
        there[k] * gone[j]
        for k in range(N + 1)
        for j in range(N + 1)
        if alarm(Counts(k, N, j, N))  # type: ignore[operator]
    )


@pytest.mark.parametrize("eps", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("alpha", [0.05, 0.3])
def test_epsilon_and_mu_raise_no_more_false_alarms_than_alpha(eps: float, alpha: float) -> None:
    tpr = float(expit(eps))
    assert false_alarms(tpr, 1 - tpr, lambda c: epsilon_lower(c, 0.0, alpha) > eps + 1e-12) <= alpha
    assert (
        false_alarms(tpr, 1 - tpr, lambda c: epsilon_lower(c, 0.0, alpha, both=True) > eps + 1e-12)
        <= alpha
    )
    for fpr in (0.05, 0.4):
        assert (
            false_alarms(Gdp(eps, ONE).power(fpr), fpr, lambda c: mu_lower(c, alpha) > eps + 1e-12)
            <= alpha
        )


def test_the_ratio_without_an_interval_finds_epsilon_where_there_is_none() -> None:
    """The largest log(TPR / FPR) over thresholds on pure noise; the limits here find nothing in such data."""
    draw, tops = np.random.default_rng(0), []
    there, gone = draw.normal(size=(200, 500)), draw.normal(size=(200, 500))
    for a, b in zip(there, gone, strict=True):
        levels = np.concatenate([a, b])
        tpr, fpr = (a[:, None] >= levels).mean(0), (b[:, None] >= levels).mean(0)
        seen = (tpr > 0) & (fpr > 0)
        tops.append(np.log(tpr[seen] / fpr[seen]).max())
    assert 0.6 < np.mean(tops) < 0.9
    fixed = [
        epsilon_lower(Counts(int((a > 0).sum()), 500, int((b > 0).sum()), 500), 0.0, 0.05)
        for a, b in zip(there, gone, strict=True)
    ]
    assert np.mean(np.array(fixed) > 0) <= 0.05


def test_credible_is_larger_and_says_so_only_by_its_name() -> None:
    for c in (Counts(90, 100, 10, 100), Counts(60, 100, 20, 100), Counts(100, 100, 0, 100)):
        assert credible_epsilon(c, 1e-5, 0.05) > epsilon_lower(c, 1e-5, 0.05)
    assert credible_epsilon(Counts(0, 0, 0, 0), 0.0, 0.05) < 0.5


def test_no_trials_and_perfect_attacks() -> None:
    nothing, perfect = Counts(0, 0, 0, 0), Counts(50, 50, 0, 50)
    assert (lower(0, 0, 0.05), upper(0, 0, 0.05)) == (0, 1)
    for found in (
        epsilon_lower(nothing, 0, 0.05),
        mu_lower(nothing, 0.05),
        epsilon_lower(Counts(9, 9, 0, 0), 0, 0.05),
        mu_lower(Counts(0, 0, 0, 9), 0.05),
    ):
        assert found == 0
    assert (
        epsilon_lower(perfect, 0.0, 0.05)
        == certifiable(50, 0.0, 0.05)
        == pytest.approx(math.log(50 / 3.9), abs=0.1)
    )
    assert mu_lower(perfect, 0.05) > 2
    assert epsilon_lower(perfect, 1.0, 0.05) == 0
    assert certifiable(1000, 1e-5, 0.05) == pytest.approx(5.60, abs=5e-3)
    assert (
        mu_lower(Counts(0, 50, 50, 50), 0.05)
        == epsilon_lower(Counts(0, 50, 50, 50), 0.0, 0.05)
        == 0
    )
    assert epsilon_lower(Counts(0, 50, 50, 50), 0.0, 0.05, both=True) == 0


@pytest.mark.parametrize("trials", [0, 1, 7, 300])
@pytest.mark.parametrize("rate", [0.0, 1e-5, 0.3, 1.0])
def test_binomial_tails_are_those_of_scipy(trials: int, rate: float) -> None:
    k = np.arange(-1, trials + 3)
    assert np.array_equal(at_least(k, trials, rate), binom.sf(k - 1, trials, rate))
    if trials > 0:
        critical = int(binom.isf(0.05, trials, rate)) + 1
        power = 0.0 if rate == 1 else binom.sf(critical - 1, trials, 0.6)
        assert detection(trials, rate, 0.6, 0.05) == power


def test_how_many_trials_are_enough() -> None:
    n = trials_for(2.0, 1e-5, 0.05)
    assert certifiable(n - 1, 1e-5, 0.05) < 2.0 <= certifiable(n, 1e-5, 0.05)
    for bound, rate, about in (
        (0.1, 0.2, 100),
        (0.39, 0.5, 200),
        (0.05, 0.1, 200),
        (0.01, 0.05, 200),
    ):
        assert detection(about, bound, rate, 0.05) >= 0.8
    chance = binom.pmf(np.arange(101), 100, 0.2)
    assert detection(100, 0.1, 0.2, 0.05) == pytest.approx(
        sum(chance[k] for k in range(101) if lower(k, 100, 0.05) > 0.1)
    )
    assert detection(100, 0.1, 0.1, 0.05) <= 0.05
    assert detection(0, 0.1, 0.9, 0.05) == detection(100, 1.0, 1.0, 0.05) == 0
    assert detection(5, 0.0, 1.0, 0.05) == 1
    with pytest.raises(LeakauditError, match="trials can prove"):
        trials_for(20.0, 1e-5, 0.05)


@pytest.mark.parametrize("eps", [0.0, 0.7, 2.0])
def test_one_run_refutes_the_truth_no_more_often_than_alpha(eps: float) -> None:
    """Randomised response on each coin: v ~ Binomial(r, e^eps / (1 + e^eps)), the very worst case of epsilon-DP."""
    r, alpha = 40, 0.1
    chance = binom.pmf(np.arange(r + 1), r, expit(eps))
    assert (
        sum(chance[v] for v in range(r + 1) if one_run.p_value(r, r, v, eps, 0.0) <= alpha) <= alpha
    )
    claim = approximate(eps, 0.0, ONE)
    assert sum(chance[v] for v in range(r + 1) if one_run.refutes(r, r, v, claim, alpha)) <= alpha


@pytest.mark.parametrize("mu", [0.3, 1.0])
def test_one_run_of_gaussian_canaries_refutes_less_and_more(mu: float) -> None:
    """Orthogonal canaries in normal noise: a guess of all is right with Phi(mu/2). A quarter of mu is refuted, mu itself is not."""
    n, alpha = 400, 0.05
    chance = binom.pmf(np.arange(n + 1), n, Gdp(mu / 2, ONE).power(0.5))
    top = [v for v in range(n + 1) if one_run.refutes(n, n, v, Gdp(mu, ONE), alpha)]
    assert chance[top].sum() <= alpha
    if mu == 1.0:
        assert (
            sum(
                chance[v] for v in range(n + 1) if one_run.refutes(n, n, v, Gdp(mu / 4, ONE), alpha)
            )
            > 0.8
        )


def test_a_claim_as_a_whole_is_refuted_where_its_epsilon_is() -> None:
    m, r, v = 1000, 100, 100
    mu = one_run.mu_lower(m, r, v, 0.05)
    assert one_run.refutes(m, r, v, Gdp(mu * 0.99, ONE), 0.05)
    assert not one_run.refutes(m, r, v, Gdp(mu * 1.01, ONE), 0.05)
    assert one_run.refutes(m, r, v, approximate(1.0, 1e-6, ONE), 0.05)
    assert not one_run.refutes(m, r, v, approximate(8.0, 1e-6, ONE), 0.05)


@pytest.mark.parametrize(
    ("sigma", "guesses", "theory", "printed"),
    [(0.5, 9051, 9.99, 4.99), (1, 1577, 4.37, 2.61), (2, 819, 1.99, 1.33), (4, 1577, 0.92, 0.61)],
)
def test_one_run_of_the_gaussian_mechanism_as_printed(
    sigma: float, guesses: int, theory: float, printed: float
) -> None:
    """Mahloujifar, Melis, Chaudhuri 2025, Table 1: a canary shows x = +-1/2 + sigma n, the largest |x| of 100,000 are guessed."""
    m = 100_000
    low, high = 0.0, 50.0
    for _ in range(80):
        level = (low + high) / 2
        share = norm.sf((level - 0.5) / sigma) + norm.sf((level + 0.5) / sigma)
        low, high = (level, high) if share > guesses / m else (low, level)
    right = int(norm.sf((low - 0.5) / sigma) * m)
    assert Gdp(1 / sigma, ONE).epsilon(1e-5) == pytest.approx(theory, abs=0.02)
    assert one_run.epsilon_lower(m, guesses, right, 1e-5, 0.05) == pytest.approx(printed, abs=0.15)
    whole = Gdp(one_run.mu_lower(m, guesses, right, 0.05), ONE).epsilon(1e-5)
    assert printed < whole < theory


def test_a_whole_curve_of_subsampled_training_is_refuted_or_not() -> None:
    pytest.importorskip("dp_accounting")
    claim = repeat(subsampled_gaussian(1.0, 0.1, ONE), 50)
    assert (
        one_run.refutes(1000, 100, 100, claim, 0.05)
        is one_run.refutes(1000, 100, 100, Gdp(0.9, ONE), 0.05)
        is True
    )
    assert not one_run.refutes(1000, 100, 75, claim, 0.05)


def test_one_run_ends() -> None:
    for m, r, v in ((0, 0, 0), (10, 0, 0), (10, 10, 0), (10, 10, 5)):
        if m:
            assert one_run.epsilon_lower(m, r, v, 0.0, 0.05) == one_run.mu_lower(m, r, v, 0.05) == 0
        assert one_run.p_value(m, r, v, 0.0, 0.0) > 0.05
    assert one_run.p_value(10, 10, 10, 0.0, 1.0) == 1
    assert one_run.p_value(10, 10, 10, 0.0, 0.0) == pytest.approx(2**-10)
    assert one_run.p_value(10, 10, 10, 800.0, 0.0) == 1
    assert one_run.epsilon_lower(0, 0, 0, 0.0, 0.05) == one_run.mu_lower(0, 0, 0, 0.05) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Counts(2, 1, 0, 0),
        lambda: Counts(0, 0, -1, 0),
        lambda: lower(2, 1, 0.05),
        lambda: upper(1, 2, 0.0),
        lambda: upper(1, 2, math.nan),
        lambda: epsilon_lower(Counts(1, 2, 0, 2), math.nan, 0.05),
        lambda: epsilon_lower(Counts(1, 2, 0, 2), 0.0, 1.5),
        lambda: mu_lower(Counts(1, 2, 0, 2), 0.0),
        lambda: credible_epsilon(Counts(1, 2, 0, 2), 2.0, 0.05),
        lambda: detection(10, math.nan, 0.5, 0.05),
        lambda: one_run.p_value(10, 11, 0, 1.0, 0.0),
        lambda: one_run.p_value(10, 10, 5, math.nan, 0.0),
        lambda: one_run.epsilon_lower(10, 10, 5, 0.0, 0.0),
        lambda: one_run.mu_lower(10, 5, 6, 0.05),
    ],
)
def test_what_means_nothing_is_refused(wrong: object) -> None:
    with pytest.raises(LeakauditError, match="expected"):
        wrong()  # type: ignore[operator]
