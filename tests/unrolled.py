"""Runs of the papers' protocols, unrolled by hand: every vector by its coefficients in the draws.

Nothing here uses the product's declarations or its linear algebra. Every gradient is a symbol, and
so is every draw of noise; `Unrolled` notes what is sent, and `View` what an adversary makes of it.
Losses may react to the model: a gradient is then a symbol plus a multiple of the model at which it
is evaluated, so that a quadratic loss is one more linear equation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leakaudit.core.adversary import Adversary
from leakaudit.core.trace import Graph

Floats = NDArray[np.float64]
Nodes = dict[int, Floats]
Arcs = dict[tuple[int, int], Floats]
STD = 0.7  # of all noise
RANK = 1e-9  # relative size below which a singular value counts as rounding


@dataclass(frozen=True)
class Sent:
    """One message: its ends, its coefficients, and whether only the ends can read it."""

    src: int
    dst: int
    value: Floats
    secure: bool = False


@dataclass(frozen=True)
class Evaluated:
    """One gradient: its symbol, its node, the model, and how many messages were sent before."""

    symbol: int
    node: int
    at: Floats
    before: int


@dataclass
class Unrolled:
    """A run; `curvature` gives the Hessian of a node's loss, `lost` the (round, sender, receiver).

    Lost messages are observed by nobody, and their receiver uses what the protocol says instead.
    """

    size: int = 400
    curvature: Mapping[int, float] = field(default_factory=dict)
    lost: Collection[tuple[int, int, int]] = ()
    round: int = 0

    def __post_init__(self) -> None:
        """Start without symbols."""
        self.used = 0
        self.noise: dict[int, int] = {}  # symbol -> node that draws it
        self.gradients: list[Evaluated] = []
        self.sent: list[Sent] = []

    @property
    def zero(self) -> Floats:
        """The public start."""
        return np.zeros(self.size)

    def _new(self, scale: float) -> Floats:
        vector = self.zero
        vector[self.used] = scale
        self.used += 1
        return vector

    def g(self, node: int, at: Floats) -> Floats:
        """Return the gradient of a node at a model."""
        self.gradients.append(Evaluated(self.used, node, at.copy(), len(self.sent)))
        return self._new(1.0) + self.curvature.get(node, 0.0) * at

    def least(self, node: int, weight: float, pull: Floats) -> Floats:
        """Return the w with g(w) + weight w = pull: the minimiser of a loss and a quadratic."""
        symbol = self.used
        w = (pull - self._new(1.0)) / (weight + self.curvature.get(node, 0.0))
        self.gradients.append(Evaluated(symbol, node, w, len(self.sent)))
        return w

    def n(self, node: int, std: float = STD) -> Floats:
        """Return a new draw of a node."""
        self.noise[self.used] = node
        return self._new(std)

    def send(
        self, src: int, to: Sequence[int], value: Floats, *, secure: bool = False
    ) -> dict[int, Floats]:
        """Send a vector, and return what arrives, by receiver."""
        arrives = [dst for dst in to if (self.round, src, dst) not in self.lost]
        self.sent += [Sent(src, dst, value.copy(), secure) for dst in arrives]
        return dict.fromkeys(arrives, value)

    def view(self, adversary: Adversary, node: int) -> View:
        """Return what an adversary observes of a node."""
        corrupt = adversary.corrupt
        heard = adversary.hears
        seen = []
        for k, one in enumerate(self.sent):
            ends = (one.src, one.dst)
            tapped = heard == "all" or (heard != "none" and ends in heard)
            if not corrupt.isdisjoint(ends) or (tapped and not one.secure):
                seen.append((k, one.value))
        own = [one for one in self.gradients if one.node == node]
        hidden = [k for k, owner in self.noise.items() if owner not in corrupt]
        return View(seen, own, hidden)


@dataclass(frozen=True)
class View:
    """What is observed of one node's gradients: rows A of gradients and B of hidden noise.

    Every other vector is known: all data of others, and the draws of the adversary's own nodes.
    """

    seen: Sequence[tuple[int, Floats]]
    own: Sequence[Evaluated]
    hidden: Sequence[int]

    def _rows(self, columns: Sequence[int], before: float = math.inf) -> Floats:
        rows = [value[list(columns)] for k, value in self.seen if k < before]
        return np.array(rows).reshape(len(rows), len(columns))

    @cached_property
    def symbols(self) -> list[int]:
        """The symbols of the node's gradients."""
        return [one.symbol for one in self.own]

    @cached_property
    def _split(self) -> tuple[Floats, Floats]:
        """The whitened A, and the part of A that no noise hides."""
        a = self._rows(self.symbols)
        b = self._rows(self.hidden)
        if not a.size:
            return np.zeros((0, len(self.own))), np.zeros((0, len(self.own)))
        left, size, _ = np.linalg.svd(b, full_matrices=True)
        kept = int((size > RANK * max(1.0, size.max(initial=0.0))).sum())
        inside = left[:, :kept].T @ a
        return inside / size[:kept, None], left[:, kept:].T @ a

    @property
    def fisher(self) -> Floats:
        """M = A' (B B')^+ A, by which noise-hidden changes are seen: mu^2 = d' M d."""
        white, _ = self._split
        return np.asarray(white.T @ white)

    @property
    def leaks(self) -> bool:
        """Whether some combination of the gradients is visible without noise."""
        _, bare = self._split
        return bool(np.abs(bare).max(initial=0.0) > 1e-9)

    @property
    def models_seen(self) -> bool:
        """Whether what was observed before determines every model at which a gradient is taken."""
        columns = sorted({*self.symbols, *self.hidden})
        for one in self.own:
            point = one.at[columns]
            rows = self._rows(columns, one.before)
            if np.abs(point).max(initial=0.0) < 1e-12:
                continue
            if not len(rows):
                return False
            found, *_ = np.linalg.lstsq(rows.T, point, rcond=1e-12)
            if np.abs(rows.T @ found - point).max() > 1e-9 * np.abs(point).max():
                return False
        return True

    def price(self, change: Sequence[float] | Floats) -> float:
        """Return mu of a change of the gradients by multiples of one vector of length 1."""
        white, bare = self._split
        moved = np.asarray(change)
        if np.abs(bare @ moved).max(initial=0.0) > 1e-9:
            return math.inf
        return float(np.linalg.norm(white @ moved))

    @property
    def constant(self) -> float:
        """The mu of a record that changes every gradient by the same vector."""
        return self.constant_of(None)

    def constant_of(self, entered: Sequence[int] | None) -> float:
        """Return the same for a record that enters only some gradients."""
        change = np.zeros(len(self.own))
        change[slice(None) if entered is None else list(entered)] = 1.0
        return self.price(change)

    def free(self, entered: Sequence[int] | None = None) -> float:
        """Return the largest mu of changes in any directions, of those that a record enters."""
        white, bare = self._split
        if entered is not None:
            white, bare = white[:, entered], bare[:, entered]
        if np.abs(bare).max(initial=0.0) > 1e-9:
            return math.inf
        m = white.T @ white
        best = math.sqrt(max(float(m.sum()), 0.0))
        if not m.size or m.min() >= -1e-12 * np.abs(m).max():
            return best
        random = np.random.default_rng(0)
        for _ in range(4):
            v = random.normal(size=m.shape)
            v /= np.linalg.norm(v, axis=1, keepdims=True)
            for _ in range(3000):  # the sum grows with every step, as M is positive semidefinite
                v = m @ v
                v /= np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-300)
            best = max(best, math.sqrt(float(np.trace(v.T @ m @ v))))
        return best


