"""The mu of a view against tests that are learned from simulated runs alone: 200,000 runs a hypothesis, no formula of the engine.

Half of the runs teach a linear discriminant, the other half measure it; a Gaussian view cannot be told apart better than by it.
"""

from __future__ import annotations

import itertools
import math
import runpy
from collections.abc import Callable, Sequence
from fractions import Fraction as Q
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from leakaudit.core.adversary import Adversary
from leakaudit.theory.bounds.gaussian import power
from leakaudit.theory.relations import Relations, account, know

Array = NDArray[np.float64]
DECLARED: dict[str, Any] = runpy.run_path(
    str(Path(__file__).with_name("test_relations_protocols.py"))
)
RING: dict[int, list[int]] = DECLARED["RING"]
ALL = Adversary()
RUNS = 200_000
RATES = (0.001, 0.01, 0.05, 0.2, 0.5)


def spread(mu: float, rate: float, runs: int) -> float:
    """Return the statistical error of a true positive rate whose threshold was measured, too."""
    tpr, at = power(rate, mu), norm.ppf(rate)
    slope = norm.pdf(at + mu) / norm.pdf(at)
    return math.sqrt((tpr * (1 - tpr) + slope**2 * rate * (1 - rate)) / runs)


def agrees(still: Array, moved: Array, mu: float) -> None:
    """Check that a statistic's separation and true positive rates are those of mu; statistics (runs,) under both hypotheses."""
    assert (moved.mean() - still.mean()) / still.std() == pytest.approx(mu, rel=0.012)
    for rate in RATES:
        tpr = (moved > np.quantile(still, 1 - rate)).mean()
        assert abs(tpr - power(rate, mu)) < 4.5 * spread(mu, rate, len(still)) + 2e-5


def discriminant(still: Array, moved: Array) -> tuple[Array, Array]:
    """Learn a linear discriminant from the first half of the views (runs, messages); return its values on the second."""
    half = len(still) // 2
    shift = moved[:half].mean(0) - still[:half].mean(0)
    both = np.concatenate(
        [still[:half] - still[:half].mean(0), moved[:half] - moved[:half].mean(0)]
    )
    size, q = np.linalg.eigh(both.T @ both / len(both))
    keep = size > 1e-9 * size[-1]
    weights = q[:, keep] @ ((q[:, keep].T @ shift) / size[keep])
    return still[half:] @ weights, moved[half:] @ weights


def told_apart(simulate: Callable[[float, np.random.Generator], Array], mu: float) -> None:
    """Check a simulation of the view (messages, runs), which takes the change of node 0's gradients, against mu."""
    draw = np.random.default_rng(11)
    agrees(*discriminant(simulate(0.0, draw).T, simulate(1.0, draw).T), mu)


# --- D-PSGD -----------------------------------------------------------------------------------------------------------


def test_d_psgd_noised_with_gradients_that_depend_on_the_model() -> None:
    """Everybody mixes what was sent; the residual of node 0's next message is its shift and its noise."""
    draw, a, sigma, mix = (
        np.random.default_rng(1),
        0.1,
        0.05,
        np.array([[float(v) for v in row] for row in DECLARED["THIRD"]]),
    )
    found = []
    for change in (0.0, 1.0):
        x, total, expected = np.zeros((6, RUNS)), np.zeros(RUNS), np.zeros(RUNS)
        for t in range(7):
            sent = x + sigma * draw.normal(size=x.shape)
            if t:
                total += expected - sent[0]
            g = np.tanh(1.3 * sent + np.arange(6)[:, None] / 3)
            expected = (mix @ sent - a * g)[0]
            g[0] += change
            x = mix @ sent - a * g
        found.append(total)
    p = Relations()
    DECLARED["gossip"](p, DECLARED["THIRD"], 7, sigma=sigma)
    bound = account(know(p, ALL), p.gradients(0)[:6], 1.0)
    assert bound.mu == pytest.approx(4.8990, abs=5e-5)
    agrees(found[0], found[1], bound.mu)


def unnoised(rounds: int, sigma: float, *, own_only: bool) -> Relations:
    """D-PSGD that sends noised models but mixes models without noise: its own alone, or everybody's (a centralised simulation)."""
    p = Relations()
    x = {i: p.public("x", i) for i in RING}
    for _ in p.rounds(rounds):
        m = {i: p.send(i, RING[i], x[i] + p.noise("n", sigma, i), "x") for i in RING}
        other = m if own_only else dict(x)
        x = {
            i: p.state(
                "x",
                i,
                eq=Q(1, 3) * (x[i] + sum(other[j] for j in RING[i]))
                - Q(1, 10) * p.grad(i, at=x[i]),
            )
            for i in RING
        }
    return p


