"""An oracle of the view bound, written from the papers' equations: dense matrices, no declarations.

Every vector of a run is unrolled by hand into its coefficients in the gradients and in the draws of
noise. What an adversary observes is then A g + B n, and a change s of a node's gradients, whose
largest entry is 1, is seen with mu = sqrt(s' A' (B B')^+ A s), or infinity if part of A s is free
of noise. Constant losses of all others are one of the cases that a bound must cover.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from leakaudit import registry
from leakaudit.accounting.view_bound import view_bounds
from leakaudit.adversary import Adversary
from leakaudit.protocols.declared import Protocol
from leakaudit.trace import Graph

Floats = NDArray[np.float64]
Message = tuple[int, int, Floats]
GRAPHS = {
    "ring": Graph(4, ((0, 1), (0, 3), (1, 2), (2, 3))),
    "path": Graph(3, ((0, 1), (1, 2))),
    "lollipop": Graph(4, ((0, 1), (0, 2), (1, 2), (2, 3))),
}
STAR = Graph(4, ((0, 3), (1, 3), (2, 3)))


@dataclass
class Unrolled:
    """Coefficients of the vectors of a run in its gradients and draws of noise.

    Attributes:
        size: Most symbols of the run.
        gradients: (node, number of its gradient) -> symbol.
        noise: symbol -> node that draws it.
        sent: Messages as sender, receiver and coefficients.
    """

    size: int = 400
    gradients: list[tuple[int, int]] = field(default_factory=list)
    noise: dict[int, int] = field(default_factory=dict)
    sent: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start without symbols."""
        self.used = 0
        self.owners: dict[int, int] = {}

    @property
    def zero(self) -> Floats:
        """The public start."""
        return np.zeros(self.size)

    def _new(self, scale: float) -> Floats:
        vector = self.zero
        vector[self.used] = scale
        self.used += 1
        return vector

    def g(self, node: int) -> Floats:
        """Return the next gradient of a node."""
        self.owners[self.used] = node
        return self._new(1.0)

    def n(self, node: int, std: float) -> Floats:
        """Return a new draw of a node."""
        self.noise[self.used] = node
        return self._new(std)

    def send(self, src: int, to: Sequence[int], value: Floats) -> None:
        """Send a vector."""
        self.sent += [(src, dst, value.copy()) for dst in to]

    def seen(self, adversary: Adversary, node: int) -> tuple[Floats, Floats]:
        """Return A for the gradients of a node, and B, of what an adversary observes."""
        corrupt = adversary.corrupt
        rows = [
            value
            for src, dst, value in self.sent
            if adversary.hears == "all"
            or (src, dst) in adversary.hears
            or not corrupt.isdisjoint((src, dst))
        ]
        observed = np.array(rows) if rows else np.zeros((0, self.size))
        own = [k for k, owner in self.owners.items() if owner == node]
        hidden = [k for k, owner in self.noise.items() if owner not in corrupt]
        return observed[:, own], observed[:, hidden]


def price(a: Floats, b: Floats, change: Floats) -> float:
    """Return mu of a change of the gradients."""
    moved = a @ change
    if not np.abs(moved).max(initial=0.0) > 1e-12:
        return 0.0
    u, s, _ = np.linalg.svd(b, full_matrices=False)
    kept = s > 1e-9 * max(1.0, s.max(initial=0.0))
    inside = u[:, kept].T @ moved
    if np.linalg.norm(moved - u[:, kept] @ inside) > 1e-8 * np.linalg.norm(moved):
        return math.inf
    return float(np.linalg.norm(inside / s[kept]))


def metropolis(graph: Graph) -> Floats:
    """Return W_ij = 1 / (1 + max(d_i, d_j)) for neighbours, and the rest on the diagonal."""
    w = np.zeros((graph.nodes, graph.nodes))
    for i, j in graph.edges:
        w[i, j] = w[j, i] = 1 / (1 + max(graph.degree(i), graph.degree(j)))
    return w + np.diag(1 - w.sum(1))


def fedsgd(run: Unrolled, graph: Graph, rounds: int, _: Any, *, noisy: str = "all") -> None:
    """McMahan et al. 2017: w <- w - lr mean_i (g_i + e_i)."""
    server, w = graph.nodes - 1, run.zero
    for _ in range(rounds):
        run.send(server, range(server), w)
        sent = []
        for i in range(server):
            e = run.n(i, 0.7) if noisy == "all" or i == 0 else run.zero
            sent.append(run.g(i) + e)
            run.send(i, [server], sent[-1])
        w = w - 0.1 * np.mean(sent, 0)


