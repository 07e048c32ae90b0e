"""Estimates against dense least squares, against simulated runs that know nothing of the engine, and against published figures."""

from __future__ import annotations

import itertools
import math
import runpy
from fractions import Fraction as Q
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.theory.relations import (
    Expression,
    Knowledge,
    Relations,
    Vector,
    estimate,
    explain,
    know,
)
from leakaudit.theory.relations.kkt import system

Array = NDArray[np.float64]
Update = Literal["exact", "gradient", "quadratic"]
DECLARED: dict[str, Any] = runpy.run_path(
    str(Path(__file__).with_name("test_relations_protocols.py"))
)
ALL = Adversary()
RHO, ALPHA, MU = 0.4, 0.02, 40.0


def dense(k: Knowledge, combinations: list[Expression], rounding: float) -> Array:
    """Return std of the best linear unbiased estimates by singular values; the cut is relative to B, not to what is left of it."""
    s = system(k, rounding)
    f, b = s.flat.toarray(), s.noise.toarray()
    c = np.zeros((f.shape[1], len(combinations)))
    for j, e in enumerate(combinations):
        for place, value in e.terms.items():
            c[s.columns[place], j] = float(value)
    left, size, right = np.linalg.svd(f)
    r = int((size > 1e-9 * size[0]).sum())
    fixed, free = left[:, :r] @ ((right[:r] @ c) / size[:r, None]), left[:, r:]
    u, s2, v = np.linalg.svd(b.T @ free, full_matrices=False)
    keep = s2 > 1e-9 * np.linalg.norm(b, 2)
    best = fixed - free @ (v[keep].T @ ((u[:, keep].T @ (b.T @ fixed)) / s2[keep, None]))
    assert np.abs(f.T @ best - c).max() < 1e-8
    return np.asarray(np.linalg.norm(b.T @ best, axis=0))


def network() -> dict[int, list[int]]:
    """Return a ring of ten nodes with random chords, the graph of the published figures."""
    draw, around = np.random.default_rng(0), {i: {(i - 1) % 10, (i + 1) % 10} for i in range(10)}
    for _ in range(10):
        a, b = (int(v) for v in draw.choice(10, 2, replace=False))
        around[a].add(b)
        around[b].add(a)
    return {i: sorted(v) for i, v in around.items()}


