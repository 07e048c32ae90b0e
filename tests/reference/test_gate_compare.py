"""The gate's permutation tests against scipy's, Holm's method against a worked example, and their error rates on simulated runs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from leakaudit._util import holm
from leakaudit.judging.gate import compare


def scipy_p(new: np.ndarray, old: np.ndarray, kind: str) -> float:
    def mean_difference(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(a.mean(axis) - b.mean(axis))

    done = stats.permutation_test(
        (new, old),
        mean_difference,
        permutation_type=kind,
        alternative="greater",
        n_resamples=np.inf,
        vectorized=True,
    )
    return float(done.pvalue)


@pytest.mark.parametrize("tolerance", [0.0, 0.4])
def test_the_paired_test_is_scipys(tolerance: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        old = rng.normal(size=9)
        new = old + rng.normal(0.3, 1, 9)
        assert compare.paired(new.tolist(), old.tolist(), tolerance) == pytest.approx(
            scipy_p(new - tolerance, old, "samples")
        )


def test_the_unpaired_test_is_scipys() -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        old, new = rng.normal(size=7), rng.normal(0.5, 1, 6)
        assert compare.unpaired(new.tolist(), old.tolist(), 0.2) == pytest.approx(
            scipy_p(new - 0.2, old, "independent")
        )


def test_drawn_arrangements_come_near_the_listed_ones() -> None:
    rng = np.random.default_rng(2)
    old = rng.normal(size=18)
    new = old + rng.normal(0.4, 1, 18)
    listed = scipy_p(new, old, "samples")  # 2^18 sign patterns
    assert compare.paired(new.tolist(), old.tolist(), 0.0) == pytest.approx(
        listed, abs=4 * np.sqrt(listed / compare.EXACT)
    )
    more = rng.normal(0.8, 1, 14).tolist()
    welch = stats.ttest_ind(more, old[:14], alternative="greater").pvalue
    assert compare.unpaired(more, old[:14].tolist(), 0.0) == pytest.approx(float(welch), abs=0.01)


def test_equal_samples_are_no_growth() -> None:
    same = [0.0, 3.0, 7.5]
    assert compare.paired(same, same, 0.0) == 1.0
    assert compare.paired(same, same, 1.0) == 1.0


def test_holm_on_a_worked_example() -> None:
    """Holm 1979: 4 x .01, 3 x .02, 2 x .03 and 1 x .04, none below the one before."""
    assert holm.adjusted([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm.adjusted([]) == []


def test_holm_rejects_the_same_hypotheses_at_a_level() -> None:
    """At .05: .01 <= .05 / 4 falls, .02 > .05 / 3 stands, and so do all after it, although .04 <= .05 / 1."""
    assert holm.rejected([0.03, 0.01, 0.04, 0.02], 0.05) == {1}
    assert holm.rejected([0.03, 0.01, 0.04, 0.012], 0.05) == {1, 3}
    assert holm.rejected([], 0.05) == frozenset()
    rng = np.random.default_rng(4)
    for _ in range(200):
        p = (rng.random(6) ** 3).tolist()
        adjusted = holm.adjusted(p)
        assert holm.rejected(p, 0.05) == {k for k, value in enumerate(adjusted) if value <= 0.05}


def test_the_least_p_value_is_reached_and_the_seeds_that_are_asked_for_suffice() -> None:
    assert compare.paired([1.0] * 6, [0.0] * 6, 0.1) == compare.least(6, 6, True) == 2**-6
    assert (
        compare.unpaired([5.0, 6.0, 7.0], [0.0, 1.0, 2.0], 0.1)
        == compare.least(3, 3, False)
        == 1 / 20
    )
    for alpha, count in ((0.01, 8), (0.05, 1), (0.001, 100)):
        seeds = compare.seeds_for(alpha, count)
        assert 2.0**-seeds * count <= alpha < 2.0 ** -(seeds - 1) * count


@pytest.mark.parametrize("paired", [True, False])
def test_false_alarms_are_no_more_than_alpha_and_a_shift_is_found(paired: bool) -> None:
    """2000 pairs of sides without growth, 300 with one standard deviation more; limits at five standard errors."""
    rng, alpha = np.random.default_rng(3), 0.05
    test = compare.paired if paired else compare.unpaired
    size = 10 if paired else 6
    false = sum(
        test(rng.normal(size=size).tolist(), rng.normal(size=size).tolist(), 0.0) <= alpha
        for _ in range(2000)
    )
    assert false / 2000 < alpha + 5 * np.sqrt(alpha * (1 - alpha) / 2000)
    found = sum(
        test(rng.normal(3.0, 1, size).tolist(), rng.normal(size=size).tolist(), 0.0) <= alpha
        for _ in range(300)
    )
    assert found / 300 > 0.95


def test_growth_within_the_tolerance_is_none() -> None:
    old = [10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0]
    assert compare.paired([v + 0.9 for v in old], old, 1.0) == 1.0
    assert compare.paired([v + 1.1 for v in old], old, 1.0) == 2**-8


def test_the_observed_arrangement_counts_among_the_drawn_ones() -> None:
    """No p-value is 0, although none of 2^17 draws has the signs of 60 growths."""
    found = compare.paired([1.0] * 60, [0.0] * 60, 0.0)
    assert found == compare.least(60, 60, True) == 1 / (compare.EXACT + 1)
