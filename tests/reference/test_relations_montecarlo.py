"""The standard deviation that is predicted against the errors of simulated runs, within 2 %; the simulators know nothing of the engine.

Models here have tens of thousands of coordinates with losses of their own, so one run is as many independent runs.
"""

from __future__ import annotations

import itertools
import math
import random
import runpy
from collections.abc import Callable, Mapping
from fractions import Fraction as Q
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from leakaudit.core.adversary import Adversary
from leakaudit.theory.relations import Estimate, Expression, Relations, Vector, estimate, know

Array = NDArray[np.float64]
HERE = Path(__file__)
DECLARED: dict[str, Any] = runpy.run_path(str(HERE.with_name("test_relations_protocols.py")))
PDMM: dict[str, Any] = runpy.run_path(str(HERE.with_name("test_relations_estimate.py")))
RING: dict[int, list[int]] = DECLARED["RING"]
ALL = Adversary()
NEIGHBOUR = Adversary(
    hears=frozenset({(5, 4)}), corrupt=frozenset({1})
)  # of node 0, who hears its other neighbour, too
WIDTH = 20_000
CLOSE = 0.02


def applied(found: Estimate, values: Mapping[str, Array], width: int = WIDTH) -> Array:
    """Return the estimates; public vectors that no simulator names are zero."""

    def fetch(vector: Vector) -> torch.Tensor:
        value = (
            values.get(vector.label)
            if vector.kind != "public"
            else values.get(vector.label, np.zeros(width))
        )
        assert value is not None, vector.label
        return torch.from_numpy(np.asarray(value, dtype=np.float64))

    return np.asarray(found.apply(fetch).numpy())


def ratio(errors: Array, std: Array) -> float:
    """Return the root mean square of errors (m, width) over their predicted std (m,)."""
    return math.sqrt(float(np.square(errors / std[:, None]).mean()))


def gradients(nodes: int, width: int = WIDTH) -> Callable[[int, Array], Array]:
    """Return gradients that bend: every coordinate of every node has a slope and an offset of its own."""
    draw = np.random.default_rng(7)
    slope, offset = draw.normal(size=(nodes, width)), np.arange(nodes) / 3
    return lambda i, x: np.asarray(np.tanh(slope[i] * x + offset[i]))


# --- PDMM on quantized wires ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [Q(1), Q(1, 2)])
@pytest.mark.parametrize("update", ["exact", "gradient", "quadratic"])
def test_differences_of_pdmm_from_dithered_messages(update: str, theta: Q) -> None:
    near, rounds, cell, runs = PDMM["network"](), 30, 1e-3, 400
    sent, true = PDMM["Logistic"]().run(near, rounds, update, float(theta))
    p = Relations()
    DECLARED["pdmm"](p, near, rounds, theta=theta, update=update, alpha=Q(1, 50), mu=Q(40))
    wanted = [a - b for a, b in itertools.pairwise(p.gradients(0)[2 : rounds - 2])]
    found = estimate(know(p, ALL), wanted, rounding=cell / math.sqrt(12))
    truth = np.stack([PDMM["combine"](e, true) for e in wanted])
    draw = np.random.default_rng(2)
    seen = np.stack([sent[v.label] for v in found.vectors])[:, :, None]
    dithered = seen + cell * (draw.random((*seen.shape[:2], runs)) - 0.5)
    errors = np.einsum("mk,kcr->mcr", found.weights, dithered, optimize=True) - truth[:, :, None]
    assert ratio(errors.reshape(len(wanted), -1), found.std) == pytest.approx(1, abs=CLOSE)


