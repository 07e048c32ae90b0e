"""D-PSGD, gossip, gradient tracking, CHOCO, Muffliato, EXTRA, NIDS and FedAvg against plain loops from their papers and published figures.

The problem and the helpers at the top are fixtures; the tests of declarations, leaks and noise load them from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import leakaudit as la
from leakaudit.core import registry
from leakaudit.core.trace import Graph, TaskSpec
from leakaudit.protocols import declared
from leakaudit.tasks.task import Problem, Task
from leakaudit.theory.relations import Relations, determined, know
from leakaudit.traces.recorder import Recorder, RecorderOptions, Storage

Array = NDArray[np.float64]
DTYPES = (torch.float64, torch.float32)
RING = Graph(8, tuple(sorted((min(i, (i + 1) % 8), max(i, (i + 1) % 8)) for i in range(8))))
CHORDS = Graph(8, tuple(sorted({*RING.edges, (0, 3), (0, 5), (2, 6)})))


def curious(*nodes: int) -> la.Adversary:
    return la.Adversary(hears="none", corrupt=frozenset(nodes))


class LeastSquares:
    """Eight nodes with 30 records of ten features each and optima far apart: the problem of the published figures."""

    def __init__(self) -> None:
        draw = np.random.default_rng(0)
        self.x = np.stack([draw.normal(size=(30, 10)) for _ in range(8)])
        self.y = np.stack(
            [x @ (2 * draw.normal(size=10)) + 0.1 * draw.normal(size=30) for x in self.x]
        )
        self.h, self.c = (
            np.einsum("nma,nmb->nab", self.x, self.x) / 30,
            np.einsum("nma,nm->na", self.x, self.y) / 30,
        )
        self.smooth = np.linalg.eigvalsh(self.h)[:, -1]
        self.best = np.linalg.solve(self.h.sum(0), self.c.sum(0))

    def gradients(self, w: Array) -> Array:
        return np.asarray(np.einsum("nab,nb->na", self.h, w) - self.c)

    def error(self, w: Array) -> tuple[float, float]:
        """Return the largest error of the mean model, and of any node's."""
        return float(np.abs(w.mean(0) - self.best).max()), float(np.abs(w - self.best).max())

    def unmet(self, w: Array, l1: float) -> float:
        """Return by how much the mean model misses the optimality conditions of the sum with 8 l1 |w|_1."""
        x = np.where(np.abs(w.mean(0)) < 1e-9, 0, w.mean(0))
        slope = (self.h @ x - self.c).sum(0)
        return float(
            np.abs(
                np.where(x != 0, slope + 8 * l1 * np.sign(x), np.maximum(np.abs(slope) - 8 * l1, 0))
            ).max()
        )


LS = LeastSquares()
STEP = 1 / LS.smooth.max()
OWN = ",".join(repr(float(v)) for v in 1 / LS.smooth)


def train(
    name: str,
    rounds: int,
    *,
    graph: Graph = RING,
    dtype: torch.dtype = torch.float64,
    wires: bool = True,
    seed: int = 0,
    **constants: Any,
) -> Recorder:
    """Run a victim on the least squares, its states and gradients kept."""
    task = Task.build(TaskSpec("linear", {"bias": False}, "squared", (10,), 1), dtype=dtype)
    kind = registry.get("victims", name)
    if "samples" in registry.parameters(kind):  # as a recording fills it in
        constants = {"samples": 30, **constants}
    victim = registry.configure(kind, constants)
    if victim.centralised:
        graph = Graph(9, tuple((i, 8) for i in range(8)))
    edges = list(graph.edges) if wires else []
    x, y = torch.tensor(LS.x, dtype=dtype), torch.tensor(LS.y, dtype=dtype)
    recorder = Recorder(
        Storage(None, messages=victim.messages(graph, rounds, edges)),
        protocol=name,
        task=task,
        graph=graph,
        params={**registry.values(victim), "samples": 30},
        rounds=rounds,
        public={"w0": torch.zeros(10, dtype=dtype)},
        options=RecorderOptions(dtype=dtype, keep_states=True),
    )
    with recorder:
        for i in range(8):
            recorder.truth(i, x[i], y[i])
        victim.run(
            Problem(task, x, y), graph, rounds, recorder, torch.Generator().manual_seed(seed), edges
        )
    return recorder