def simulated(
    rounds: int, sigma: float, senders: Sequence[int], *, own_only: bool
) -> Callable[[float, np.random.Generator], Array]:
    def simulate(change: float, draw: np.random.Generator) -> Array:
        x, view = np.zeros((6, RUNS)), []
        for _ in range(rounds):
            sent = x + sigma * draw.normal(size=x.shape)
            view += [sent[i] for i in senders]
            g = np.repeat(np.arange(6)[:, None] / 3, RUNS, axis=1)
            g[0] += change
            other = sent if own_only else x
            x = np.stack(
                [(x[i] + sum(other[j] for j in RING[i])) / 3 - 0.1 * g[i] for i in range(6)]
            )
        return np.stack(view)

    return simulate


@pytest.mark.parametrize(
    ("taps", "senders", "mu"),
    [({(2, 3)}, [2], 1.3296), ({(2, 3), (4, 3)}, [2, 4], None), (None, range(6), None)],
    ids=["one", "two", "all"],
)
def test_d_psgd_that_mixes_without_noise(
    taps: set[tuple[int, int]] | None, senders: Sequence[int], mu: float | None
) -> None:
    p = unnoised(7, 0.05, own_only=False)
    adversary = ALL if taps is None else Adversary(hears=frozenset(taps))
    bound = account(know(p, adversary), p.gradients(0)[:6], 1.0)
    assert mu is None or bound.mu == pytest.approx(mu, abs=5e-5)
    assert set(bound.certificate) == {0}
    told_apart(simulated(7, 0.05, senders, own_only=False), bound.mu)


def test_whoever_knows_his_own_model_sees_such_a_protocol_without_noise() -> None:
    p = unnoised(7, 0.05, own_only=False)
    for node in (1, 3):
        bound = account(
            know(p, Adversary(hears="none", corrupt=frozenset({node}))), p.gradients(0)[:6], 1.0
        )
        assert bound.mu == math.inf
        assert bound.leaking


def test_d_psgd_whose_own_model_is_mixed_without_noise() -> None:
    p = unnoised(11, 0.3, own_only=True)
    bound = account(know(p, ALL), p.gradients(0)[:10], 1.0)
    assert bound.mu == pytest.approx(1.5104, abs=5e-5)
    assert [power(rate, bound.mu) for rate in RATES[:4]] == pytest.approx(
        [0.0571, 0.2073, 0.4465, 0.7482], abs=5e-5
    )
    told_apart(simulated(11, 0.3, range(6), own_only=True), bound.mu)


def stop_when_ahead(_: Array, score: Array) -> Array:
    return np.where(score > 1, 0.0, 1.0)


def follow_the_last(residual: Array, _: Array) -> Array:
    return np.where(residual < 0, -1.0, 1.0)


def double_or_nothing(_: Array, score: Array) -> Array:
    return np.where(score < 0, 1.0, 0.3)


@pytest.mark.parametrize("choose", [stop_when_ahead, follow_the_last, double_or_nothing])
def test_changes_that_are_chosen_from_what_was_seen_gain_nothing(
    choose: Callable[[Array, Array], Array],
) -> None:
    """The change of every gradient, at most 1, depends on the view so far; the exact likelihood ratio stays below the curve."""
    p = unnoised(11, 0.3, own_only=True)
    mu = account(know(p, ALL), p.gradients(0)[:10], 1.0).mu
    draw, scores = np.random.default_rng(2), []
    for hypothesis in (0, 1):
        shift, residual, score = np.zeros(RUNS), np.zeros(RUNS), np.zeros(RUNS)
        for _ in range(10):
            shift = shift / 3 - 0.1 * choose(residual, score)
            residual = hypothesis * shift + 0.3 * draw.normal(size=RUNS)
            score += (shift * residual - shift**2 / 2) / 0.09
        scores.append(score)
    for rate in RATES:
        tpr = (scores[1] > np.quantile(scores[0], 1 - rate)).mean()
        assert tpr < power(rate, mu) + 4 * spread(mu, rate, RUNS)


# --- the other rows ---------------------------------------------------------------------------------------------------