def test_absolute_gradients_of_a_long_pdmm_run_do_not_lose_precision() -> None:
    """Each needs all messages before it, up to 2000 rounds of them; its error stays at that of a few messages."""
    near, rounds, at = PDMM["network"](), 2000, [5, 50, 500, 1000, 1990]
    sent, true = PDMM["Logistic"]().run(near, rounds, "gradient", 1.0)
    p = Relations()
    DECLARED["pdmm"](
        p, {0: near[0], **{j: [0] for j in near[0]}}, rounds, update="gradient", secret=False
    )
    wanted = [p.find("g", 0, t) for t in at]
    found = estimate(know(p, ALL).near([0]), wanted)
    assert found.amplification.max() < 2 * found.amplification.min() < 200
    start = np.random.default_rng(1)  # as `Logistic.run` draws it
    first = {(i, j): start.normal(size=(6,)) for i in near for j in near[i]}
    values = sent | {f"z{i}[{j},0]": value for (i, j), value in first.items()}
    truth = np.stack([true[f"g[0,{t}]"] for t in at])
    assert np.abs(applied(found, values, 6) - truth).max() < 1e-11
    rounded = {k: v.astype(np.float32) for k, v in values.items()}
    assert np.abs(applied(found, rounded, 6) - truth).max() < 1e-4


# --- noised protocols -------------------------------------------------------------------------------------------------


def dpsgd(rounds: int, *, noised: bool) -> Relations:
    p = Relations()
    x = {i: p.public("x", i) for i in RING}
    for _ in p.rounds(rounds):
        m = {i: p.send(i, RING[i], x[i] + p.noise("n", 0.05, i), "x") for i in RING}
        mixed = m if noised else dict(x)
        g = {i: p.grad(i, at=x[i]) for i in RING}
        x = {
            i: p.state(
                "x", i, eq=Q(1, 3) * (mixed[i] + sum(mixed[j] for j in RING[i])) - Q(1, 10) * g[i]
            )
            for i in RING
        }
    return p


@pytest.mark.parametrize(
    ("noised", "adversary", "one", "mean"),
    [
        (True, ALL, 0.5, 0.129),
        (True, NEIGHBOUR, 0.5, 0.129),
        (False, ALL, 0.577, None),
        (False, NEIGHBOUR, 0.408, None),
    ],
    ids=["noised-all", "noised-neighbours", "unnoised-all", "unnoised-neighbours"],
)
def test_d_psgd(noised: bool, adversary: Adversary, one: float, mean: float | None) -> None:
    rounds, sigma, p = 16, 0.05, dpsgd(16, noised=noised)
    g = p.gradients(0)[: rounds - 1]
    found = estimate(know(p, adversary), [*g, sum(g[1:], start=g[0]) / len(g)], rounding=0)
    draw, gradient = np.random.default_rng(3), gradients(6)
    x, values, truth = np.zeros((6, WIDTH)), dict[str, Array](), []
    for t in range(1, rounds + 1):
        noise = sigma * draw.normal(size=x.shape)
        step = np.stack([gradient(i, x[i]) for i in range(6)])
        source = x + noise if noised else x
        new = np.stack(
            [(source[i] + sum(source[j] for j in RING[i])) / 3 - 0.1 * step[i] for i in range(6)]
        )
        for i in range(6):
            values |= {
                f"x[{i}>{'&'.join(map(str, RING[i]))},{t}]": x[i] + noise[i],
                f"n[{i},{t}]": noise[i],
            }
            values |= {f"g[{i},{t}]": step[i], f"x[{i},{t}]": new[i]}
        truth.append(step[0])
        x = new
    truth = truth[: rounds - 1]
    errors = applied(found, values) - np.stack([*truth, np.mean(truth, 0)])
    assert ratio(errors[:-1], found.std[:-1]) == pytest.approx(1, abs=CLOSE)
    assert ratio(errors[-1:], found.std[-1:]) == pytest.approx(1, abs=CLOSE)
    assert found.std[1] == pytest.approx(one, abs=1e-3)
    assert mean is None or found.std[-1] == pytest.approx(mean, abs=1e-3)