def models(recorder: Recorder) -> Array:
    return np.asarray(recorder.truth_record.states["w"][-1].double().numpy())


def relations(recorder: Recorder) -> Relations:
    return declared.protocol_of(recorder.trace).whole


def gradient(recorder: Recorder, node: int, t: int) -> torch.Tensor:
    """Return the gradient at a node's model of round t, in closed form from the recorded model and data."""
    truth = recorder.truth_record
    x, y = truth.of(node)
    w = truth.states["w"][t, node].double()
    return x.double().T @ (x.double() @ w - y.double()) / len(x)


def miss(
    recorder: Recorder, adversary: la.Adversary | None = None, node: int = 0
) -> tuple[list[int], float]:
    """Return the rounds of a node's gradients that are recovered, and the largest error of what is said of them."""
    (leak,) = la.leaks(recorder.trace, adversary, nodes=[node])
    truth = torch.stack([gradient(recorder, node, t) for t in leak.theta_rounds.tolist()])
    return leak.theta_rounds.tolist(), float((leak.combination @ truth - leak.value).abs().max())


def declare(name: str, graph: Graph, rounds: int, **constants: Any) -> Relations:
    out: Relations = registry.configure(registry.get("victims", name), constants).relations(
        graph, rounds, {}
    )
    return out


def metropolis(graph: Graph) -> Array:
    w = np.zeros((graph.nodes, graph.nodes))
    for i, j in graph.arcs:
        w[i, j] = 1 / (1 + max(graph.degree(i), graph.degree(j)))
    return w + np.diag(1 - w.sum(1))


def soft(v: Array, by: Array | float) -> Array:
    return np.asarray(np.sign(v) * np.maximum(np.abs(v) - by, 0))


def loop_dpsgd(w: Array, rounds: int, order: str, steps: int) -> Array:
    x = np.zeros((8, 10))
    for _ in range(rounds):
        if order == "combine":
            x = w @ x - 0.1 * LS.gradients(x)
        for _ in range(steps - (order == "combine")):
            x = x - 0.1 * LS.gradients(x)
        x = w @ x if order == "adapt" else x
    return x


def loop_tracking(w: Array, rounds: int) -> Array:
    x = np.zeros((8, 10))
    y = g = LS.gradients(x)
    for _ in range(rounds):
        x = w @ x - 0.1 * y
        y, g = w @ y + LS.gradients(x) - g, LS.gradients(x)
    return x


def loop_choco(w: Array, rounds: int) -> Array:
    x, copy = np.zeros((8, 10)), np.zeros((8, 10))
    for t in range(rounds):
        x = x - 0.1 / (1 + 0.5 * t) * LS.gradients(x)
        for i in range(8):
            kept = np.argsort(-np.abs(x[i] - copy[i]))[:2]
            copy[i, kept] = x[i, kept]
        x = x + 0.2 * (w @ copy - copy)
    return x


def loop_extra(w: Array, rounds: int) -> Array:
    """The two-step recursion of EXTRA's paper, without z."""
    old = np.zeros((8, 10))
    x = w @ old - 0.1 * LS.gradients(old)
    for _ in range(rounds - 1):
        new = x + w @ x - (old + w @ old) / 2 - 0.1 * (LS.gradients(x) - LS.gradients(old))
        old, x = x, new
    return x


def loop_pg_extra(w: Array, rounds: int) -> Array:
    old = np.zeros((8, 10))
    z = w @ old - 0.1 * LS.gradients(old)
    x = soft(z, 0.1 * 0.2)
    for _ in range(rounds - 1):
        z = z + w @ x - (old + w @ old) / 2 - 0.1 * (LS.gradients(x) - LS.gradients(old))
        old, x = x, soft(z, 0.1 * 0.2)
    return x


