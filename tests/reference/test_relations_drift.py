"""Record level where the model is not released: drift bounds against recursions, simulated runs and
published figures.
"""

from __future__ import annotations

import math
import runpy
from fractions import Fraction as Q
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.theory.bounds.gaussian import epsilon, power
from leakaudit.theory.relations import Relations, account, drift, know

DECLARED: dict[str, Any] = runpy.run_path(
    str(Path(__file__).with_name("test_relations_protocols.py"))
)
ALL = Adversary()
SIGMA = 0.17105094168330182  # of DP-Norm's Theorem 1 at R = 2000, epsilon = 1, delta = 1e-3
BATCH, STEP, LOCAL = 2000, Q(3, 100), 10
FACTOR = (
    1 / (1 + Q(1, 5) / (STEP * 2 * LOCAL) + Q(1, LOCAL)) * (1 + Q(1, 5) / (STEP * 2 * LOCAL))
)  # a = gamma / (gamma + 1 / K)


@lru_cache
def dpnorm(rounds: int, local: int = LOCAL) -> Relations:
    """One node of DP-Norm with two wires in the paper's setting; what it receives is seen."""
    p = Relations()
    w = p.public("w")
    for _ in p.rounds(rounds):
        received = p.public("z")
        for k in range(local):
            w = p.state(
                "w", 0, k, eq=FACTOR * (w - STEP * p.grad(0, at=w, index=k)) + Q(1, 100) * received
            )
        p.send(0, (1, 2), w + p.noise("n", SIGMA, 0), name="y")
    return p


def recursion(rounds: int, smoothness: float, every: int, local: int = LOCAL) -> float:
    """Return mu by s+ = a (s (1 + step L) + step Delta), once a round over the noise."""
    s, total, a, step = 0.0, 0.0, float(FACTOR), float(STEP)
    for r in range(rounds):
        for k in range(local):
            s = a * (
                s * (1 + step * smoothness)
                + step * (2 / BATCH if (r * local + k) % every == 0 else 0)
            )
        total += (s / SIGMA) ** 2
    return math.sqrt(total)


def members(count: int, every: int) -> list[float]:
    return [2 / BATCH if k % every == 0 else 0.0 for k in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 2], ids=["every batch", "every second"])
@pytest.mark.parametrize(
    ("smoothness", "published"),
    [(0.0, (0.209, 0.085)), (10 / 17, (0.288, 0.120)), (2.0, (1.42, 0.62)), (2.4, (10.6, 4.3))],
    ids=["convex", "paper's limit", "2", "2.4"],
)
def test_dp_norm_in_its_papers_setting(
    smoothness: float, published: tuple[float, float], every: int
) -> None:
    """2000 rounds of 10 steps for a claimed epsilon of 1; mu <= 1 / (c K L) with c = 17 / 3 is the
    paper's own limit.
    """
    p = dpnorm(2000)
    g = p.gradients(0)
    mu, _ = drift(know(p, ALL), g, members(len(g), every), smoothness)
    assert mu == pytest.approx(recursion(2000, smoothness, every), rel=1e-9)
    assert epsilon(1e-3, mu) == pytest.approx(published[every - 1], rel=5e-3)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("smoothness", [0.0, 0.5, 2.4])
def test_what_the_noise_hides_is_the_mu_of_the_drifted_changes(
    smoothness: float, every: int
) -> None:
    p = dpnorm(25, 3)
    k, g = know(p, ALL), p.gradients(0)
    mu, limits = drift(k, g, members(len(g), every), smoothness)
    exact = account(k, g, limits)
    assert mu == pytest.approx(recursion(25, smoothness, every, 3), rel=1e-9)
    assert mu == pytest.approx(exact.mu, rel=1e-7)
    assert exact.certificate == (2, *[1] * 74)
    assert account(k, g, members(len(g), every)).mu <= mu * (1 + 1e-9)


def test_a_loss_of_curvature_minus_l_reaches_the_bound_and_one_of_plus_l_does_not() -> None:
    """200,000 runs of x+ = a (x - step g(x)) with g(x) = -+ L x + b, whose b one record moves by
    Delta; x is sent with noise.
    """
    rounds, step, a, smooth, change, sigma, runs = 12, 0.05, 0.9, 3.0, 1.0, 0.1, 200_000
    p = Relations()
    x = p.public("x")
    for _ in p.rounds(rounds):
        x = p.state("x", 0, eq=Q(9, 10) * (x - Q(1, 20) * p.grad(0, at=x)))
        p.send(0, 1, x + p.noise("n", sigma, 0), "x")
    mu, _ = drift(know(p, ALL), p.gradients(0), change, smooth)
    draw = np.random.default_rng(3)
    measured = []
    for curvature in (-smooth, smooth):
        views = []
        for moved in (0.0, change):
            model, sent = np.zeros(runs), []
            for _ in range(rounds):
                model = a * (model - step * (curvature * model + 0.3 + moved))
                sent.append(model + sigma * draw.normal(size=runs))
            views.append(np.stack(sent))
        shift = views[1].mean(1) - views[0].mean(1)
        scores = [shift @ view / sigma**2 for view in views]
        measured.append((scores[1].mean() - scores[0].mean()) / scores[0].std())
        for rate in (0.01, 0.05, 0.2):
            assert (scores[1] > np.quantile(scores[0], 1 - rate)).mean() <= power(rate, mu) + 0.005
    assert measured[0] == pytest.approx(mu, rel=0.01)
    assert measured[1] < 0.6 * mu
    assert account(know(p, ALL), p.gradients(0), change).mu < measured[0]