def dpnorm_simulated(
    steps: int, rounds: int = 8, mu: float = 0.05, alpha: float = 0.2, sigma: float = 0.1
) -> Callable[..., Array]:
    def simulate(change: float, draw: np.random.Generator) -> Array:
        z = {(i, j): np.zeros(RUNS) for i in RING for j in RING[i]}
        w, view = {i: np.zeros(RUNS) for i in RING}, []
        eta = 1 / (mu * 2 * steps)
        gamma = 1 + alpha * eta
        for _ in range(rounds):
            sent = dict[tuple[int, int], Array]()
            for i in RING:
                pull = sum((1 if i < j else -1) * z[i, j] for j in RING[i])
                for _ in range(steps):
                    g = 0.3 * i - 0.5 + (change if i == 0 else 0.0)
                    w[i] = (
                        gamma / (gamma + eta * mu * 2) * (w[i] - mu * g + mu * eta / gamma * pull)
                    )
                noised = w[i] + sigma * draw.normal(size=RUNS)
                sent |= {
                    (i, j): 2 / gamma * (z[i, j] - (1 if i < j else -1) * noised) - z[i, j]
                    for j in RING[i]
                }
            view += list(sent.values())
            z = {(i, j): sent[j, i] for i, j in sent}
        return np.stack(view)

    return simulate


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "mu"), [(1, 2.9522), (3, 6.0160)])
def test_dp_norm(steps: int, mu: float) -> None:
    p = Relations()
    DECLARED["dpnorm"](p, RING, 8, steps=steps, sigma=0.1)
    bound = account(know(p, ALL), p.gradients(0), 1.0)
    assert bound.mu == pytest.approx(mu, abs=5e-5)
    told_apart(dpnorm_simulated(steps), bound.mu)


@pytest.mark.parametrize("node", [1, 2, 4])
def test_gossip_that_is_noised_once(node: int) -> None:
    """Values are noised once and then averaged four times over a ring of eight, heard around node 0."""
    near, p = DECLARED["ring"](8), Relations()
    s = p.secret("s", node)
    x = {
        i: p.state("x", i, eq=(s if i == node else p.public("s", i)) + p.noise("n", 1.0, i))
        for i in near
    }
    for _ in p.rounds(4):
        for i in near:
            p.send(i, near[i], x[i], "x")
        x = {i: p.state("x", i, eq=Q(1, 3) * (x[i] + sum(x[j] for j in near[i]))) for i in near}
    bound = account(know(p, Adversary(hears="none", corrupt=frozenset({0})), own=False), [s], 1.0)
    assert bound.mu == pytest.approx(1, abs=1e-9)

    def simulate(change: float, draw: np.random.Generator) -> Array:
        values = draw.normal(size=(8, RUNS))
        values[node] += change
        view = []
        for _ in range(4):
            view += [values[7], values[0], values[1]]
            values = (values + np.roll(values, 1, axis=0) + np.roll(values, -1, axis=0)) / 3
        return np.stack(view)

    told_apart(simulate, bound.mu)


def test_dp_dkm_is_the_sum_of_its_rounds() -> None:
    near, p, n, rounds = DECLARED["ring"](5), Relations(), 5, 10
    steps = [Q(5, 5 + t) for t in range(rounds + 1)]
    x = {i: p.public("x", i) for i in range(n)}
    for t in p.rounds(rounds + 1):
        m = {i: p.send(i, near[i], x[i] + p.noise("n", 0.7, i), "x") for i in near}
        x = {
            i: p.state(
                "x",
                i,
                eq=Q(1, 3) * (m[i] + sum(m[j] for j in near[i]))
                + steps[t - 1] * p.grad(i, at=x[i]),
            )
            for i in near
        }
    bound = account(know(p, ALL), p.gradients(0)[:rounds], 2.0)
    assert bound.mu == pytest.approx(
        2 * math.sqrt(sum(float(a) ** 2 for a in steps[:rounds])) / 0.7, rel=1e-9
    )
    assert bound.mu == pytest.approx(5.576641, abs=5e-7)
    assert bound.certificate == (2, *[1] * 9)


def test_gradients_that_repel_each_other_in_a_noised_difference() -> None:
    """Differences with fresh noise and a loud first gradient: M has negative entries, and aligned changes are not the worst."""
    p = Relations()
    g = [p.secret("g", 0, t) for t in range(8)]
    for t, (before, after) in enumerate(itertools.pairwise(g)):
        p.send(0, 1, after - before + p.noise("n", 1.0, 0, t), "m", index=t)
    p.send(0, 1, g[0] + p.noise("n", 10.0, 0, 8), "first")
    bound = account(know(p, ALL), g, 1.0)
    assert bound.fisher is not None
    difference = np.diff(np.eye(8), axis=0)
    expected = difference.T @ difference
    expected[0, 0] += 0.01
    np.testing.assert_allclose(bound.fisher, expected, atol=1e-9)
    signs = np.array(list(itertools.product((-1, 1), repeat=8)))
    best = math.sqrt(np.einsum("ks,st,kt->k", signs, expected, signs).max())
    assert best == pytest.approx(math.sqrt(28.01))
    assert bound.attained == pytest.approx(best, rel=1e-6)
    assert bound.attained <= bound.mu <= best * (1 + 1e-4)
    alternating = (-1.0) ** np.arange(8)
    draw = np.random.default_rng(4)
    residual = np.concatenate([difference @ alternating, [alternating[0] / 10]])[:, None]
    noise = draw.normal(size=(2, 8, RUNS))
    agrees((residual * noise[0]).sum(0), (residual * (noise[1] + residual)).sum(0), bound.attained)