def fedavg(run: Unrolled, graph: Graph, rounds: int, _: Any, *, epochs: int = 2) -> None:
    """McMahan et al. 2017: local steps with noise on each gradient, then the mean."""
    server, w = graph.nodes - 1, run.zero
    for _ in range(rounds):
        run.send(server, range(server), w)
        sent = []
        for i in range(server):
            v = w
            for _ in range(epochs):
                v = v - 0.1 * (run.g(i) + run.n(i, 0.7))
            sent.append(v)
            run.send(i, [server], v)
        w = np.mean(sent, 0)


def dpsgd(
    run: Unrolled,
    graph: Graph,
    rounds: int,
    _: Any,
    *,
    order: str = "combine",
    noise: str = "message",
    own: str = "noised",
) -> None:
    """Lian et al. 2017, with noise on messages or on every step."""
    mix, nodes = metropolis(graph), range(graph.nodes)
    w = [run.zero for _ in nodes]

    def step(i: int) -> Floats:
        moved = -0.1 * run.g(i)
        return moved + run.n(i, 0.7) if noise == "step" else moved

    def sent(values: list[Floats]) -> list[Floats]:
        told = [value + run.n(i, 0.7) for i, value in enumerate(values)]
        if noise == "step":
            told = values
        for i, value in enumerate(told):
            run.send(i, graph.neighbours[i], value)
        return told

    def averaged(values: list[Floats], told: list[Floats]) -> list[Floats]:
        means = [sum(mix[i, j] * told[j] for j in nodes) for i in nodes]
        if own == "plain":
            means = [means[i] + mix[i, i] * (values[i] - told[i]) for i in nodes]
        return means

    heard = w
    for _ in range(rounds):
        if order == "combine":
            w = [mean + step(i) for i, mean in enumerate(averaged(w, heard))]
            heard = sent(w)
        else:
            adapted = [w[i] + step(i) for i in nodes]
            w = averaged(adapted, sent(adapted))


def gossip(run: Unrolled, graph: Graph, rounds: int, _: Any) -> None:
    """Xiao and Boyd 2004: y <- W y from noised local steps."""
    mix, nodes = metropolis(graph), range(graph.nodes)
    y = [-0.5 * run.g(i) + run.n(i, 0.7) for i in nodes]
    for _ in range(rounds):
        for i in nodes:
            run.send(i, graph.neighbours[i], y[i])
        y = [sum(mix[i, j] * y[j] for j in nodes) for i in nodes]


def muffliato(run: Unrolled, graph: Graph, rounds: int, _: Any, *, gossips: int = 2) -> None:
    """Cyffers et al. 2022, Algorithm 1: noise once, several exchanges, then the next gradient."""
    mix, nodes = metropolis(graph), range(graph.nodes)
    y = [run.zero for _ in nodes]
    for t in range(rounds):
        if t % gossips == 0:
            y = [y[i] - 0.5 * run.g(i) + run.n(i, 0.7) for i in nodes]
        for i in nodes:
            run.send(i, graph.neighbours[i], y[i])
        y = [sum(mix[i, j] * y[j] for j in nodes) for i in nodes]


def dpnorm(run: Unrolled, graph: Graph, rounds: int, _: Any, *, alpha: float = 0.0) -> None:
    """DP-Norm, Algorithm 1, with K = 1 and noise in every round."""
    mu, nodes = 0.05, range(graph.nodes)
    sign = {(i, j): 1.0 if i < j else -1.0 for i, j in graph.arcs}
    z = {arc: run.zero for arc in graph.arcs}  # z[i, j] stands for z_{i|j}
    w = [run.zero for _ in nodes]
    for _ in range(rounds):
        new = {}
        for i in nodes:
            near = graph.neighbours[i]
            eta = 1 / (mu * len(near))
            gamma = 1 + alpha * eta
            pull = sum(sign[i, j] * z[i, j] for j in near)
            bracket = w[i] - mu * run.g(i) + mu * eta / gamma * pull
            w[i] = gamma / (gamma + eta * mu * len(near)) * bracket
            n = run.n(i, 0.7)
            for j in near:
                y = 2 / gamma * (z[i, j] - sign[i, j] * (w[i] + n)) - z[i, j]
                run.send(i, [j], y)
                new[j, i] = y
        z = new


