"""Laws of every bound, on drawn parameters: more noise never costs more privacy, and every curve falls."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from leakaudit.theory.bounds import mse, one_run, reconstruction
from leakaudit.theory.bounds.approximate import approximate
from leakaudit.theory.bounds.composition import compose, repeat
from leakaudit.theory.bounds.empirical import Counts, epsilon_lower, lower, mu_lower, upper
from leakaudit.theory.bounds.gaussian import Gdp
from leakaudit.theory.bounds.guarantee import Adjacency, Guarantee
from leakaudit.theory.bounds.mechanisms import Additive, gaussian_release, truncated_laplace
from leakaudit.theory.bounds.releases import Release, composed
from leakaudit.theory.bounds.renyi import Rdp
from leakaudit.theory.bounds.zcdp import Zcdp

ONE = Adjacency.ADD_REMOVE
SLIGHTLY = 1 + 1e-7
laws = settings(derandomize=True, max_examples=40, deadline=None)
stds = st.floats(0.2, 20)
chances = st.floats(1e-8, 0.5)
counts = st.tuples(st.integers(0, 200), st.integers(0, 200)).map(sorted)


def by_noise(std: float) -> list[Guarantee]:
    """Return what each kind promises of this noise on a sensitivity of 1."""
    rho = 1 / (2 * std**2)
    orders = (1.5, 2.0, 5.0, 20.0)
    exact = gaussian_release(std, 1.0, ONE)
    noise, claimed = Additive(2, std * math.sqrt(2), 4 * std + 1), Additive(1, std, 4 * std + 1)
    return [
        exact,
        Zcdp(rho, ONE),
        Rdp(tuple(a * rho for a in orders), ONE, orders),
        approximate(1.0, exact.delta(1.0), ONE),
        noise.release(1.0, 1.0, ONE),
        claimed.release(1.0, 1.0, ONE),
        composed((Release(claimed, 4, l2=1.0),), ONE),
    ]


@laws
@given(stds, st.floats(1.01, 5), chances, st.floats(0, 8), st.integers(1, 6))
def test_more_noise_never_costs_more_privacy(
    std: float, more: float, delta: float, epsilon: float, times: int
) -> None:
    for noisy, noisier in zip(by_noise(std), by_noise(std * more), strict=True):
        a, b = repeat(noisy, times), repeat(noisier, times)
        assert b.epsilon(delta) <= a.epsilon(delta) * SLIGHTLY
        assert b.delta(epsilon) <= a.delta(epsilon) * SLIGHTLY + 1e-15
        assert b.power(delta) <= a.power(delta) * SLIGHTLY


@laws
@given(stds, chances, chances, st.floats(0, 8), st.floats(0, 8))
def test_every_curve_falls_and_every_power_rises(
    std: float, one: float, two: float, a: float, b: float
) -> None:
    (small, large), (near, far) = sorted([one, two]), sorted([a, b])
    for g in by_noise(std):
        assert g.epsilon(large) <= g.epsilon(small)
        assert g.delta(far) <= g.delta(near) * SLIGHTLY
        assert g.power(small) <= g.power(large) * SLIGHTLY
        found = g.epsilon(small)
        assert found == math.inf or g.delta(found) <= small * SLIGHTLY


@laws
@given(stds, st.integers(1, 5), st.floats(0, 5))
def test_one_more_release_never_costs_less_and_order_does_not_matter(
    std: float, times: int, epsilon: float
) -> None:
    for g in by_noise(std):
        assert repeat(g, times + 1).delta(epsilon) * SLIGHTLY >= repeat(g, times).delta(epsilon)
    parts = [Gdp(1 / std, ONE), Zcdp(0.1, ONE), approximate(0.3, 0, ONE)]
    assert math.isclose(
        compose(parts).delta(epsilon), compose(parts[::-1]).delta(epsilon), rel_tol=1e-9
    )


@laws
@given(st.floats(0.05, 4), st.floats(1e-6, 0.4), st.floats(0.1, 3), st.floats(0, 1))
def test_truncated_laplace_keeps_its_claim_for_every_smaller_shift(
    eps: float, delta: float, shift: float, share: float
) -> None:
    noise = truncated_laplace(eps, delta, shift)
    assert math.isclose(noise.delta(eps, shift), delta, rel_tol=1e-6)
    assert noise.delta(eps, shift * share) <= delta * SLIGHTLY
    assert noise.escape([shift * share]) <= noise.delta(eps, shift * share) * SLIGHTLY + 1e-15


@laws
@given(st.integers(0, 10**6), st.floats(0, 0.5), st.integers(2, 12))
def test_the_packing_certificate_bounds_every_guess(seed: int, tolerance: float, m: int) -> None:
    draw = np.random.default_rng(seed)
    x, guesses = draw.random((m, 3)), draw.random((200, 3))
    kappa = reconstruction.kappa_packing(reconstruction.distances(x), tolerance)
    near = np.sqrt(((guesses[:, None] - x) ** 2).mean(-1)) <= tolerance
    assert near.mean(1).max() <= kappa + 1e-12


@laws
@given(counts, counts, st.floats(0.01, 0.2), st.floats(0, 1e-3))
def test_limits_are_defined_for_all_counts(
    a: list[int], b: list[int], alpha: float, delta: float
) -> None:
    found = Counts(a[0], a[1], b[0], b[1])
    assert 0 <= lower(a[0], a[1], alpha) <= upper(a[0], a[1], 1 - alpha) + 1e-9 <= 1 + 1e-9
    for value in (
        epsilon_lower(found, delta, alpha),
        epsilon_lower(found, delta, alpha, both=True),
        mu_lower(found, alpha),
    ):
        assert 0 <= value < math.inf
    better = Counts(a[1], a[1], 0, b[1])
    assert epsilon_lower(better, delta, alpha) >= epsilon_lower(found, delta, alpha)
    assert mu_lower(better, alpha) >= mu_lower(found, alpha)


@settings(derandomize=True, max_examples=15, deadline=None)
@given(st.integers(1, 60), st.integers(0, 60), st.integers(0, 60), st.floats(0, 1e-3))
def test_one_run_limits_rise_with_what_is_right(
    canaries: int, guesses: int, right: int, delta: float
) -> None:
    guesses = min(guesses, canaries)
    right = min(right, guesses)
    found, mu = (
        one_run.epsilon_lower(canaries, guesses, right, delta, 0.05),
        one_run.mu_lower(canaries, guesses, right, 0.05),
    )
    assert 0 <= found < math.inf
    assert 0 <= mu < math.inf
    if right < guesses:
        assert one_run.epsilon_lower(canaries, guesses, right + 1, delta, 0.05) >= found
        assert one_run.mu_lower(canaries, guesses, right + 1, 0.05) >= mu


@laws
@given(st.floats(0.01, 50), st.floats(1.01, 5), st.integers(1, 100))
def test_error_bounds_rise_with_noise(std: float, more: float, d: int) -> None:
    bounds: tuple[Callable[[float], float], ...] = (
        lambda s: mse.hcr(1 / s**2),
        lambda s: mse.fisher(mse.fisher_trace(np.eye(d), s), d),
        lambda s: mse.van_trees(d / s**2, 16.0 * d, d),
    )
    for bound in bounds:
        assert bound(std * more) >= bound(std)