@pytest.mark.parametrize(("steps", "one", "mean"), [(1, 0.333, 0.036), (3, 0.277, 0.039)])
def test_dp_norm(steps: int, one: float, mean: float) -> None:
    rounds, mu, alpha, sigma, node = 12, 0.05, 0.2, 0.01, 2
    p = Relations()
    DECLARED["dpnorm"](p, RING, rounds, steps=steps, sigma=sigma)
    g, a = p.gradients(node), (1 + Q(2, steps)) / (1 + Q(3, steps))
    every: list[Any] = [
        sum(a ** (steps - 1 - k) * e for k, e in enumerate(g[at : at + steps]))
        for at in range(0, len(g), steps)
    ]
    wanted: list[Expression] = [*every, sum(every[1:]) / (rounds - 1)]
    found = estimate(know(p, ALL), wanted, rounding=0)
    draw, gradient = np.random.default_rng(4), gradients(6)
    eta = 1 / (mu * 2 * steps)
    gamma = 1 + alpha * eta
    shrink = gamma / (gamma + eta * mu * 2)
    assert shrink == pytest.approx(float(a))
    w, z = (
        {i: np.zeros(WIDTH) for i in RING},
        {(i, j): np.zeros(WIDTH) for i in RING for j in RING[i]},
    )
    values, truth = dict[str, Array](), []
    for t in range(1, rounds + 1):
        sent = dict[tuple[int, int], Array]()
        for i in RING:
            pull, total = sum((1 if i < j else -1) * z[i, j] for j in RING[i]), np.zeros(WIDTH)
            for k in range(steps):
                step = gradient(i, w[i])
                total += shrink ** (steps - 1 - k) * step
                w[i] = shrink * (w[i] - mu * step + mu * eta / gamma * pull)
            noised = w[i] + sigma * draw.normal(size=WIDTH)
            sent |= {
                (i, j): 2 / gamma * (z[i, j] - (1 if i < j else -1) * noised) - z[i, j]
                for j in RING[i]
            }
            truth += [total] if i == node else []
        values |= {f"y[{i}>{j},{t}]": v for (i, j), v in sent.items()}
        z = {(i, j): sent[j, i] for i, j in sent}
    errors = applied(found, values) - np.stack([*truth, np.mean(truth[1:], 0)])
    assert ratio(errors[:-1], found.std[:-1]) == pytest.approx(1, abs=CLOSE)
    assert ratio(errors[-1:], found.std[-1:]) == pytest.approx(1, abs=CLOSE)
    assert found.std[1] == pytest.approx(one, abs=5e-4)
    assert found.std[-1] == pytest.approx(mean, abs=1e-3)


@pytest.mark.parametrize("where", ["x", "lam"])
def test_dp_recal(where: str) -> None:
    """A random walk over eight nodes; y is thresholded, which nobody declares."""
    steps = random.Random(3)
    walk = [s % 8 for s in itertools.accumulate([0, *(steps.choice((-1, 1)) for _ in range(59))])]
    p = Relations()
    DECLARED["recal"](p, walk, 8, sigma=0.05, where=where)
    wanted = p.select("gradient")
    found = estimate(know(p, ALL), wanted, rounding=0)
    draw, gradient = np.random.default_rng(5), gradients(8)
    s, tau = [0.5 + i / 10 for i in range(8)], 0.25
    x, lam, y, total = np.zeros((8, WIDTH)), np.zeros((8, WIDTH)), np.zeros(WIDTH), np.zeros(WIDTH)
    values, truth = dict[str, Array](), []
    for t, i in enumerate(walk, start=1):
        dual, step, noise = (
            lam[i] + s[i] * (x[i] - y),
            gradient(i, x[i]),
            0.05 * draw.normal(size=WIDTH),
        )
        y_new = y + 0.03 * (total + dual - lam[i])
        y_new = np.sign(y_new) * np.maximum(np.abs(y_new) - 0.001, 0)
        x_new = x[i] - tau * (step + dual) + (noise if where == "x" else 0)
        lam_new = dual + s[i] * (x_new - x[i] - y_new + y) + (noise if where == "lam" else 0)
        total = total + lam_new - lam[i]
        x[i], lam[i], y = x_new, lam_new, y_new
        values |= {f"y[{t}]": y_new, f"s[{i}>*,{t}]": total}
        truth.append(step)
    assert ratio(applied(found, values) - np.stack(truth), found.std) == pytest.approx(1, abs=CLOSE)


# --- exact protocols and a start that is noise ------------------------------------------------------------------------