class Logistic:
    """Ten nodes with regularised logistic losses, and PDMM on them in plain loops."""

    def __init__(self, width: int = 6) -> None:
        draw = np.random.default_rng(7)
        self.x = draw.normal(size=(10, 12, width))
        self.y = draw.integers(0, 2, size=(10, 12)).astype(float)

    def gradient(self, i: int, w: Array) -> Array:
        return np.asarray(self.x[i].T @ (1 / (1 + np.exp(-self.x[i] @ w)) - self.y[i]) + 0.1 * w)

    def proximal(self, i: int, w: Array, pull: Array, c: float) -> Array:
        for _ in range(60):
            s = 1 / (1 + np.exp(-self.x[i] @ w))
            hessian = (self.x[i].T * (s * (1 - s))) @ self.x[i] + (0.1 + c) * np.eye(len(w))
            w = w - np.linalg.solve(hessian, self.gradient(i, w) + pull + c * w)
        return w

    def run(
        self, near: dict[int, list[int]], rounds: int, update: Update, theta: float
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return messages and gradients by the labels of the declaration."""
        draw, width = np.random.default_rng(1), self.x.shape[2]
        z: dict[tuple[int, int], Array] = {
            (i, j): draw.normal(size=(width,)) for i in near for j in near[i]
        }
        w: dict[int, Array] = {i: 0.1 * draw.normal(size=(width,)) for i in near}
        sent: dict[str, Array] = {}
        gradients: dict[str, Array] = {}
        for t in range(1, rounds + 1):
            for i in near:
                pull, c = sum((1 if i < j else -1) * z[i, j] for j in near[i]), RHO * len(near[i])
                g = self.gradient(i, w[i])
                if update == "exact":
                    w[i] = self.proximal(i, w[i], np.asarray(pull), c)
                    g = self.gradient(i, w[i])
                elif update == "gradient":
                    w[i] = w[i] - ALPHA * (g + pull + c * w[i])
                else:
                    w[i] = (MU * w[i] - g - pull) / (MU + c)
                gradients[f"g[{i},{t}]"] = g
            new = {
                (j, i): (1 - theta) * z[j, i]
                + theta * (z[i, j] + 2 * RHO * (1 if i < j else -1) * w[i])
                for i in near
                for j in near[i]
            }
            sent |= {f"dz[{i}>{j},{t}]": new[j, i] - z[j, i] for i in near for j in near[i]}
            z = new
        return sent, gradients


def combine(expression: Expression, values: dict[str, Array]) -> Array:
    return np.asarray(
        sum(float(v) * values[expression.home[k].label] for k, v in expression.terms.items())
    )


@pytest.mark.parametrize(
    ("update", "theta", "amplification"),
    [
        ("exact", Q(1), 0.996),
        ("exact", Q(1, 2), 1.935),
        ("gradient", Q(1), 53.60),
        ("gradient", Q(1, 2), 128.40),
        ("quadratic", Q(1), 43.94),
        ("quadratic", Q(1, 2), 105.52),
    ],
)
def test_differences_of_a_simulated_pdmm_run(
    update: Update, theta: Q, amplification: float
) -> None:
    near, rounds, cell = network(), 30, 1e-3
    sent, gradients = Logistic().run(near, rounds, update, float(theta))
    p = Relations()
    DECLARED["pdmm"](p, near, rounds, theta=theta, update=update, alpha=Q(1, 50), mu=Q(40))
    g = p.gradients(0)
    first = 2 if update != "exact" else 1
    k, wanted = know(p, ALL), [a - b for a, b in itertools.pairwise(g[first : rounds - 2])]
    truth = np.stack([combine(e, gradients) for e in wanted])
    found = estimate(k, wanted)
    assert found.amplification.mean() == pytest.approx(amplification, rel=2e-3)
    np.testing.assert_allclose(found.std, 1e-7 * found.amplification, rtol=1e-6)

    exact = found.apply(lambda v: torch.from_numpy(sent[v.label]))
    assert float((exact - torch.from_numpy(truth)).abs().max()) < 1e-11
    draw, errors = np.random.default_rng(2), []
    for _ in range(20):
        noisy = {
            key: value + cell * (draw.random(value.shape) - 0.5) for key, value in sent.items()
        }
        errors.append(
            found.apply(lambda v, noisy=noisy: torch.from_numpy(noisy[v.label])).numpy() - truth  # type: ignore[misc]
        )
    predicted = math.sqrt(np.square(found.std).mean()) / 1e-7 * cell / math.sqrt(12)
    assert math.sqrt(np.square(errors).mean()) / predicted == pytest.approx(1, abs=0.04)


@pytest.mark.parametrize("update", ["exact", "gradient", "quadratic"])
def test_the_formula_of_explain_holds_on_a_simulated_run(update: Update) -> None:
    near = network()
    sent, gradients = Logistic().run(near, 8, update, 0.5)
    p = Relations()
    DECLARED["pdmm"](p, near, 8, theta=Q(1, 2), update=update, alpha=Q(1, 50), mu=Q(40))
    wanted = p.find("g", 0, 4) - p.find("g", 0, 5)
    formula = explain(know(p, ALL), wanted)
    assert formula is not None
    assert {p.vectors[v].kind for v in formula.terms} == {"message"}
    np.testing.assert_allclose(combine(formula, sent), combine(wanted, gradients), atol=1e-10)
    assert explain(know(p, ALL), p.find("g", 0, 4)) is None


def test_more_of_the_network_is_quieter_and_dense_least_squares_agrees() -> None:
    p = Relations()
    DECLARED["pdmm"](p, network(), 9)
    k, wanted = know(p, ALL), [p.find("g", 0, 4) - p.find("g", 0, 5)]
    own, every = estimate(k.near([0]), wanted), estimate(k, wanted)
    assert own.std[0] == pytest.approx(dense(k.near([0]), wanted, 1e-7)[0], rel=1e-6)
    assert every.std[0] == pytest.approx(dense(k, wanted, 1e-7)[0], rel=1e-6)
    assert own.std[0] > every.std[0]
    assert estimate(k.within(range(2, 9)), wanted).std[0] >= every.std[0] * (1 - 1e-9)


def rounds_of(steps: int) -> tuple[Relations, list[Expression]]:
    p = Relations()
    DECLARED["dpnorm"](p, DECLARED["RING"], 12, steps=steps, sigma=0.01)
    weights = [Q(5, 6) ** (steps - 1 - k) for k in range(steps)]
    g = p.gradients(2)
    every = [
        sum(w * e for w, e in zip(weights, g[at : at + steps], strict=True))
        for at in range(0, len(g), steps)
    ]
    return p, [e for e in (*every, sum(every[1:]) / 11) if isinstance(e, Expression)]


@pytest.mark.parametrize(("steps", "one", "mean"), [(1, 0.333, 0.036), (3, 0.277, 0.039)])
def test_dp_norm_whose_parities_hold_no_noise(steps: int, one: float, mean: float) -> None:
    """Two wires share one noise, so most checks are noise-free: B'N is about 1e-17, and only a cut relative to B drops it."""
    p, wanted = rounds_of(steps)
    found = estimate(know(p, ALL), wanted, rounding=0)
    assert found.std[1] == pytest.approx(one, abs=5e-4)
    assert found.std[-1] == pytest.approx(mean, abs=1e-3)
    np.testing.assert_allclose(found.std, dense(know(p, ALL), wanted, 0.0), rtol=1e-6)
    assert np.abs(found.weights).max() < 1e3


@pytest.mark.parametrize(("noised", "one", "mean"), [(True, 0.5, 0.129), (False, 0.577, None)])
def test_the_noise_of_d_psgd(noised: bool, one: float, mean: float | None) -> None:
    p = Relations()
    DECLARED["gossip"](p, DECLARED["THIRD"], 16, sigma=0.05, noised=noised)
    g, draw = p.gradients(0)[:15], np.random.default_rng(3)
    average = sum(g[1:], start=g[0]) / 15
    found = estimate(know(p, ALL), [*g, average], rounding=0)
    assert found.std[1] == pytest.approx(one, abs=1e-3)
    assert mean is None or found.std[-1] == pytest.approx(mean, abs=1e-3)
    np.testing.assert_allclose(found.std, dense(know(p, ALL), found.combinations, 0.0), rtol=1e-6)  # type: ignore[arg-type]
    mixing = np.array([[float(v) for v in row] for row in DECLARED["THIRD"]])
    coupling, runs = draw.normal(size=(6, 4, 4)), []
    for _ in range(600):
        x, values, truth = np.zeros((6, 4)), {f"x[{i},0]": np.zeros(4) for i in range(6)}, []
        for t in range(1, 17):
            gradient = np.tanh(np.einsum("nij,nj->ni", coupling, x) + np.arange(6)[:, None] / 3)
            seen = x + 0.05 * draw.normal(size=x.shape)
            values |= {
                f"x[{i}>{'&'.join(map(str, DECLARED['RING'][i]))},{t}]": seen[i] for i in range(6)
            }
            truth.append(gradient[0])
            x = mixing @ (seen if noised else x) - 0.1 * gradient
        truth = [*truth[:15], np.mean(truth[:15], 0)]
        runs.append(
            (
                found.apply(lambda v, values=values: torch.from_numpy(values[v.label])).numpy()  # type: ignore[misc]
                - truth
            )
            / found.std[:, None]
        )
    assert np.std(np.stack(runs)[:, :-1]) == pytest.approx(1, abs=0.02)
    assert np.std(np.stack(runs)[:, -1]) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("drift", "std"), [(0.1, 0.158), (0.02, 0.077)])