def metropolis(graph: Graph) -> Floats:
    """Return W_ij = 1 / (1 + max(d_i, d_j)) for neighbours, and the rest on the diagonal."""
    w = np.zeros((graph.nodes, graph.nodes))
    for i, j in graph.edges:
        w[i, j] = w[j, i] = 1 / (1 + max(graph.degree(i), graph.degree(j)))
    return w + np.diag(1 - w.sum(1))


def signs(graph: Graph) -> dict[tuple[int, int], float]:
    """Return B_{i|j}: +1 if i < j, else -1."""
    return {(i, j): 1.0 if i < j else -1.0 for i, j in graph.arcs}


class Averaging:
    """W of a graph, and what each node last heard from each neighbour."""

    def __init__(self, run: Unrolled, graph: Graph) -> None:
        self.run = run
        self.graph = graph
        self.w = metropolis(graph)
        self.heard: Arcs = {(i, j): run.zero for i, j in graph.arcs}  # by receiver and sender

    def tell(self, values: Nodes) -> None:
        """Broadcast; a receiver keeps what it heard before if a message is lost."""
        for i, value in values.items():
            for j, arrived in self.run.send(i, self.graph.neighbours[i], value).items():
                self.heard[j, i] = arrived

    def mean(self, own: Nodes) -> Nodes:
        """Return sum_j W_ij v_j, with a node's own vector as given."""
        return {
            i: self.w[i, i] * value
            + sum(self.w[i, j] * self.heard[i, j] for j in self.graph.neighbours[i])
            for i, value in own.items()
        }