def test_nids_absolute_gradients_from_its_messages_alone() -> None:
    """g^k = (2 Wn m^{k-1} - m^{k-1} - m^k) / a for k >= 2, whatever the private start was."""
    rounds, width, node = 60, 64, 3
    p = Relations()
    DECLARED["nids"](p, DECLARED["THIRD"], rounds, public=False)
    found = estimate(know(p, ALL), [p.find("g", node, t) for t in range(3, rounds + 1)])
    assert {v.kind for v in found.vectors} == {"message"}
    draw, gradient = np.random.default_rng(6), gradients(6, width)
    step, w = (
        np.array([1 / (3 + i) for i in range(6)])[:, None],
        np.array([[float(v) for v in row] for row in DECLARED["THIRD"]]),
    )
    mix = np.eye(6) - 1.5 * step * (np.eye(6) - w)
    old = draw.normal(size=(6, width))
    last = np.stack([gradient(i, old[i]) for i in range(6)])
    x, values, truth = old - step * last, dict[str, Array](), []
    for t in range(2, rounds + 1):
        g = np.stack([gradient(i, x[i]) for i in range(6)])
        m = 2 * x - old - step * (g - last)
        values |= {f"m[{i}>*,{t}]": m[i] for i in range(6)}
        truth += [g[node]] if t > 2 else []
        old, x, last = x, mix @ m, g
    assert np.abs(applied(found, values) - np.stack(truth)).max() < 1e-12
    size = max(np.abs(v).max() for v in values.values())
    errors = applied(found, {k: v.astype(np.float32) for k, v in values.items()}) - np.stack(truth)
    assert np.abs(errors).max() < 6 * size * 2**-25 * found.amplification.max()
    dithered = {k: v + 1e-4 * (draw.random(v.shape) - 0.5) for k, v in values.items()}
    assert ratio(
        applied(found, dithered) - np.stack(truth), found.amplification * 1e-4 / math.sqrt(12)
    ) == pytest.approx(1, abs=CLOSE)


@pytest.mark.parametrize("rho", [1, 10])
@pytest.mark.parametrize("meeting", [1, 2, 3, 4, 5])
def test_one_meeting_of_secured_fl_leaves_an_interval(rho: int, meeting: int) -> None:
    """The dual starts uniform in [0, 1); seen once, w lies in an interval of width a^i / (rho (a + ... + a^i)), a = 2 / (2 + rho)."""
    p = Relations()
    w, lam, z = p.secret("w", 0), p.noise("lam", 1 / math.sqrt(12), 0, law="uniform"), p.public("z")
    half, dual = p.public("half"), lam
    for t in p.rounds(meeting):
        x = p.state("x", 0, eq=(2 * w - dual + rho * z) / (2 + rho))
        if t == meeting:
            p.send(0, 1, x + dual / rho, name="y")
        z = p.public("z")
        dual = p.state("lam", 0, eq=(dual if t > 1 else dual + half) + rho * (x - z))
    found = estimate(know(p, ALL), [w], rounding=0)
    a = 2 / (2 + rho)
    width = a**meeting / (rho * sum(a**j for j in range(1, meeting + 1)))
    assert found.std[0] * math.sqrt(12) == pytest.approx(width, rel=1e-9)
    if rho == 1:
        assert width == pytest.approx([1, 0.4, 0.211, 0.123, 0.0758][meeting - 1], abs=5e-4)

    draw, values = np.random.default_rng(8), {"half[0]": np.zeros(200_000)}
    weights, duals, z_now = (
        0.05 * draw.normal(size=(9, 200_000)),
        draw.random((9, 200_000)) - 0.5,
        np.zeros(200_000),
    )
    for t in range(1, meeting + 1):
        models = (2 * weights - duals + rho * z_now) / (2 + rho)
        values[f"y[0>1,{t}]"] = models[0] + duals[0] / rho
        z_now = (models + duals / rho).mean(0)
        values[f"z[{t}]"] = z_now
        duals = duals + rho * (models - z_now)
    errors = applied(found, values, 200_000) - weights[:1]
    assert ratio(errors, found.std) == pytest.approx(1, abs=CLOSE)
    assert np.abs(errors).max() <= width / 2 * (1 + 1e-9)