def test_a_model_that_is_released_does_not_drift() -> None:
    p = Relations()
    x = p.public("x")
    for _ in p.rounds(5):
        x = p.send(0, 1, x - Q(1, 10) * p.grad(0, at=x) + p.noise("n", 0.1, 0), "x")
    k, g = know(p, ALL), p.gradients(0)
    assert account(k, g, 1.0).certificate == (2,) * 5
    mu, limits = drift(k, g, 1.0, 100.0)
    assert limits == (1.0,) * 5
    assert mu == pytest.approx(math.sqrt(5))


def test_d_psgd_that_mixes_what_is_seen_drifts_by_one_step() -> None:
    """x+ = seen - a g: gradient t + 1 sits at a point that gradient t moved, so D_1 = 1 and D_{t+1}
    = 1 + a L D_t.
    """
    p = Relations()
    DECLARED["gossip"](p, DECLARED["THIRD"], 6, sigma=0.05)
    k, g = know(p, ALL), p.gradients(0)
    mu, limits = drift(k, g, 1.0, 2.0)
    expected = [1.0]
    for _ in range(5):
        expected.append(1 + 0.1 * 2 * expected[-1])
    assert limits == pytest.approx(expected)
    assert mu == pytest.approx(0.1 / 0.05 * math.hypot(*expected[:5]))
    assert account(k, g, limits).mu == pytest.approx(mu)


def test_two_noises_on_one_message_are_left_to_the_exact_account() -> None:
    p = Relations()
    g = p.secret("g", 0)
    p.send(0, 1, g + p.noise("n", 3.0, 0, 0) + p.noise("n", 4.0, 0, 1), "m")
    mu, limits = drift(know(p, ALL), [g], 1.0, 0.0)
    assert mu == math.inf
    assert account(know(p, ALL), [g], limits).mu == pytest.approx(0.2)


def test_a_combination_without_noise_has_no_finite_mu() -> None:
    p = Relations()
    x = p.public("x")
    for t in p.rounds(3):
        x = p.state("x", 0, eq=x - p.grad(0, at=x))
        p.send(0, 1, x + p.noise("n", 1.0, 0) if t < 3 else x, "x")
    assert drift(know(p, ALL), p.gradients(0), 1.0, 0.0)[0] == math.inf


def test_a_nonlinear_step_of_what_is_seen_does_not_move() -> None:
    p = Relations()
    x = p.public("x")
    for _ in p.rounds(4):
        seen = p.send(0, 1, x - Q(1, 2) * p.grad(0, at=x) + p.noise("n", 0.5, 0), "x")
        x = p.state("clipped", 0)
        p.opaque(x, of=[seen])
    assert drift(know(p, ALL), p.gradients(0), 1.0, 7.0)[1] == (1.0,) * 4


def test_what_drift_cannot_bound_is_refused() -> None:
    p = dpnorm(4, 2)
    k, g = know(p, ALL), p.gradients(0)
    with pytest.raises(
        LeakauditError,
        match=r"g\[0\|1,1\] reacts to the change but is not a target; pass all gradients of one node",
    ):
        drift(k, g[:1], 1.0, 1.0)
    with pytest.raises(LeakauditError, match="expected a smoothness >= 0"):
        drift(k, g, 1.0, -1.0)
    with pytest.raises(LeakauditError, match="one finite sensitivity"):
        drift(k, g, math.nan, 1.0)

    hidden = Relations()
    x = hidden.public("x")
    for _ in hidden.rounds(3):
        x = hidden.state("x", 0, eq=x - hidden.grad(0, at=x) + hidden.noise("steer", 1.0, 0))
        hidden.send(0, 1, x + hidden.noise("n", 1.0, 0), "x")
    with pytest.raises(
        LeakauditError,
        match=r"what is observed before g\[0,2\] and the node's own past gradients do not bound",
    ):
        drift(know(hidden, ALL), hidden.gradients(0), 1.0, 1.0)
    assert account(know(hidden, ALL), hidden.gradients(0), 1.0).certificate == (2, 0, 0)