def start(run: Unrolled, graph: Graph) -> Nodes:
    """Return the public start of every node."""
    return {i: run.zero for i in range(graph.nodes)}


def noised(run: Unrolled, values: Nodes, std: float = STD) -> Nodes:
    """Return the vectors with a new draw of each node."""
    return {i: value + run.n(i, std) for i, value in values.items()}


# --- with a server, the last node -----------------------------------------------------------------


def fedsgd(run: Unrolled, graph: Graph, rounds: int, _: Any, *, noisy: str = "all") -> None:
    """McMahan et al. 2017: w <- w - lr mean_i (g_i + e_i)."""
    server, w = graph.nodes - 1, run.zero
    for _ in range(rounds):
        run.send(server, range(server), w)
        sent = []
        for i in range(server):
            e = run.n(i) if noisy == "all" or i == 0 else run.zero
            sent.append(run.g(i, w) + e)
            run.send(i, [server], sent[-1])
        w = w - 0.1 * np.mean(sent, 0)


def fedavg(
    run: Unrolled,
    graph: Graph,
    rounds: int,
    public: Any,
    *,
    epochs: int = 2,
    decay: float = 0.0,
) -> None:
    """McMahan et al. 2017: local steps with noise on each gradient, then the mean.

    With a public schedule, only some clients take part in a round.
    """
    server, w = graph.nodes - 1, run.zero
    for t in range(rounds):
        clients = list(range(server))
        if "chosen" in public:
            clients = np.flatnonzero(public["chosen"][t]).tolist()
        run.send(server, clients, w)
        sent = []
        for i in clients:
            v = w
            for _ in range(epochs):
                v = (1 - 0.1 * decay) * v - 0.1 * (run.g(i, v) + run.n(i))
            sent.append(v)
            run.send(i, [server], v)
        w = np.mean(sent, 0)


def dpadmmserver(run: Unrolled, graph: Graph, rounds: int, _: Any, *, fall: bool = False) -> None:
    """Huang et al. 2020: linearised local updates with a step 1 / eta_k, then mean and dual."""
    server, rho = graph.nodes - 1, 0.5
    w = run.zero
    v = {i: run.zero for i in range(server)}
    gam = dict(v)
    for k in range(1, rounds + 1):
        slope = math.sqrt(k) / 0.5 if fall else 1 / 0.5
        for i in v:
            pull = slope * v[i] + rho * w + gam[i] - run.g(i, v[i])
            v[i] = pull / (rho + slope) + run.n(i, STD / (rho + slope))
            run.send(i, [server], v[i])
        w = np.mean([v[i] - gam[i] / rho for i in v], 0)
        run.send(server, range(server), w)
        gam = {i: gam[i] - rho * (v[i] - w) for i in v}


# --- averages of neighbours -----------------------------------------------------------------------


