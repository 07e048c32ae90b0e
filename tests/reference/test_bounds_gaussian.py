"""mu-GDP against recorded values, against arithmetic with 60 digits, and against its own laws."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds.gaussian import (
    compose,
    delta,
    epsilon,
    group,
    least_mu,
    log_delta,
    power,
)

CALLS: dict[str, Callable[..., float]] = {
    "gauss_delta": lambda eps, sigma: delta(eps, 1 / sigma),
    "gdp_delta": lambda mu, eps: delta(eps, mu),
    "gauss_eps": lambda delta, sigma: epsilon(delta, 1 / sigma),
    "gdp_eps": lambda mu, delta: epsilon(delta, mu),
    "gauss_sigma": lambda eps, delta: 1 / least_mu(eps, delta),
    "gdp_tradeoff": lambda mu, alpha: 1 - power(alpha, mu),
    "gdp_mu_from_eps_delta": lambda eps, delta: least_mu(eps, delta),
    "rero_gdp": lambda kappa, mu: power(kappa, mu),
}


def call(text: str) -> float:
    name, arguments = re.fullmatch(r"(\w+)\((.*)\)", text).groups()  # type: ignore[union-attr]
    named = [part.split("=") for part in arguments.split(",")]
    if len(named[0]) == 1:
        return CALLS[name](*(float(part[0]) for part in named))
    return CALLS[name](**{key: float(value) for key, value in named})


def recorded() -> list[tuple[str, str]]:
    """The values of these formulas in bounds_vectors.txt."""
    text = Path(__file__).with_name("bounds_vectors.txt").read_text(encoding="utf-8")
    names = "|".join(CALLS)
    return re.findall(rf"^((?:{names})\([^)]*\)) +([-\d.e]+)\s*$", text, re.MULTILINE)


def test_no_formula_is_without_a_recorded_value() -> None:
    assert {text.partition("(")[0] for text, _ in recorded()} == set(CALLS)
    assert len(recorded()) == 28


@pytest.mark.parametrize(("text", "value"), recorded())
def test_recorded_values(text: str, value: str) -> None:
    assert call(text) == pytest.approx(float(value), rel=1e-9)


def exactly(eps: float, mu: float) -> float:
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        e, m = mpmath.mpf(eps), mpmath.mpf(mu)
        value = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
        return float(mpmath.log(value))


@pytest.mark.parametrize(
    ("eps", "mu"),
    [
        (0, 1e-3),
        (0, 30),
        (1e-3, 1e-3),
        (1, 0.05),
        (2, 2),
        (50, 3),
        (700, 40),
        (3000, 70),
        (5e4, 300),
        (20, 0.2),
        (100, 200),
    ],
)
def test_the_curve_neither_overflows_nor_cancels(eps: float, mu: float) -> None:
    assert log_delta(eps, mu) == pytest.approx(exactly(eps, mu), rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("mu", [1e-3, 0.03, 0.5, 1, 4, 30, 209])
@pytest.mark.parametrize("small", [1e-300, 1e-12, 1e-5, 1e-3, 0.3])
def test_epsilon_is_the_least_that_reaches_delta(mu: float, small: float) -> None:
    found = epsilon(small, mu)
    assert delta(found, mu) <= small * (1 + 1e-12)
    if found:
        assert log_delta(found * (1 - 1e-9), mu) > math.log(small)
        assert least_mu(found, small) == pytest.approx(mu, rel=1e-8)
    else:
        assert delta(0, mu) <= small


def test_node_level_of_2000_rounds_is_no_promise() -> None:
    assert epsilon(1e-3, 209) == pytest.approx(22485.37, abs=0.01)


def test_n_releases_cost_n_times_and_a_group_of_k_costs_k_times() -> None:
    assert compose([0.25] * 16) == pytest.approx(1)
    assert compose([]) == 0
    assert compose([1, math.inf]) == math.inf
    assert group(0.3, 10) == pytest.approx(3)
    assert group(math.inf, 0) == 0
    assert epsilon(1e-5, group(0.3, 10)) == pytest.approx(16.68, abs=5e-3)


def test_power_is_that_of_the_optimal_test_of_a_shifted_gaussian() -> None:
    draw, mu = np.random.default_rng(0), 1.5
    still, moved = draw.normal(size=400_000), mu + draw.normal(size=400_000)
    for alpha in (0.01, 0.1, 0.5):
        assert (moved > np.quantile(still, 1 - alpha)).mean() == pytest.approx(
            power(alpha, mu), abs=4e-3
        )
    assert power(0.2, 0.7) == pytest.approx(norm.cdf(norm.ppf(0.2) + 0.7), rel=1e-12)
    assert delta(0, mu) == pytest.approx(
        max(power(a, mu) - a for a in np.linspace(0, 1, 2001)), abs=1e-6
    )


def test_a_test_that_beats_the_power_contradicts_epsilon_delta() -> None:
    """The trade-off curve and the privacy curve are one: TPR <= e^eps FPR + delta, touched at one point."""
    mu, eps = 1.2, 1.7
    gaps = [math.exp(eps) * a + delta(eps, mu) - power(a, mu) for a in np.linspace(0, 0.3, 30001)]
    assert min(gaps) == pytest.approx(0, abs=1e-6)


def test_the_ends() -> None:
    assert [
        delta(1, 0),
        delta(1, math.inf),
        delta(0, 0),
        delta(math.inf, 3),
        delta(1e300, 1e-300),
    ] == [0, 1, 0, 0, 0]
    assert [epsilon(1e-5, 0), epsilon(1e-5, math.inf), epsilon(0, 1), epsilon(1, 5)] == [
        0,
        math.inf,
        math.inf,
        0,
    ]
    assert [power(0, 1), power(1, 1), power(0.1, math.inf), power(0, math.inf)] == [0, 1, 1, 1]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: delta(-1, 1),
        lambda: delta(1, -1),
        lambda: delta(math.nan, 1),
        lambda: epsilon(2, 1),
        lambda: epsilon(1e-5, math.nan),
        lambda: least_mu(1, 0),
        lambda: compose([1, -1]),
        lambda: group(1, -1),
        lambda: power(1.5, 1),
    ],
)
def test_what_is_no_probability_or_mu_is_refused(wrong: Callable[[], float]) -> None:
    with pytest.raises(LeakauditError, match="expected"):
        wrong()
