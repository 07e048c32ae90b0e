"""Noise mechanisms against numerical integration, and the figures of the published claims."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds import gaussian
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import Adjacency
from leakaudit.theory.bounds.mechanisms import (
    Additive,
    classic_std,
    gaussian_release,
    sensitivity,
    truncated_laplace,
)

ONE = Adjacency.ADD_REMOVE
NOISES = [
    Additive(1, 0.7),
    Additive(1, 0.7, 2.0),
    Additive(2, 1.3),
    Additive(2, 1.3, 2.5),
    Additive(2, 0.4, 3.0),
    Additive(1, 2.0, 0.4),
]


def density(noise: Additive, z: np.ndarray | float) -> np.ndarray:
    """Not normalised."""
    return np.where(
        np.abs(z) <= noise.width, np.exp(-(np.abs(z / noise.scale) ** noise.power)), 0.0
    )


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("shift", [0.2, 0.75, 3.0])
@pytest.mark.parametrize("eps", [0.0, 0.3, 1.0, 2.5])
def test_delta_is_the_integral_of_the_hockey_stick(
    noise: Additive, shift: float, eps: float
) -> None:
    far = min(noise.width, 40 * noise.scale if noise.power == 1 else 8 * noise.scale)
    kinks = [
        -far,
        shift - far,
        (shift - noise.scale * eps) / 2,
        (shift - eps * noise.scale**2 / shift) / 2,
        0.0,
        shift,
        far,
    ]
    both = np.unique(np.clip([*kinks, *(-k for k in kinks)], -far, far))
    total = sum(
        quad(lambda z: float(density(noise, z)), a, b, limit=400)[0]
        for a, b in itertools.pairwise(both)
    )

    def excess(z: float, s: float) -> float:
        return max(0.0, float(density(noise, z) - math.exp(eps) * density(noise, z - s)))

    for s in (shift, -shift):
        found = sum(
            quad(excess, a, b, args=(s,), limit=400)[0] for a, b in itertools.pairwise(both)
        )
        assert noise.delta(eps, shift) == pytest.approx(found / total, rel=1e-6, abs=1e-8)


def test_normal_and_laplace_noise_have_their_known_curves() -> None:
    for eps in (0.0, 0.5, 3.0):
        assert Additive(2, 2 * math.sqrt(2)).delta(eps, 1.0) == pytest.approx(
            gaussian.delta(eps, 0.5), rel=1e-9
        )
        assert Additive(1, 2.0).delta(eps, 1.0) == pytest.approx(
            max(0.0, -math.expm1(eps / 2 - 0.25)), abs=1e-12
        )
    assert gaussian_release(2.0, 3.0, ONE) == Gdp(1.5, ONE)
    assert gaussian_release(0.0, 1.0, ONE).mu == math.inf
    assert gaussian_release(0.0, 0.0, ONE).mu == 0


@pytest.mark.parametrize(
    ("eps", "delta", "true"),
    [(0.5, 1e-3, 0.238), (1, 1e-3, 0.286), (0.5, 1e-5, 0.238), (2, 1e-3, 0.332)],
)
def test_truncated_gaussian_of_dp_dkm_theorem_6_is_not_what_it_claims(
    eps: float, delta: float, true: float
) -> None:
    """Its two equations: sigma^2 = Delta^2 / eps, and the mass of [A - Delta, A] is delta; here by bisection over A."""
    scale, low, high = 1 / math.sqrt(eps), 0.5, 30.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if Additive(2, scale, middle).delta(math.inf, 1.0) > delta
            else (low, middle)
        )
    noise = Additive(2, scale, high)
    assert noise.delta(eps, 1.0) == pytest.approx(true, abs=6e-4)
    if (eps, delta) == (0.5, 1e-3):
        assert noise.width == pytest.approx(4.08, abs=5e-3)
        assert noise.delta(math.inf, 1.0) == pytest.approx(delta)


def test_truncated_laplace_calibrated_for_one_coordinate_fails_for_many() -> None:
    noise = truncated_laplace(1.0, 1e-3, 1.0)
    assert noise.release(1.0, 1.0, ONE).delta(1.0) == pytest.approx(1e-3)
    assert noise.escape([1.0] * 1000) == pytest.approx(0.632, abs=5e-4)


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_a_noise_is_found_by_its_standard_deviation(noise: Additive) -> None:
    far = min(noise.width, 60 * noise.scale)
    total, square = (
        quad(lambda z, k=k: z**k * float(density(noise, z)), 0, far, limit=400)[0] for k in (0, 2)
    )
    assert noise.std == pytest.approx(math.sqrt(square / total), rel=1e-6)
    found = Additive.of_std(noise.power, noise.std, noise.width)
    assert found.scale == pytest.approx(noise.scale, rel=1e-9)


@pytest.mark.parametrize("shift", [0.056681816978782225, 0.04922353038535316])
def test_rounding_hides_no_escape(shift: float) -> None:
    """The lower end of the moved support is known only up to rounding: its escape was 0."""
    noise = Additive(1, 1.0, 0.12438649468099716)
    assert noise.escape([shift]) == pytest.approx(noise.below(shift - noise.width))
    assert noise.delta(math.inf, shift) > 0.19


def test_the_distribution_is_that_of_samples(generator: object) -> None:
    u, noise = np.random.default_rng(0).uniform(-1, 1, 400_000), truncated_laplace(1.0, 0.05, 2.0)
    x = -noise.scale * np.log1p(np.abs(u) * np.expm1(-noise.width / noise.scale))
    assert np.mean(x <= 1.0) == pytest.approx(2 * noise.below(1.0) - 1, abs=3e-3)


def test_the_classic_calibration_is_too_little_noise_at_large_epsilon() -> None:
    for eps, enough in ((0.5, True), (1, True), (8, True), (10, False), (20, False)):
        assert (gaussian.delta(eps, 1 / classic_std(eps, 1e-5)) <= 1e-5) is enough
    assert classic_std(10, 1e-5) == pytest.approx(0.4845, abs=5e-5)
    assert 1 / gaussian.least_mu(10, 1e-5) == pytest.approx(0.4999, abs=5e-5)


def test_sensitivity_depends_on_what_neighbours_are() -> None:
    assert [
        sensitivity(1.5, a) for a in (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE)
    ] == [1.5, 1.5, 3.0]
    assert sensitivity(1.0, Adjacency.REPLACE, batch=8) == 0.25
    one, two = (
        Gdp(sensitivity(1.0, a) / 1.0, a) for a in (Adjacency.ADD_REMOVE, Adjacency.REPLACE)
    )
    assert (one.epsilon(1e-5), two.epsilon(1e-5)) == pytest.approx((4.377, 9.997), abs=5e-4)
    with pytest.raises(LeakauditError, match="NODE"):
        sensitivity(1.0, Adjacency.NODE)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Additive(3, 1.0),  # type: ignore[arg-type]
        lambda: Additive(1, 0.0),
        lambda: Additive(1, math.nan),
        lambda: Additive(2, 1.0, -1.0),
        lambda: Additive(1, 1.0).delta(math.nan, 1.0),
        lambda: Additive(1, 1.0).delta(1.0, -1.0),
        lambda: Additive.of_std(1, 0.0),
        lambda: Additive.of_std(2, 1.0, 1.7),
        lambda: truncated_laplace(1.0, 0.0, 1.0),
        lambda: truncated_laplace(0.0, 0.1, 1.0),
        lambda: classic_std(0.0, 1e-5),
        lambda: sensitivity(math.nan, ONE),
        lambda: gaussian_release(-1.0, 1.0, ONE),
        lambda: gaussian_release(1.0, math.nan, ONE),
    ],
)
def test_what_means_nothing_is_refused(wrong: object) -> None:
    with pytest.raises(LeakauditError, match="expected"):
        wrong()  # type: ignore[operator]


def test_the_ends() -> None:
    noise = Additive(1, 1.0, 2.0)
    assert [
        noise.delta(1.0, 0.0),
        noise.delta(1.0, 4.0),
        noise.delta(1.0, math.inf),
        noise.delta(math.inf, 1.0),
    ] == pytest.approx([0, 1, 1, noise.below(-1.0)])
    assert [
        noise.below(-2.0),
        noise.below(-9.0),
        noise.below(0.0),
        noise.below(2.0),
    ] == pytest.approx([0, 0, 0.5, 1])
    assert [
        noise.escape([]),
        noise.escape([0.0]),
        noise.escape([5.0, 0.1]),
        Additive(1, 1.0).escape([3.0]),
    ] == [0, 0, 1, 0]
    assert Additive(2, 1.0).delta(800.0, 1.0) == 0
    assert Additive(2, math.sqrt(2)).below(-3.0) == pytest.approx(norm.cdf(-3.0))
