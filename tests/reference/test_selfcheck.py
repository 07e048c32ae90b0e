"""`leakaudit doctor --statistics`: the privacy of its mechanisms, the rates of the estimators, and
that it can fail.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom, kstest, laplace, norm

from leakaudit.cli import main
from leakaudit.core.errors import LeakauditError
from leakaudit.judging.selfcheck import (
    ESTIMATORS,
    PLANTED,
    POWER,
    SLACK,
    TRUE,
    Mechanism,
    check,
    planting,
)
from leakaudit.judging.selfcheck.estimators import Estimator
from leakaudit.theory.bounds import empirical, one_run

BY_NAME = {e.name: e for e in ESTIMATORS}
MU, RUN = BY_NAME["mu, both error rates"], BY_NAME["epsilon, one run"]


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(("rounds", "opposite"), [(1, False), (4, False), (1, True)])
def test_scores_are_normal_around_their_ends(there: bool, rounds: int, opposite: bool) -> None:
    mechanism = Mechanism("gaussian", 0.7, rounds, opposite=opposite)
    scores = mechanism.scores(np.full(20_000, there), np.random.default_rng(0))
    centre = mechanism.ends[there]
    assert kstest(scores, norm(centre, math.sqrt(rounds)).cdf).pvalue > 1e-3
    for wrong in (norm(centre + 0.1, math.sqrt(rounds)), norm(centre, 1.1 * math.sqrt(rounds))):
        assert kstest(scores, wrong.cdf).pvalue < 1e-6
    assert mechanism.known == pytest.approx(
        (mechanism.ends[1] - mechanism.ends[0]) / math.sqrt(rounds)
    )


def test_laplace_scores_have_the_privacy_loss_that_they_say() -> None:
    draw, mechanism = np.random.default_rng(1), Mechanism("laplace", 1.5)
    there, gone = (mechanism.scores(np.full(400_000, b), draw) for b in (True, False))
    assert kstest(gone[:20_000], laplace.cdf).pvalue > 1e-3
    assert math.log((there > 1.5).mean() / (gone > 1.5).mean()) == pytest.approx(1.5, abs=0.02)


def test_noise_that_is_used_twice_cancels() -> None:
    there = np.random.default_rng(2).random(1000) < 0.5
    found = Mechanism("gaussian", 1.0, 2, reused=True).scores(there, np.random.default_rng(3))
    assert np.abs(found - 2.0 * there).max() < 1e-12
    fresh = Mechanism("gaussian", 1.0, 2).scores(there, np.random.default_rng(3))
    assert np.abs(fresh - 2.0 * there).std() == pytest.approx(math.sqrt(2 - 4 / math.pi), rel=0.1)


def test_a_rate_is_the_exact_one() -> None:
    """Randomised response by the surest half: v ~ Binomial(r, e^eps / (1 + e^eps)), so the false alarms can be summed."""
    trials, alpha, eps, runs = 200, 0.1, 1.0, 4000
    chance = binom.pmf(np.arange(101), 100, expit(eps))
    exact = sum(chance[v] for v in range(101) if one_run.p_value(trials, 100, v, eps, 0.0) <= alpha)
    refuted = RUN.refuted(
        Mechanism("laplace", eps), eps, runs, trials, alpha, np.random.default_rng(0)
    )
    assert 0.03 < exact <= alpha
    assert abs(refuted / runs - exact) < 4 * math.sqrt(exact / runs)


@pytest.mark.slow
def test_false_alarms_stay_below_alpha_and_planted_mistakes_are_found() -> None:
    """The default check: 1,000 runs of every estimator."""
    found = list(check())
    true, planted = [r for r in found if not r.planted], [r for r in found if r.planted]
    assert len(true) == len(ESTIMATORS) * len(TRUE)
    assert len(planted) == len(ESTIMATORS) * len(PLANTED)
    assert all(r.runs == 1000 and r.limits[1] <= SLACK * 0.05 and r.limits[0] <= 0.05 for r in true)
    assert all(r.rate >= 0.9 and r.limits[0] >= 0.9 for r in planted)
    assert all(r.ok for r in found)


def test_what_is_claimed_of_a_mistake_is_less_than_what_is_true() -> None:
    for planted in PLANTED:
        for estimator in ESTIMATORS:
            mechanism, claimed = planting(planted, estimator.law)
            assert mechanism.known >= 2 * claimed
    with pytest.raises(LeakauditError, match="noise halved"):
        planting("nothing", "gaussian")


def test_an_estimator_without_an_interval_fails_the_check() -> None:
    """log(TPR / FPR) as it is counts noise as a violation about every second time."""
    bare = replace(
        BY_NAME["epsilon, both error rates"],
        name="bare",
        refutes=lambda c, n, claimed, alpha: c[0] > math.exp(claimed) * c[1],
    )
    true = [r for r in check(200, 500, 0.05, 0, [bare]) if not r.planted]
    assert any(r.rate > 0.4 for r in true)
    assert not all(r.ok for r in true)
    assert true[0].limits[0] > 0.05


def test_an_estimator_that_never_refutes_fails_the_check() -> None:
    blind = replace(MU, refutes=lambda *_: False)
    assert [r.ok for r in check(100, 10, 0.05, 0, [blind])] == [True] * len(TRUE) + [False] * len(
        PLANTED
    )


def test_too_few_runs_are_no_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    """22 refutations of 400 are usual at a rate of .05, and do not show that it is below .075."""
    (row, *_) = check(1, 10, 0.05, 0, [MU])
    few = replace(row, refuted=22, runs=400)
    assert (few.ok, few.outcome) == (False, "too few runs")
    assert replace(row, refuted=20, runs=1000).outcome == "ok"
    assert replace(row, refuted=120, runs=1000).outcome == "outside"
    weak = replace(row, planted=PLANTED[0], refuted=30, runs=100)
    assert weak.outcome == "outside"
    assert replace(weak, refuted=90).outcome == "too few runs"
    assert main(["doctor", "--statistics", "--runs", "20", "--trials", "1000", "-q"]) == 3
    assert "Too few runs" in capsys.readouterr().out


def test_a_right_rate_is_called_outside_once_in_1000_checks() -> None:
    """Summed over all counts of 45 rates of exactly alpha, or exactly the smallest power."""
    (row, *_) = check(1, 10, 0.05, 0, [MU])
    rates = len(ESTIMATORS) * (len(TRUE) + len(PLANTED))
    for runs in (50, 400, 1000):
        for planted, rate in (("", 0.05), (PLANTED[0], POWER)):
            told = [
                replace(row, planted=planted, refuted=k, runs=runs).outcome == "outside"
                for k in range(runs + 1)
            ]
            assert rates * (binom.pmf(np.arange(runs + 1), runs, rate) @ told) < 1e-3
    told = [replace(row, refuted=k, runs=1000).outcome == "outside" for k in range(1001)]
    assert binom.pmf(np.arange(1001), 1000, 0.12) @ told > 0.99


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: e.name)
def test_every_outcome_is_decided(estimator: Estimator) -> None:
    """One trial, all right, all wrong, nothing found: no crash, and no refutation of a claim of everything."""
    for trials in (1, 2, 7):
        most = max(1, trials // 2) if "one run" in estimator.name else trials
        for a in range(most + 1):
            for b in range(most + 1):
                assert estimator.refutes((a, b), trials, 50.0, 0.05) is False
                assert estimator.refutes((a, b), trials, 0.0, 0.05) in (True, False)
    assert (
        estimator.refuted(Mechanism(estimator.law, 0.0), 0.0, 3, 1, 0.05, np.random.default_rng(0))
        == 0
    )


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: empirical.trials_for(math.nan, 1e-5, 0.05),
        lambda: empirical.trials_for(-1.0, 1e-5, 0.05),
        lambda: empirical.detection(10, 0.1, 0.2, math.nan),
        lambda: empirical.detection(-1, 0.1, 0.2, 0.05),
    ],
)
def test_questions_that_mean_nothing_are_refused(wrong: Callable[[], float]) -> None:
    with pytest.raises(LeakauditError, match="expected"):
        wrong()


def test_seeds_decide_the_rates() -> None:
    def figures(seed: int) -> list[int]:
        return [r.refuted for r in check(50, 100, 0.3, seed, [RUN])]

    assert figures(0) == figures(0)
    assert figures(0) != figures(1)


def test_the_command_line_says_what_is_within_its_limits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        main(
            [
                "doctor",
                "--statistics",
                "--runs",
                "200",
                "--trials",
                "600",
                "--alpha",
                "0.2",
                "-q",
                "-f",
                "json",
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert {r["planted"] for r in found["rows"]} == {None, *PLANTED}
    assert all(r["low"] <= r["rate"] <= r["high"] for r in found["rows"])
    assert "inf" in {r["known"] for r in found["rows"]}
    assert main(["doctor", "--statistics", "--runs", "20", "--trials", "20", "-q"]) == 1
    said = capsys.readouterr().out
    assert "OUTSIDE" in said
    assert "more --trials" in " ".join(said.split())


@pytest.mark.parametrize(
    "given", [["--runs", "0"], ["--trials", "0"], ["--alpha", "0"], ["--alpha", "nan"]]
)
def test_numbers_that_mean_nothing_are_refused(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--statistics", *given, "-q"]) == 2
    assert "expected runs, trials >= 1 and 0 < alpha < 1" in capsys.readouterr().err
