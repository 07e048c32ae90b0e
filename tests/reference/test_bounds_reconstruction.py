"""Reconstruction robustness and error bounds against optimal attackers whose success is known."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds import mse
from leakaudit.theory.bounds.approximate import approximate
from leakaudit.theory.bounds.composition import repeat, translate
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import Adjacency
from leakaudit.theory.bounds.reconstruction import (
    distances,
    kappa_identification,
    kappa_packing,
    nearest,
    success,
    tolerance,
)
from leakaudit.theory.bounds.renyi import Rdp
from leakaudit.theory.bounds.zcdp import Zcdp

ONE = Adjacency.ADD_REMOVE


@pytest.mark.parametrize("std", [0.5, 1.0, 2.0])
def test_the_best_identification_stays_below_its_bound(std: float) -> None:
    """Ten orthogonal candidates of norm 1 in normal noise; against an empty record mu = 1 / std. The best guess is the largest product."""
    draw, n = np.random.default_rng(0), 20_000
    seen = std * draw.normal(size=(n, 10))
    seen[:, 0] += 1
    hits = float((seen.argmax(1) == 0).mean())
    exact = Gdp(1 / std, Adjacency.ZERO_OUT)
    bounds = [
        success(g, kappa_identification(10))
        for g in (exact, translate(exact, Zcdp), translate(exact, Rdp))
    ]
    assert bounds == sorted(bounds)
    assert 0.1 < hits <= bounds[0]


def test_one_bit_reaches_the_bound() -> None:
    """Two worlds, x or nothing, prior 1/2: the likelihood ratio test of equal errors has success Phi(mu/2), the bound is Phi(mu)."""
    assert success(Gdp(1.0, ONE), 0.5) == pytest.approx(0.8413447, abs=1e-7)
    randomised = approximate(1.0, 0.0, ONE)  # the mechanism itself reaches 1 - e^-eps / 2
    assert success(randomised, 0.5) == pytest.approx(1 - math.exp(-1) / 2)


def test_ends_of_success() -> None:
    for g in (
        Gdp(1.0, ONE),
        Zcdp(0.5, ONE),
        translate(Gdp(1.0, ONE), Rdp),
        approximate(1.0, 0.0, ONE),
    ):
        assert success(g, 1.0) == 1
        assert success(g, 0.0) == 0
        assert 0.999 <= success(g, 0.999) <= 1
    assert success(approximate(1.0, 0.01, ONE), 0.0) == pytest.approx(0.01)
    assert success(Gdp(math.inf, ONE), 0.1) == success(Zcdp(math.inf, ONE), 0.1) == 1
    for nothing in (Gdp(0.0, ONE), Zcdp(0.0, ONE), approximate(0.0, 0.0, ONE)):
        assert success(nothing, 0.3) == pytest.approx(0.3)
    assert (
        success(repeat(approximate(0.1, 0.0, ONE), 100), 0.01)
        < success(approximate(10.0, 0.0, ONE), 0.01)
        < 1
    )


def test_the_packing_certificate() -> None:
    x = np.array([[0.0, 0.0], [0.15, 0.15], [1.0, 1.0], [1.0, 0.0]])
    d = distances(x)
    assert d[0, 1] == pytest.approx(0.15)
    assert kappa_packing(d, tolerance(20, 1.0)) == 0.5  # the first two are within 2 * .1
    assert kappa_packing(d, 0.05) == 0.25
    assert kappa_packing(d, 0.0) == 0.25
    assert kappa_packing(d, 0.05, guesses=3) == 0.75
    assert kappa_packing(d, 0.05, prior=[0.1, 0.2, 0.3, 0.4]) == 0.4
    assert kappa_packing(d, math.inf) == kappa_packing(d, 0.05, guesses=9) == 1
    assert kappa_identification(8, guesses=2) == 0.25


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: success(Gdp(1.0, ONE), math.nan),
        lambda: success(Gdp(1.0, ONE), 1.1),
        lambda: kappa_identification(0),
        lambda: kappa_identification(3, 4),
        lambda: kappa_packing([[0.0, math.nan], [1.0, 0.0]], 0.1),
        lambda: kappa_packing([[1.0]], 0.1),
        lambda: kappa_packing(np.zeros((0, 0)), 0.1),
        lambda: kappa_packing([[0.0]], -1),
        lambda: kappa_packing([[0.0]], 0.1, prior=[0.5]),
        lambda: kappa_packing([[0.0]], 0.1, guesses=0),
        lambda: distances([[math.nan, 1.0]]),
        lambda: tolerance(20, 0),
        lambda: tolerance(math.nan, 1),
        lambda: mse.hcr(-1),
        lambda: mse.hcr(1, math.nan),
        lambda: mse.fisher(1, 0),
        lambda: mse.fisher_trace([[math.inf]], 1),
        lambda: mse.fisher_trace([[1.0]], -1),
        lambda: mse.psnr([], 1),
        lambda: mse.psnr([math.nan], 1),
        lambda: mse.ceiling(0.1, 0),
    ],
)
def test_what_means_nothing_is_refused(wrong: object) -> None:
    with pytest.raises(LeakauditError, match="expected"):
        wrong()  # type: ignore[operator]


def test_error_bounds_of_unbiased_attackers_do_not_bind_biased_ones() -> None:
    draw, std, n = np.random.default_rng(0), 0.5, 200_000
    z = draw.random(n)
    seen = z + std * draw.normal(size=n)
    bound = mse.fisher(mse.fisher_trace([[1.0]], std), 1)
    assert bound == pytest.approx(0.25)
    assert ((seen - z) ** 2).mean() == pytest.approx(bound, rel=0.02)
    assert ((seen.clip(0, 1) - z) ** 2).mean() == pytest.approx(0.121, abs=3e-3)
    assert ((0.5 - z) ** 2).mean() == pytest.approx(0.083, abs=1e-3)
    assert mse.hcr((1 / std) ** 2) < 0.25  # mu for a replaced record is 1 / std


def test_van_trees_is_the_error_of_the_posterior_mean() -> None:
    draw, std, tau, n = np.random.default_rng(0), 0.5, 0.25, 200_000
    z = tau * draw.normal(size=n)
    seen = z + std * draw.normal(size=n)
    best = seen * tau**2 / (tau**2 + std**2)
    assert ((best - z) ** 2).mean() == pytest.approx(
        mse.van_trees(1 / std**2, 1 / tau**2, 1), rel=0.02
    )


def test_average_the_error_first() -> None:
    """An attacker that is exactly on a ceiling of 20 dB has a mean PSNR of 21.22 dB in four dimensions."""
    errors = 0.01 * (np.random.default_rng(0).normal(size=(200_000, 4)) ** 2).mean(1)
    assert mse.psnr(errors, 1.0) == pytest.approx(20, abs=0.02)
    assert np.mean([mse.ceiling(e, 1.0) for e in errors[:50_000]]) == pytest.approx(21.17, abs=0.08)
    assert mse.psnr([0.0], 1.0) == math.inf
    assert mse.ceiling(math.inf, 1.0) == -math.inf
    assert mse.ceiling(0.01, 255.0) == pytest.approx(68.13, abs=5e-3)
    assert tolerance(mse.ceiling(0.04, 2.0), 2.0) == pytest.approx(0.2)


def test_ends_of_error_bounds() -> None:
    assert [mse.hcr(0), mse.hcr(0, 0), mse.hcr(1e4), mse.hcr(math.inf)] == [math.inf, 0, 0, 0]
    assert mse.fisher(0, 5) == math.inf
    assert mse.fisher_trace([[1.0]], 0.0) == math.inf
    assert mse.fisher_trace([[0.0]], 0.0) == 0
    assert mse.fisher(math.inf, 5) == 0


def test_the_figures_of_the_documentation(project: Path) -> None:
    found = re.search(
        r"```python\n(.*?)\n\n(.*?)\n\n(.*?)```", (project / "docs" / "bounds.md").read_text(), re.S
    )
    assert found
    names: dict[str, object] = {}
    exec("\n".join(found.groups()[:2]), names)
    for line in found[3].splitlines():
        expression, _, comment = line.partition("  # ")
        assert eval(expression, names) == pytest.approx(
            float(comment.partition(":")[0]), abs=6e-5
        ), line


@pytest.mark.parametrize("mu", [0.0, 0.5, 2.0, 4.0])
@pytest.mark.parametrize("chance", [0.5, 0.95])
def test_the_nearest_distance_is_the_inverse_of_the_packing(mu: float, chance: float) -> None:
    draw = np.random.default_rng(3)
    apart = distances(draw.uniform(size=(60, 4)))
    for guesses, total in ((1, 0), (2, 0), (1, 55), (3, 58)):
        least = nearest(Gdp(mu, ONE), apart, chance, guesses, total)
        share = len(apart) / (total or len(apart))
        below = kappa_packing(apart, least * (1 - 1e-6)) * guesses * share
        above = kappa_packing(apart, least * (1 + 1e-6)) * guesses * share
        assert least == 0 or success(Gdp(mu, ONE), min(1.0, below)) < chance
        assert success(Gdp(mu, ONE), min(1.0, above)) >= chance


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_the_best_guess_is_not_nearer_than_the_nearest_distance(mu: float) -> None:
    """Two records in normal noise: the likeliest one, or any point between them, is guessed."""
    draw, n = np.random.default_rng(1), 20_000
    x = np.array([0.0, 1.0])
    drawn = draw.integers(2, size=n)
    seen = x[drawn] + draw.normal(size=n) / mu
    apart = np.abs(x[:, None] - x)
    least = nearest(Gdp(mu, ONE), apart, 0.95)
    for guess in ((seen > 0.5).astype(float), np.full(n, 0.5), np.clip(seen, 0, 1)):
        error = np.abs(guess - x[drawn])
        assert (error < least).mean() < 0.95 + 3 / math.sqrt(n)


def test_a_guarantee_that_allows_everything_has_no_distance() -> None:
    apart = distances(np.eye(5))
    assert nearest(Gdp(math.inf, ONE), apart, 0.5) == 0
    with pytest.raises(LeakauditError, match="probability above 0"):
        nearest(Gdp(1.0, ONE), apart, 0.0)
