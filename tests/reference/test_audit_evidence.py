"""p-values, trials and power of an audit's evidence against independent computations, and the false alarms of whole families."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest, norm

from leakaudit.core.adversary import Adversary
from leakaudit.core.verdict import Verdict
from leakaudit.judging.auditing.evidence import Canary, OneRun, Successes, TrialCounts, detects
from leakaudit.judging.auditing.judge import Test, judge
from leakaudit.judging.auditing.promise import Promise
from leakaudit.theory.bounds import empirical, gaussian, one_run
from leakaudit.theory.bounds.empirical import Counts
from leakaudit.theory.bounds.guarantee import Adjacency

DELTA = 1e-5
PURE = Promise("a claim", 1.0, DELTA)
GAUSS = Promise("a view", gaussian.epsilon(DELTA, 0.5), DELTA, gaussian.Gdp(0.5, Adjacency.REPLACE))
HUGE = Promise("nothing", math.inf, DELTA)
NOTHING: list[TrialCounts] = [Successes(0, 0, 0.1), Canary(Counts(0, 0, 0, 0)), OneRun(0, 0, 0)]
SOME: list[TrialCounts] = [
    Successes(60, 100, 0.1),
    Canary(Counts(90, 100, 10, 100)),
    OneRun(200, 100, 95),
]


def case(evidence: TrialCounts | None, promise: Promise | None = PURE, why: str = "") -> Test:
    return Test(0, Adversary(), 0, "a test", "an attack", promise, evidence, why)


@pytest.mark.parametrize("hits", [0, 1, 20, 45, 100])
def test_the_p_value_of_successes_is_that_of_the_binomial_test(hits: int) -> None:
    found = Successes(hits, 100, 0.1)
    for promise, ceiling in ((PURE, math.e * 0.1 + DELTA), (GAUSS, norm.cdf(norm.ppf(0.1) + 0.5))):
        assert found.ceiling(promise) == pytest.approx(ceiling, rel=1e-9)
        assert found.p_value(promise) == pytest.approx(
            binomtest(hits, 100, ceiling, alternative="greater").pvalue, rel=1e-6
        )
        for alpha in (0.05, 1e-3):
            assert (found.lower(alpha) > found.ceiling(promise)) == (found.p_value(promise) < alpha)


@pytest.mark.parametrize(
    "counts", [Counts(900, 1000, 100, 1000), Counts(500, 1000, 5, 1000), Counts(60, 100, 20, 100)]
)
def test_the_p_value_of_canaries_is_below_that_of_separate_limits(counts: Counts) -> None:
    """A promise at the limits of Clopper and Pearson at 95 percent has p = .05 by them, and much less by both rates together."""
    at = Promise(
        "mu", 1.0, DELTA, gaussian.Gdp(empirical.mu_lower(counts, 0.05), Adjacency.REPLACE)
    )
    assert Canary(counts).p_value(at) < 0.01
    pure = Promise("epsilon", empirical.epsilon_lower(counts, DELTA, 0.05, both=True), DELTA)
    assert Canary(counts).p_value(pure) < 0.02


def test_one_run_is_that_of_its_theorem() -> None:
    assert OneRun(1000, 100, 95).p_value(PURE) == one_run.p_value(1000, 100, 95, 1.0, DELTA)
    mu = one_run.mu_lower(1000, 100, 95, 0.01)
    assert OneRun(1000, 100, 95).p_value(
        Promise("mu", 1.0, DELTA, gaussian.Gdp(mu, Adjacency.REPLACE))
    ) == pytest.approx(0.01, rel=1e-5)


@pytest.mark.parametrize(
    "promise", [PURE, GAUSS, HUGE, Promise("pure", 0.5, 0.0), Promise("trivial", 1.0, 1.0)]
)
def test_nothing_counted_refutes_nothing(promise: Promise) -> None:
    for evidence in NOTHING:
        assert evidence.p_value(promise) == 1.0
        assert detects(evidence, promise, 0.01) is None
        (found,) = judge([case(evidence, promise)], 0.01)
        assert found.verdict is (Verdict.UNCLAIMED if promise.empty else Verdict.INCONCLUSIVE)
        if not promise.empty:
            assert "would be needed" in found.says


@pytest.mark.parametrize(
    "counts",
    [Counts(50, 50, 0, 50), Counts(0, 50, 50, 50), Counts(50, 50, 50, 50), Counts(0, 50, 0, 0)],
)
@pytest.mark.parametrize("promise", [PURE, GAUSS, Promise("pure", 0.5, 0.0)])
def test_rates_of_zero_and_one_have_finite_answers(counts: Counts, promise: Promise) -> None:
    (found,) = judge([case(Canary(counts), promise)], 0.01)
    assert found.p is not None
    assert 0 < found.p <= 1
    assert (found.verdict is Verdict.REFUTED) == (counts == Counts(50, 50, 0, 50))


@pytest.mark.parametrize("promise", [PURE, GAUSS])
@pytest.mark.parametrize("evidence", NOTHING + SOME)
def test_the_number_of_trials_that_are_needed_is_enough_and_no_more(
    evidence: TrialCounts, promise: Promise
) -> None:
    level, needs = 1e-3, evidence.needs(promise, 1e-3)
    assert needs is not None
    assert perfect(evidence, needs).p_value(promise) <= level
    fewer = {Successes: needs - 1, Canary: needs - 2, OneRun: needs // 2}[type(evidence)]
    assert not fewer or perfect(evidence, fewer).p_value(promise) > level


def perfect(kind: TrialCounts, trials: int) -> TrialCounts:
    """What a perfect attack would get in so many trials of the same kind."""
    if isinstance(kind, Successes):
        return Successes(trials, trials, 0.1)
    if isinstance(kind, Canary):
        return Canary(Counts(trials // 2, trials // 2, 0, trials // 2))
    assert isinstance(kind, OneRun)
    guesses = max(1, math.ceil(trials * kind.guesses / kind.canaries)) if kind.canaries else trials
    return OneRun(trials, guesses, guesses)


def test_too_few_trials_are_inconclusive_and_say_how_many() -> None:
    few, enough = judge([case(Successes(2, 2, 0.1)), case(Successes(20, 20, 0.1))], 0.01)
    assert few.verdict is Verdict.INCONCLUSIVE
    assert enough.verdict is Verdict.REFUTED
    assert few.needs == math.ceil(math.log(0.01) / math.log(math.e * 0.1 + DELTA))
    assert f"about {few.needs} trials would be needed" in few.says


def test_what_could_not_be_measured_is_said() -> None:
    none, unclaimed = judge([case(None, why="no models"), case(None, None)], 0.01)
    assert (none.verdict, unclaimed.verdict) == (Verdict.INCONCLUSIVE, Verdict.UNCLAIMED)
    assert "no models" in none.says


def test_holm_refutes_in_order_and_stops() -> None:
    """Four tests at .05: p = .01, .02, .03, .2 by hand: .01 <= .0125 and .02 > .0167, so one falls and the rest stand."""
    promise = Promise("half", 0.0, 0.0)
    tests = [case(Successes(k, 1000, 0.5), promise) for k in _with_p((0.2, 0.01, 0.03, 0.02))]
    found = judge(tests, 0.05)
    assert [f.verdict for f in found] == [
        Verdict.NOT_REFUTED,
        Verdict.REFUTED,
        Verdict.NOT_REFUTED,
        Verdict.NOT_REFUTED,
    ]
    assert {f.alpha for f in found} == {0.05 / 4}
    more = judge(
        [case(Successes(k, 1000, 0.5), promise) for k in _with_p((0.2, 0.01, 0.012, 0.02))], 0.05
    )
    assert [f.verdict is Verdict.REFUTED for f in more] == [False, True, True, True]


def _with_p(values: tuple[float, ...]) -> list[int]:
    """Hits of 1000 at a rate of one half with a p-value of at most these, the largest such."""
    return [int(binom.isf(p, 1000, 0.5)) + 1 for p in values]


def test_tests_that_can_tell_nothing_take_no_alpha() -> None:
    alone, _ = judge([case(Successes(20, 20, 0.1)), case(Successes(1, 1, 0.1))], 0.01)
    assert alone.alpha == 0.01


def test_tests_that_can_tell_share_alpha() -> None:
    found = judge([case(Successes(20, 20, 0.1)) for _ in range(4)], 0.01)
    assert [one.alpha for one in found] == [0.0025] * 4


def test_a_guess_of_one_run_is_right_with_the_power_of_half_of_mu() -> None:
    """A canary is present or not, at +-1/2: Phi(mu / 2) of the guesses are right."""
    evidence, alpha, mu = OneRun(200, 100, 0), 0.01, 1.5
    least = next(k for k in range(101) if OneRun(200, 100, k).p_value(GAUSS) <= alpha)
    right = norm.cdf(mu / 2)
    assert evidence.power(GAUSS, alpha, mu) == pytest.approx(binom.sf(least - 1, 100, right))


@pytest.mark.parametrize("promise", [PURE, GAUSS])
def test_the_power_is_the_share_of_simulated_refutations(promise: Promise) -> None:
    random, alpha, mu, runs = np.random.default_rng(0), 1e-3, 2.5, 600
    rate = norm.cdf(norm.ppf(0.1) + mu)
    hits = random.binomial(60, rate, runs)
    seen = np.mean([Successes(int(k), 60, 0.1).p_value(promise) < alpha for k in hits])
    assert seen == pytest.approx(
        Successes(0, 60, 0.1).power(promise, alpha, mu), abs=4 * 0.5 / math.sqrt(runs)
    )


def test_what_would_have_been_detected_is_detected_with_probability_08() -> None:
    epsilon = detects(Successes(0, 200, 0.1), GAUSS, 0.01)
    assert epsilon is not None
    mu = gaussian.least_mu(epsilon, DELTA)
    assert Successes(0, 200, 0.1).power(GAUSS, 0.01, mu) == pytest.approx(0.8, abs=0.05)
    assert Successes(0, 200, 0.1).power(GAUSS, 0.01, 0.9 * mu) < 0.8


@pytest.mark.slow
def test_a_family_of_true_promises_raises_false_alarms_in_at_most_alpha_of_the_runs() -> None:
    """Attacks exactly on the ceiling of mu = .5, six tests a run, 100 runs at alpha = .05."""
    random, runs, alpha = np.random.default_rng(1), 100, 0.05
    right = norm.cdf(0.25)
    alarms = 0
    for _ in range(runs):
        tests = [
            case(
                Successes(int(random.binomial(200, norm.cdf(norm.ppf(0.1) + 0.5))), 200, 0.1), GAUSS
            )
            for _ in range(3)
        ]
        counts = [
            (int(random.binomial(100, right)), int(random.binomial(100, 1 - right)))
            for _ in range(3)
        ]
        tests += [case(Canary(Counts(t, 100, f, 100)), GAUSS) for t, f in counts]
        alarms += any(one.verdict is Verdict.REFUTED for one in judge(tests, alpha))
    assert alarms <= binom.isf(1e-3, runs, alpha)