def dpsgd(
    run: Unrolled,
    graph: Graph,
    rounds: int,
    _: Any,
    *,
    order: str = "combine",
    noise: str = "message",
    own: str = "noised",
    steps: int = 1,
) -> None:
    """Lian et al. 2017, with noise on messages or on every step."""
    mix = Averaging(run, graph)
    w = start(run, graph)

    def stepped(values: Nodes, points: Nodes) -> Nodes:
        moved = {}
        for i, value in values.items():
            at = points[i]
            for _ in range(steps):
                value = value - 0.1 * run.g(i, at)
                if noise == "step":
                    value = value + run.n(i)
                at = value
            moved[i] = value
        return moved

    def told(values: Nodes) -> Nodes:
        """Send, and return what enters the node's own average."""
        shown = values if noise == "step" else noised(run, values)
        mix.tell(shown)
        return values if own == "plain" else shown

    held = w
    for run.round in range(1, rounds + 1):
        if order == "combine":
            w = stepped(mix.mean(held), w if own == "plain" else held)
            held = told(w)
        else:
            w = mix.mean(told(stepped(w, w)))


def gossip(run: Unrolled, graph: Graph, rounds: int, _: Any) -> None:
    """Xiao and Boyd 2004: y <- W y from noised local steps."""
    mix = Averaging(run, graph)
    y = {i: -0.5 * run.g(i, w) + run.n(i) for i, w in start(run, graph).items()}
    for _ in range(rounds):
        mix.tell(y)
        y = mix.mean(y)


def muffliato(
    run: Unrolled,
    graph: Graph,
    rounds: int,
    _: Any,
    *,
    gossips: int = 2,
) -> None:
    """Cyffers et al. 2022, Algorithm 1: noise once, several exchanges, then the next gradient."""
    mix = Averaging(run, graph)
    y = start(run, graph)
    for t in range(rounds):
        if t % gossips == 0:
            y = {i: w - 0.5 * run.g(i, w) + run.n(i) for i, w in y.items()}
        mix.tell(y)
        y = mix.mean(y)


def tracking(run: Unrolled, graph: Graph, rounds: int, _: Any, *, noise: str = "state") -> None:
    """DIGing, Algorithm 1; y^0 = g(x^0) is sent as well."""
    models, slopes = Averaging(run, graph), Averaging(run, graph)

    def told(mix: Averaging, values: Nodes) -> Nodes:
        shown = noised(run, values) if noise == "message" else values
        mix.tell(shown)
        return shown

    x = start(run, graph)
    mixed = x
    g = {i: run.g(i, w) for i, w in x.items()}
    y = g
    heard = told(slopes, y)
    for _ in range(rounds):
        x = {i: value - 0.1 * y[i] for i, value in mixed.items()}
        if noise == "state":
            x = noised(run, x)
        mixed = models.mean(told(models, x))
        new = {i: run.g(i, w) for i, w in x.items()}
        y = {i: value + new[i] - g[i] for i, value in slopes.mean(heard).items()}
        heard, g = told(slopes, y), new


def dkm(run: Unrolled, graph: Graph, rounds: int, _: Any, *, std: float, fade: float = 0.0) -> None:
    """DP-dKM, Algorithm 1 with T = I - gamma grad f: x <- W xt - alpha_k gamma g(x)."""
    mix = Averaging(run, graph)
    x = start(run, graph)
    shown = x
    for k in range(rounds):
        alpha = 0.5 / (1 + k / fade) if fade else 0.5
        x = {i: value - alpha * 0.1 * run.g(i, x[i]) for i, value in mix.mean(shown).items()}
        shown = noised(run, x, std)
        mix.tell(shown)


def extra(
    run: Unrolled,
    graph: Graph,
    rounds: int,
    _: Any,
    *,
    noise: str = "state",
    fade: float = 1.0,
    spread: bool = False,
) -> None:
    """Shi et al. 2015: z^{t+1} = z^t + W x^t - (I + W)/2 x^{t-1} - a (g^t - g^{t-1})."""
    mix = Averaging(run, graph)
    x = start(run, graph)
    if spread:  # private starts, which are known: only gradients change
        for i, value in x.items():
            run.send(i, graph.neighbours[i], value, secure=True)
    shown = x
    z, half, last = x, None, {i: run.zero for i in x}
    for t in range(1, rounds + 1):
        g = {i: run.g(i, w) for i, w in x.items()}
        mixed = mix.mean(shown)
        new = {}
        for i in x:
            base = mixed[i] if half is None else z[i] + mixed[i] - half[i]
            new[i] = base - 0.1 * (g[i] - last[i])
        half = {i: (shown[i] + mixed[i]) / 2 for i in x}
        z, last = new, g
        shown = noised(run, z, STD * fade**t)
        x = shown if noise == "state" else z
        mix.tell(shown)