def recal(run: Unrolled, graph: Graph, rounds: int, public: Any, *, baton: str = "active") -> None:
    """DP-RECAL, (7a) to (7e), with noise on x and no regulariser."""
    at, nodes = public["active"].tolist(), graph.nodes
    tau, s = 0.2, 0.5
    beta = 0.95 / (2 * nodes * s)
    y, total = run.zero, run.zero
    x = [run.zero for _ in range(nodes)]
    lam = [run.zero for _ in range(nodes)]
    for t in range(rounds):
        i, to = at[t], at[t + 1]
        bar = lam[i] + s * (x[i] - y)
        pull = total - nodes * s * y if baton == "full" else total + bar - lam[i]
        y_new = y + beta * pull
        x_new = x[i] - tau * (run.g(i) + bar) + run.n(i, 0.7)
        lam_new = bar + s * (x_new - x[i] - y_new + y)
        total = total + lam_new - lam[i]
        if baton == "full":
            total = total + s * (x_new - x[i])
        if to != i:
            run.send(i, [to], y_new)
            run.send(i, [to], total)
        x[i], lam[i], y = x_new, lam_new, y_new


def tracking(run: Unrolled, graph: Graph, rounds: int, _: Any, *, noise: str = "state") -> None:
    """DIGing, Algorithm 1; y^0 = g(x^0) is sent as well."""
    mix, nodes = metropolis(graph), range(graph.nodes)

    def told(values: list[Floats]) -> list[Floats]:
        if noise == "message":
            values = [value + run.n(i, 0.7) for i, value in enumerate(values)]
        for i, value in enumerate(values):
            run.send(i, graph.neighbours[i], value)
        return values

    x = [run.zero for _ in nodes]
    heard_x = x
    g = [run.g(i) for i in nodes]
    y = list(g)
    heard_y = told(y)
    for _ in range(rounds):
        x = [sum(mix[i, j] * heard_x[j] for j in nodes) - 0.1 * y[i] for i in nodes]
        if noise == "state":
            x = [value + run.n(i, 0.7) for i, value in enumerate(x)]
        heard_x = told(x)
        new = [run.g(i) for i in nodes]
        y = [sum(mix[i, j] * heard_y[j] for j in nodes) + new[i] - g[i] for i in nodes]
        heard_y, g = told(y), new


CASES: list[tuple[Callable[..., None], str, dict[str, Any], dict[str, Any]]] = [
    (fedsgd, "star", {}, {"sigma": 0.7}),
    (fedsgd, "star", {"noisy": "first"}, {"sigma": 0.7, "noisy": "first"}),
    (fedavg, "star", {"epochs": 2}, {"sigma": 0.7, "epochs": 2}),
    (gossip, "", {}, {"sigma": 0.7}),
    (muffliato, "", {"gossips": 1}, {"sigma": 0.7, "gossips": 1}),
    (muffliato, "", {"gossips": 2}, {"sigma": 0.7, "gossips": 2}),
    (dpnorm, "", {}, {"sigma": 0.7}),
    (dpnorm, "", {"alpha": 0.02}, {"sigma": 0.7, "alpha": 0.02}),
    (recal, "", {}, {"sigma": 0.7}),
    (recal, "", {"baton": "full"}, {"sigma": 0.7, "baton": "full"}),
    (tracking, "", {}, {"sigma": 0.7}),
    (tracking, "", {"noise": "message"}, {"sigma": 0.7, "noise": "message"}),
    *(
        (dpsgd, "", settings, {"sigma": 0.7, **settings})
        for settings in (
            {"order": order, **kind}
            for order in ("combine", "adapt")
            for kind in ({"own": "noised"}, {"own": "plain"}, {"noise": "step"})
        )
    ),
]
ROUNDS = (2, pytest.param(3, marks=pytest.mark.slow))


def adversaries(graph: Graph) -> Iterator[Adversary]:
    """Yield an eavesdropper, every curious node, and taps of one channel."""
    yield Adversary()
    for node in range(graph.nodes):
        yield Adversary(corrupt=frozenset({node}))
        yield Adversary(hears=frozenset(), corrupt=frozenset({node}))
    for arc in sorted(graph.arcs)[:3]:
        yield Adversary(hears=frozenset({arc}))