def test_a_prior_on_the_drift_of_gradients_smooths(drift: float, std: float) -> None:
    p = Relations()
    DECLARED["gossip"](p, DECLARED["THIRD"], 61, sigma=0.05)
    for t, (before, after) in enumerate(itertools.pairwise(p.gradients(0)[:60])):
        p.relate(after - before, p.noise("drift", drift, 0, t))
    assert estimate(know(p, ALL), [p.find("g", 0, 31)], rounding=0).std[0] == pytest.approx(
        std, abs=1e-3
    )


def test_nids_gives_absolute_gradients_with_little_amplification() -> None:
    p = Relations()
    DECLARED["nids"](p, DECLARED["THIRD"], 12)
    found = estimate(know(p, ALL), [p.find("g", 3, t) for t in range(3, 13)])
    assert found.amplification.max() < 30
    np.testing.assert_allclose(
        found.std, dense(know(p, ALL), list(found.combinations), 1e-7), rtol=1e-6
    )


@pytest.mark.parametrize("rounding", [0, 1e-3, 1e-7, 1e-12])
def test_rounding_far_below_the_noise_does_not_disturb_it(rounding: float) -> None:
    p = Relations()
    DECLARED["dpnorm"](p, DECLARED["RING"], 6, sigma=1.0)
    wanted = p.gradients(0)
    found = estimate(know(p, ALL), wanted, rounding=rounding)
    np.testing.assert_allclose(found.std, dense(know(p, ALL), wanted, rounding), rtol=1e-5)
    assert np.abs(found.weights).max() < 1e4


def test_unknown_directions_do_not_enter() -> None:
    """Gauge freedom: the start values are never determined, and the differences do not change when they are pinned."""
    p = Relations()
    DECLARED["pdmm"](p, network(), 9)
    wanted = [p.find("g", 0, 4) - p.find("g", 0, 5)]
    k = know(p, ALL)
    loose, pinned = estimate(k, wanted), estimate(k.also([p.find("z", 0, 0, 1)]), wanted)
    assert loose.std[0] == pytest.approx(pinned.std[0], rel=1e-5)


def test_what_is_not_determined_has_no_estimate() -> None:
    p = Relations()
    DECLARED["pdmm"](p, network(), 6)
    with pytest.raises(LeakauditError, match="does not determine all of these combinations"):
        estimate(know(p, ALL), [p.find("g", 0, 4)])
    with pytest.raises(LeakauditError, match=r"dz\[0>1,2\] is known"):
        estimate(know(p, ALL), [next(m for m in p.select("message") if str(m) == "dz[0>1,2]")])


def test_the_error_of_a_channel_counts() -> None:
    p = Relations()
    g = p.secret("g", 0)
    p.send(0, 1, 2 * g, "fine", std=3e-3)
    p.send(0, 1, g, "coarse", std=4e-3)
    found = estimate(know(p, ALL), [g], rounding=0)
    assert found.std[0] == pytest.approx((4 / 3e-3**2 + 1 / 4e-3**2) ** -0.5)
    np.testing.assert_allclose(np.linalg.norm(found.noise, axis=1), found.std)
    values: dict[Vector, torch.Tensor] = {
        v: torch.full((2,), 2.0 if v.name == "fine" else 1.0) for v in found.vectors
    }
    torch.testing.assert_close(
        found.apply(values.__getitem__), torch.ones(1, 2, dtype=torch.float64)
    )