def nids(
    run: Unrolled,
    graph: Graph,
    rounds: int,
    _: Any,
    *,
    noise: str = "state",
    steps: Sequence[float] = (),
) -> None:
    """Li, Shi, Yan 2019: m = 2x - x' - A(g - g'); z+ = z - x + (I - c A (I - W)) m."""
    mix = Averaging(run, graph)
    a = dict(enumerate(steps or [0.1] * graph.nodes))
    c = 1 / (2 * max(a.values()))
    x = start(run, graph)
    before: Nodes = {}
    z: Nodes = {}
    last: Nodes = {}
    for _ in range(rounds):
        g = {i: run.g(i, w) for i, w in x.items()}
        if not before:
            new = {i: x[i] - a[i] * g[i] for i in x}
        else:
            m = {i: 2 * x[i] - before[i] - a[i] * (g[i] - last[i]) for i in x}
            if noise == "message":
                m = noised(run, m)
            mix.tell(m)
            mixed = mix.mean(m)
            new = {i: z[i] - x[i] + m[i] - c * a[i] * (m[i] - mixed[i]) for i in x}
        before, last, z = x, g, new
        x = noised(run, z) if noise == "state" else z


# --- edge variables and duals ---------------------------------------------------------------------


def dpnorm(
    run: Unrolled,
    graph: Graph,
    rounds: int,
    public: Any,
    *,
    alpha: float = 0.0,
    inner: int = 1,
    noise: str = "round",
    order: str = "synchronous",
) -> None:
    """DP-Norm, Algorithm 1, with K inner steps; noise in every round, or in every inner step.

    With order=random, channel a of ``graph.arcs`` sends after step ``moments[t - 1, a]``.
    """
    mu, sign = 0.05, signs(graph)
    z = {arc: run.zero for arc in graph.arcs}  # z[i, j] stands for z_{i|j}
    w = start(run, graph)
    for run.round in range(1, rounds + 1):
        when = dict.fromkeys(graph.arcs, inner)
        if order == "random":
            when = dict(zip(graph.arcs, public["moments"][run.round - 1].tolist(), strict=True))
        n: Nodes = {}
        for k in range(1, inner + 1):
            for i, near in enumerate(graph.neighbours):
                eta = 1 / (mu * len(near) * inner)
                gamma = 1 + alpha * eta
                if k == 1 or noise == "inner":
                    n[i] = run.n(i)
                inside = sum((sign[i, j] * z[i, j] for j in near), start=run.zero)
                if noise == "inner":
                    inside = inside - len(near) * n[i]
                bracket = w[i] - mu * run.g(i, w[i]) + mu * eta / gamma * inside
                w[i] = gamma / (gamma + eta * mu * len(near)) * bracket
            new = dict(z)
            for i, j in graph.arcs:
                if when[i, j] == k:
                    gamma = 1 + alpha / (mu * len(graph.neighbours[i]) * inner)
                    y = 2 / gamma * (z[i, j] - sign[i, j] * (w[i] + n[i])) - z[i, j]
                    new[j, i] = run.send(i, [j], y).get(j, z[j, i])
            z = new


def pdmm(
    run: Unrolled,
    graph: Graph,
    rounds: int,
    public: Any,
    *,
    differential: bool = True,
    active: int = 0,
) -> None:
    """Yu 2023, Algorithms 1 and 2, with gradient steps and private z^0: there is no noise.

    If only some nodes are active, the others do nothing in a round.
    """
    rho, alpha, sign = 0.4, 0.05, signs(graph)
    z = {arc: run.zero for arc in graph.arcs}  # secret, and known in the worst case
    for i, j in sign:
        run.send(i, [j], z[j, i], secure=True)
    w = start(run, graph)
    for run.round in range(1, rounds + 1):
        awake = public["active"][run.round - 1].tolist() if active else list(w)
        new = dict(z)
        for i in awake:
            near = graph.neighbours[i]
            pull = sum(sign[i, j] * z[i, j] for j in near)
            w[i] = w[i] - alpha * (run.g(i, w[i]) + pull + rho * len(near) * w[i])
        for i, j in sign:
            if i not in awake:
                continue
            value = z[i, j] + 2 * rho * sign[i, j] * w[i]
            told = value - z[j, i] if differential else value
            if run.send(i, [j], told):
                new[j, i] = value
        z = new