def compared(
    unroll: Callable[..., None],
    graph: Graph,
    rounds: int,
    settings: dict[str, Any],
    constants: dict[str, Any],
) -> int:
    """Compare all views of a protocol with the oracle, and return how many have a value."""
    victim = registry.configure(registry.get("victims", unroll.__name__), constants)
    drawn = victim.schedule(graph, rounds, torch.Generator().manual_seed(1))
    public = {"w0": torch.zeros(1), **drawn}
    run = Unrolled()
    unroll(run, graph, rounds, public, **settings)
    made = Protocol(victim, graph, rounds, public)
    holders = range(graph.nodes - 1 if victim.centralised else graph.nodes)
    values = 0
    for adversary in adversaries(graph):
        nodes = [i for i in holders if i not in adversary.corrupt]
        for bound in view_bounds(made, adversary, nodes):
            a, b = run.seen(adversary, bound.node)
            if not a.shape[1]:  # never active
                assert not bound.mu
                continue
            constant = price(a, b, np.ones(a.shape[1]))
            worst = constant
            for signs in itertools.product((1.0, -1.0), repeat=a.shape[1] - 1):
                worst = max(worst, price(a, b, np.array([1.0, *signs])))
            where = (unroll.__name__, settings, rounds, adversary, bound)
            if bound.linear is not None:
                values += 1
                assert bound.linear == pytest.approx(constant, rel=1e-6, abs=1e-9), where
            if bound.mu is not None:
                assert bound.mu >= constant * (1 - 1e-6), where
            if bound.node_mu is not None:
                assert bound.node_mu >= worst * (1 - 1e-6), where
    return values


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize(
    ("unroll", "shape", "settings", "constants"),
    CASES,
    ids=[f"{unroll.__name__}-{settings}" for unroll, _, settings, _ in CASES],
)
def test_no_bound_is_below_the_oracle(
    unroll: Callable[..., None],
    shape: str,
    settings: dict[str, Any],
    constants: dict[str, Any],
    rounds: int,
) -> None:
    """All views: mu is not below constant gradients, which `linear` equals."""
    graphs = [STAR] if shape else list(GRAPHS.values())
    assert sum(compared(unroll, graph, rounds, settings, constants) for graph in graphs)


def test_the_oracle_sees_a_wrong_equation() -> None:
    """An unrolled run with half of the noise does not agree."""
    with pytest.raises(AssertionError):
        compared(gossip, GRAPHS["path"], 2, {}, {"sigma": 1.4})
    with pytest.raises(AssertionError):
        compared(muffliato, GRAPHS["ring"], 3, {"gossips": 2}, {"sigma": 0.7, "gossips": 3})


@pytest.mark.parametrize(
    ("unroll", "graph", "settings", "constants"),
    [
        (dpsgd, GRAPHS["path"], {"order": "adapt"}, {"order": "adapt", "sigma": 0.7}),
        (
            dpsgd,
            GRAPHS["ring"],
            {"order": "adapt", "noise": "step"},
            {"order": "adapt", "noise": "step", "sigma": 0.7},
        ),
        (fedavg, STAR, {"epochs": 2}, {"epochs": 1, "sigma": 0.7}),  # two batches in an epoch
    ],
)
def test_a_record_in_one_batch_of_each_pass(
    unroll: Callable[..., None], graph: Graph, settings: dict[str, Any], constants: dict[str, Any]
) -> None:
    """With two records in batches of one, the worst order of every pass is not above mu."""
    rounds = 2 if unroll is fedavg else 4
    run = Unrolled()
    unroll(run, graph, rounds, {}, **settings)
    kind = registry.get("victims", unroll.__name__)
    victim = registry.configure(kind, {**constants, "batch": 1, "samples": 2})
    public = {"w0": torch.zeros(1)}
    made = Protocol(victim, graph, rounds, public)
    compared_views = 0
    for adversary in (Adversary(), Adversary(hears=frozenset(), corrupt=frozenset({0}))):
        nodes = [i for i in (0, 1) if i not in adversary.corrupt]
        for bound in view_bounds(made, adversary, nodes):
            a, b = run.seen(adversary, bound.node)
            worst = 0.0
            for places in itertools.product((0, 1), repeat=a.shape[1] // 2):
                change = np.zeros(a.shape[1])
                change[[2 * k + place for k, place in enumerate(places)]] = 1.0
                worst = max(worst, price(a, b, change))
            if bound.mu is not None:
                compared_views += 1
                assert bound.mu >= worst * (1 - 1e-6)
                assert worst > 0
                if unroll is dpsgd:  # whose order of records is credited
                    assert bound.mu < 0.9 * price(a, b, np.ones(a.shape[1]))
    assert compared_views