def loop_nids(w: Array, rounds: int, l1: float = 0.0) -> Array:
    a = 1 / LS.smooth[:, None]
    mix, old = np.eye(8) - a / (2 * a.max()) * (np.eye(8) - w), np.zeros((8, 10))
    z = old - a * LS.gradients(old)
    x = soft(z, a * l1)
    for _ in range(rounds - 1):
        z = z - x + mix @ (2 * x - old - a * (LS.gradients(x) - LS.gradients(old)))
        old, x = x, soft(z, a * l1)
    return x


def loop_gossip(w: Array, rounds: int) -> Array:
    return np.asarray(np.linalg.matrix_power(w, rounds) @ (-0.1 * LS.gradients(np.zeros((8, 10)))))


def loop_muffliato(w: Array, rounds: int) -> Array:
    gap = 1 - np.sort(np.linalg.eigvalsh(w))[-2]
    speed, x, old = (
        2 * (1 - math.sqrt(gap * (1 - gap / 4))) / (1 - gap / 2) ** 2,
        np.zeros((8, 10)),
        np.zeros((8, 10)),
    )
    for t in range(rounds):
        if t % 3 == 0:
            old = x = x - 0.1 * LS.gradients(x)
        x, old = speed * w @ x + (1 - speed) * old, x
    return x


@pytest.mark.parametrize(
    ("name", "constants", "loop"),
    [
        *(
            (
                "dpsgd",
                {"alpha": 0.1, "order": o, "steps": k},
                lambda w, t, o=o, k=k: loop_dpsgd(w, t, o, k),
            )
            for o in ("combine", "adapt")
            for k in (1, 3)
        ),
        ("tracking", {"alpha": 0.1}, loop_tracking),
        ("choco", {"alpha": 0.1, "slow": 0.5, "share": 0.2}, loop_choco),
        ("extra", {"alpha": 0.1}, loop_extra),
        ("extra", {"alpha": 0.1, "l1": 0.2}, loop_pg_extra),
        ("nids", {"alphas": OWN}, loop_nids),
        ("nids", {"alphas": OWN, "l1": 0.2}, lambda w, t: loop_nids(w, t, 0.2)),
        ("gossip", {"lr": 0.1}, loop_gossip),
        (
            "muffliato",
            {"lr": 0.1, "gossips": 3, "sigma": 0.0, "clip": 0.0, "accelerate": True},
            loop_muffliato,
        ),
    ],
)
def test_a_run_is_the_plain_loop_of_its_paper(
    name: str, constants: dict[str, Any], loop: Callable[[Array, int], Array]
) -> None:
    run = train(name, 25, graph=CHORDS, wires=False, **constants)
    np.testing.assert_allclose(models(run), loop(metropolis(CHORDS), 25), rtol=1e-8, atol=1e-9)


def test_fedavg_steps_on_mini_batches_that_hold_every_record_once_an_epoch() -> None:
    plain = train("fedavg", 3, lr=0.1)
    w = np.zeros(10)
    for _ in range(3):
        w = (w - 0.1 * LS.gradients(np.tile(w, (8, 1)))).mean(0)
    np.testing.assert_allclose(models(plain), np.tile(w, (8, 1)), atol=1e-13)
    run = train("fedavg", 2, lr=1e-9, epochs=2, batch=10)
    states, whole = run.truth_record.states, LS.gradients(np.zeros((8, 10)))
    for epoch in ((1, 2, 3), (4, 5, 6)):  # at a step of 1e-9 the model stands still
        mean = torch.stack([states[f"g.{k}"][1] for k in epoch]).mean(0)
        np.testing.assert_allclose(mean.numpy(), whole, atol=1e-6)
    assert not torch.allclose(states["g.1"][1], states["g.4"][1])  # each epoch has a new order
    assert not torch.allclose(states["g.1"][1], states["g.1"][2])
    (leak,) = la.leaks(run.trace, nodes=[2])
    total = torch.stack([states[f"g.{k}"][1, 2] for k in range(1, 7)]).sum(0)
    assert float((leak.value[0] - total).abs().max()) < 1e-5 * float(
        total.norm()
    )  # 1 / lr times the wire's rounding
    decayed = train("fedavg", 1, lr=0.1, epochs=3, decay=0.01)
    p = relations(decayed)
    assert (
        str(determined(know(p, la.Adversary()), p.gradients(0))[0])
        == "g[0|1,1] + 1000/999 g[0|2,1] + 1000000/998001 g[0|3,1]"
    )