def dpadmm(run: Unrolled, graph: Graph, rounds: int, _: Any, *, steps: int = 1) -> None:
    """Huang and Gong 2020, multi-step: curvature 2 rho E + eta, duals from what is sent."""
    rho, eta = 0.3, 2.0
    w = start(run, graph)
    lam = dict(w)
    for _ in range(rounds):
        new = {}
        for i, near in enumerate(graph.neighbours):
            curve = 2 * rho * len(near) + eta
            b = rho * sum(w[i] + w[j] for j in near) - 2 * lam[i]
            v = w[i]
            for _ in range(steps):
                v = (eta * v + b - run.g(i, v)) / curve + run.n(i, STD / curve)
            new[i] = v
            run.send(i, near, v)
        w = new
        lam = duals(graph, lam, w, rho / 2)


def mradmm(
    run: Unrolled,
    graph: Graph,
    rounds: int,
    _: Any,
    *,
    recycle: bool = True,
    spread: float = 0.0,
    growth: float = 1.0,
    noisy: bool = False,
) -> None:
    """M-ADMM and MR-ADMM: penalties of each node and time, every second update without data."""
    eta, theta, gamma = 0.3, 0.3, 2.0
    w = start(run, graph)
    lam = dict(w)
    known = dict(w)
    for t in range(1, rounds + 1):
        new = {}
        for i, near in enumerate(graph.neighbours):
            h = eta * (1 + spread * i) * growth ** ((t + 1) // 2 if recycle else t)
            weight = 2 * h * len(near)
            if t % 2 or not recycle:
                pull = h * sum(w[i] + w[j] for j in near) - 2 * lam[i]
                n = run.n(i) if noisy else run.zero
                new[i] = run.least(i, weight, pull - n)
                known[i] = pull - weight * new[i]
            else:
                apart = h * sum(w[i] - w[j] for j in near)
                new[i] = w[i] - (known[i] + 2 * lam[i] + apart) / (weight + gamma)
            run.send(i, near, new[i])
        w = new
        lam = duals(graph, lam, w, theta / 2)


def pvpadmm(
    run: Unrolled,
    graph: Graph,
    rounds: int,
    _: Any,
    *,
    perturb: str = "none",
    update: str = "exact",
) -> None:
    """Zhang and Zhu 2017: noise on the dual (DVP) or on what is sent (PVP)."""
    eta, curvature = 0.3, 2.0
    w = start(run, graph)
    sent = dict(w)
    lam = dict(w)
    for _ in range(rounds):
        new = {}
        for i, near in enumerate(graph.neighbours):
            n = run.zero if perturb == "none" else run.n(i)
            dual = lam[i] + n if perturb == "dual" else lam[i]
            pull = eta * sum(sent[i] + sent[j] for j in near) - 2 * dual
            weight = 2 * eta * len(near)
            if update == "exact":
                w[i] = run.least(i, weight, pull)
            else:
                w[i] = (curvature * w[i] + pull - run.g(i, w[i])) / (curvature + weight)
            new[i] = w[i] + n if perturb == "primal" else w[i]
            run.send(i, near, new[i])
        sent = new
        lam = duals(graph, lam, sent, eta / 2)


def duals(graph: Graph, lam: Nodes, sent: Nodes, size: float) -> Nodes:
    """Return lam_i + size sum_j (v_i - v_j), which is never sent."""
    moved = {}
    for i, near in enumerate(graph.neighbours):
        moved[i] = lam[i] + size * sum(sent[i] - sent[j] for j in near)
    return moved


def rwadmm(run: Unrolled, graph: Graph, rounds: int, public: Any, *, update: str = "exact") -> None:
    """ADMM over edges with one active node: z_{j|i} moves half way, w + n replaces w."""
    rho, theta, alpha, sign = 0.5, 0.5, 0.1, signs(graph)
    w = start(run, graph)
    z = {arc: run.zero for arc in graph.arcs}
    for i in public["active"].tolist()[:rounds]:
        near = graph.neighbours[i]
        pull = np.sum([sign[i, j] * z[i, j] for j in near], 0)
        push = rho * len(near)
        if update == "exact":
            w[i] = run.least(i, push, -pull) + run.n(i)
        else:
            w[i] = w[i] - alpha * (run.g(i, w[i]) + pull + push * w[i]) + run.n(i)
        for j in near:
            z[j, i] = (1 - theta) * z[j, i] + theta * (z[i, j] + 2 * rho * sign[i, j] * w[i])
            run.send(i, [j], z[j, i])


def recal(run: Unrolled, graph: Graph, rounds: int, public: Any, *, baton: str = "active") -> None:
    """DP-RECAL, (7a) to (7e), with noise on x and no regulariser."""
    at, nodes = public["active"].tolist(), graph.nodes
    tau, s = 0.2, 0.5
    beta = 0.95 / (2 * nodes * s)
    y, total = run.zero, run.zero
    x = start(run, graph)
    lam = dict(x)
    for t in range(rounds):
        i, to = at[t], at[t + 1]
        bar = lam[i] + s * (x[i] - y)
        pull = total - nodes * s * y if baton == "full" else total + bar - lam[i]
        y_new = y + beta * pull
        x_new = x[i] - tau * (run.g(i, x[i]) + bar) + run.n(i)
        lam_new = bar + s * (x_new - x[i] - y_new + y)
        total = total + lam_new - lam[i]
        if baton == "full":
            total = total + s * (x_new - x[i])
        if to != i:
            run.send(i, [to], y_new)
            run.send(i, [to], total)
        x[i], lam[i], y = x_new, lam_new, y_new


# --- masks and groups -----------------------------------------------------------------------------


def secagg(
    run: Unrolled, graph: Graph, rounds: int, public: Any, *, steps: int = 1, std: float = STD
) -> None:
    """Bonawitz et al. 2017, section 4.0.1: masks of pairs cancel in the sum of all, or of some."""
    everybody = range(graph.nodes)
    w = run.zero
    for t in range(rounds):
        peers = public["active"][t].tolist() if "active" in public else everybody
        y = {}
        for i in peers:
            v = w
            for _ in range(steps):
                v = v - 0.1 * (run.g(i, v) + run.n(i, std))
            y[i] = v
        for i, j in itertools.combinations(peers, 2):
            mask = run.n(j, 1.0)
            run.send(j, [i], mask, secure=True)
            y[i], y[j] = y[i] + mask, y[j] - mask
        for i in peers:
            run.send(i, [j for j in everybody if j != i], y[i])
        w = np.mean(list(y.values()), 0)


def secured(
    run: Unrolled, graph: Graph, rounds: int, public: Any, *, iterations: int = 4, steps: int = 2
) -> None:
    """SecureD-FL, Algorithm 3: ADMM averaging in groups, lam^0 uniform (here by its variance)."""
    rho, peers = 0.1, range(graph.nodes)
    z = run.zero
    w, lam = {}, {}
    for t in range(1, rounds + 1):
        if (t - 1) % iterations == 0:
            for k in peers:
                w[k] = z
                for _ in range(steps):
                    w[k] = w[k] - 0.1 * run.g(k, w[k])
                lam[k] = run.n(k, 12**-0.5)
            z = run.zero
        x = {k: (2 * w[k] - lam[k] + rho * z) / (2 + rho) for k in peers}
        y = {k: x[k] + lam[k] / rho for k in peers}
        partitions = public["groups"].tolist()
        for group in partitions[((t - 1) % iterations + 1) % len(partitions)]:
            others = [j for j in peers if j not in group]
            for k in group:
                run.send(k, [j for j in group if j != k], y[k])
                run.send(k, others, np.sum([y[j] for j in group], 0) / graph.nodes)
        z = np.mean(list(y.values()), 0)
        lam = {k: lam[k] + rho * (x[k] - z) for k in peers}


Unroll = Callable[..., None]