def test_clipping_cuts_every_record_and_not_their_mean() -> None:
    run = train("dpsgd", 1, alpha=0.1, clip=0.5)
    each = LS.x * (-LS.y)[:, :, None]  # gradients of single records at zero
    each *= np.minimum(1, 0.5 / np.linalg.norm(each, axis=2, keepdims=True))
    np.testing.assert_allclose(run.truth_record.states["g"][1].numpy(), each.mean(1), atol=1e-13)


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("extra", {"alpha": 0.6 * STEP}),
        ("nids", {"alpha": STEP}),
        ("nids", {"alphas": OWN}),
        ("tracking", {"alpha": 0.1 * STEP}),
    ],
)
def test_exact_methods_reach_the_optimum(name: str, constants: dict[str, Any]) -> None:
    assert LS.error(models(train(name, 1500, wires=False, **constants)))[1] < 1e-10


@pytest.mark.parametrize(
    "constants", [{"update": "exact"}, {"update": "exact", "theta": 0.5}, {"alpha": 0.3 * STEP}]
)
def test_pdmm_reaches_the_optimum(constants: dict[str, Any]) -> None:
    assert LS.error(models(train("pdmm", 2000, wires=False, **constants)))[1] < 1e-12


def test_d_psgd_stops_at_the_published_bias() -> None:
    mean, node = LS.error(models(train("dpsgd", 1500, wires=False, alpha=0.1 * STEP)))
    assert mean == pytest.approx(0.054, rel=0.02)
    assert node == pytest.approx(0.44, rel=0.02)


@pytest.mark.slow
def test_fading_steps_take_the_bias_away() -> None:
    fading: dict[str, Any] = {"wires": False, "alpha": 0.3 * STEP, "slow": 0.01}
    assert LS.error(models(train("dpsgd", 20_000, **fading)))[0] == pytest.approx(1e-3, rel=0.2)
    assert LS.error(models(train("choco", 20_000, **fading)))[0] == pytest.approx(5e-3, rel=0.2)


def test_gossip_agrees_on_the_mean_of_the_start_vectors() -> None:
    run = train("gossip", 250, sigma=0.3, lr=0.1)
    start = -0.1 * LS.gradients(np.zeros((8, 10))) + run.truth_record.states["xi"][1].numpy()
    np.testing.assert_allclose(models(run), np.tile(start.mean(0), (8, 1)), atol=1e-13)


def test_noise_must_be_in_the_state() -> None:
    fading: dict[str, Any] = {"wires": False, "l1": 0.2, "sigma": 1e-2, "fade": 0.98}
    assert LS.unmet(models(train("nids", 1200, alphas=OWN, **fading)), 0.2) < 1e-11
    assert LS.unmet(models(train("nids", 1200, alphas=OWN, noise="message", **fading)), 0.2) > 0.1
    for noise in ("state", "message"):  # EXTRA's telescopes by itself
        assert (
            LS.unmet(models(train("extra", 1200, alpha=0.6 * STEP, noise=noise, **fading)), 0.2)
            < 1e-10
        )
    shaken: dict[str, Any] = {"wires": False, "alpha": 0.05 * STEP, "sigma": 1e-3}
    late = {
        noise: LS.error(models(train("tracking", 1500, noise=noise, **shaken)))[0]
        for noise in ("state", "message")
    }
    assert late["state"] < 5e-3 < 8e-3 < late["message"]
