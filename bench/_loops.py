"""The updates of the synchronous victims as plain loops over nodes and channels.

Each takes a `Loop` and yields the models (list of (d,)) after every round, without noise. They
share no code with the victims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from leakaudit.protocols import recording
from leakaudit.protocols.prox import prox
from leakaudit.tasks.task import Problem

Models = list[Tensor]


class Loop:
    """A plan's data, graph and constants; `sent` collects the messages."""

    def __init__(self, plan: recording.Plan, start: Tensor) -> None:
        self.plan, self.victim, self.graph, self.start = plan, plan.victim, plan.graph, start
        self.nodes, self.near = plan.scenario.nodes, plan.graph.neighbours
        self.x, self.y = plan.source.x[plan.rows].to(plan.task.dtype), plan.source.y[plan.rows]
        self.sent: list[Tensor] = []
        degree = [len(n) for n in self.near]
        self.w = [
            {j: 1 / (1 + max(degree[i], degree[j])) for j in n} for i, n in enumerate(self.near)
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.victim, name)

    def g(self, i: int, w: Tensor) -> Tensor:
        """Return the gradient of node i."""
        return self.plan.task.gradient(w, self.x[i], self.y[i])

    def mix(self, i: int, v: Models) -> Tensor:
        """Return sum_j W_ij v_j."""
        total = v[i] * (1 - sum(self.w[i].values()))
        for j, weight in self.w[i].items():
            total = total + weight * v[j]
        return total

    def tell(self, v: Models) -> None:
        """Broadcast the vector of every node."""
        for i, value in enumerate(v):
            self.sent += [value] * len(self.near[i])

    def around(self, i: int, v: Models) -> Tensor:
        """Return sum_j v_j over the neighbours."""
        return torch.stack([v[j] for j in self.near[i]]).sum(0)


def fedsgd(p: Loop) -> Iterator[Models]:
    w = p.start
    while True:
        g = [p.g(i, w) for i in range(p.nodes)]
        p.sent += g
        w = w - p.lr * sum(g) / p.nodes
        yield [w]


def fedavg(p: Loop) -> Iterator[Models]:
    w = p.start
    while True:
        up = [w - p.lr * p.g(i, w) for i in range(p.nodes)]
        p.sent += up
        w = sum(up) / p.nodes
        yield [w]


def fedsplit(p: Loop) -> Iterator[Models]:
    w = [p.start] * p.nodes
    z = list(w)
    while True:
        w = [w[i] - p.alpha * (p.g(i, w[i]) + p.rho * (w[i] - z[i])) for i in range(p.nodes)]
        up = [2 * a - b for a, b in zip(w, z, strict=True)]
        mean = sum(up) / p.nodes
        z = [2 * mean - u for u in up]
        p.sent += up + z
        yield w


def pdmm(p: Loop) -> Iterator[Models]:
    w, z = [p.start] * p.nodes, {arc: torch.zeros_like(p.start) for arc in p.graph.arcs}
    while True:
        for i in range(p.nodes):
            pull = sum(z[i, j] if i < j else -z[i, j] for j in p.near[i])
            w[i] = w[i] - p.alpha * (p.g(i, w[i]) + pull + p.rho * len(p.near[i]) * w[i])
        new = {}
        for i, j in p.graph.arcs:
            new[j, i] = z[i, j] + (2 * p.rho if i < j else -2 * p.rho) * w[i]
            p.sent.append(new[j, i] - z[j, i])
        z = new
        yield w


def gossip(p: Loop) -> Iterator[Models]:
    w = [p.start - p.lr * p.g(i, p.start) for i in range(p.nodes)]
    while True:
        p.tell(w)
        w = [p.mix(i, w) for i in range(p.nodes)]
        yield w


def muffliato(p: Loop) -> Iterator[Models]:
    w = [p.start] * p.nodes
    while True:
        w = [w[i] - p.lr * p.g(i, w[i]) for i in range(p.nodes)]
        for _ in range(p.gossips):
            p.tell(w)
            w = [p.mix(i, w) for i in range(p.nodes)]
            yield w


def dpsgd(p: Loop) -> Iterator[Models]:
    w = [p.start] * p.nodes
    while True:
        w = [p.mix(i, w) - p.alpha * p.g(i, w[i]) for i in range(p.nodes)]
        p.tell(w)
        yield w


def tracking(p: Loop) -> Iterator[Models]:
    w = [p.start] * p.nodes
    y = g = [p.g(i, w[i]) for i in range(p.nodes)]
    while True:
        w = [p.mix(i, w) - p.alpha * y[i] for i in range(p.nodes)]
        new = [p.g(i, w[i]) for i in range(p.nodes)]
        y, g = [p.mix(i, y) + new[i] - g[i] for i in range(p.nodes)], new
        p.tell(w)
        p.tell(y)
        yield w


def choco(p: Loop) -> Iterator[Models]:
    w, copy = [p.start] * p.nodes, [torch.zeros_like(p.start)] * p.nodes
    kept = max(1, round(p.share * len(p.start)))
    while True:
        half = [w[i] - p.alpha * p.g(i, w[i]) for i in range(p.nodes)]
        q = []
        for i in range(p.nodes):
            change = half[i] - copy[i]
            if p.compress == "top":
                q.append(
                    torch.zeros_like(change).index_put_(
                        (at := change.abs().topk(kept).indices,), change[at]
                    )
                )
            else:
                q.append((change / p.cell).round() * p.cell)
        p.tell(q)
        copy = [a + b for a, b in zip(copy, q, strict=True)]
        w = [half[i] + p.gamma * (p.mix(i, copy) - copy[i]) for i in range(p.nodes)]
        yield w


def extra(p: Loop) -> Iterator[Models]:
    old = [p.start] * p.nodes
    last = [p.g(i, old[i]) for i in range(p.nodes)]
    w = [p.mix(i, old) - p.alpha * last[i] for i in range(p.nodes)]
    while True:
        p.tell(w)
        yield w
        g = [p.g(i, w[i]) for i in range(p.nodes)]
        new = [
            w[i] + p.mix(i, w) - (old[i] + p.mix(i, old)) / 2 - p.alpha * (g[i] - last[i])
            for i in range(p.nodes)
        ]
        old, w, last = w, new, g


def nids(p: Loop) -> Iterator[Models]:
    old = [p.start] * p.nodes
    last = [p.g(i, old[i]) for i in range(p.nodes)]
    w = [old[i] - p.alpha * last[i] for i in range(p.nodes)]
    while True:
        yield w
        g = [p.g(i, w[i]) for i in range(p.nodes)]
        m = [2 * w[i] - old[i] - p.alpha * (g[i] - last[i]) for i in range(p.nodes)]
        p.tell(m)
        old, w, last = w, [(m[i] + p.mix(i, m)) / 2 for i in range(p.nodes)], g


def dpadmm(p: Loop) -> Iterator[Models]:
    w, lam = [p.start] * p.nodes, [torch.zeros_like(p.start)] * p.nodes
    while True:
        new = []
        for i, near in enumerate(p.near):
            pull = p.rho * (len(near) * w[i] + p.around(i, w)) - 2 * lam[i]
            new.append((p.eta * w[i] + pull - p.g(i, w[i])) / (2 * p.rho * len(near) + p.eta))
        w = new
        lam = [
            lam[i] + p.rho / 2 * (len(p.near[i]) * w[i] - p.around(i, w)) for i in range(p.nodes)
        ]
        p.tell(w)
        yield w


def pvpadmm(p: Loop) -> Iterator[Models]:
    w, lam = [p.start] * p.nodes, [torch.zeros_like(p.start)] * p.nodes
    while True:
        new = []
        for i, near in enumerate(p.near):
            pull = p.eta * (len(near) * w[i] + p.around(i, w)) - 2 * lam[i]
            new.append(
                (p.curvature * w[i] + pull - p.g(i, w[i])) / (p.curvature + 2 * p.eta * len(near))
            )
        w = new
        lam = [
            lam[i] + p.eta / 2 * (len(p.near[i]) * w[i] - p.around(i, w)) for i in range(p.nodes)
        ]
        p.tell(w)
        yield w


def mradmm(p: Loop) -> Iterator[Models]:
    w, lam, known = [p.start] * p.nodes, [torch.zeros_like(p.start)] * p.nodes, [p.start] * p.nodes
    while True:
        for fresh in (True, False):
            new = []
            for i, near in enumerate(p.near):
                weight = 2 * p.eta * len(near)
                if fresh:
                    one = Problem(p.plan.task, p.x[i : i + 1], p.y[i : i + 1])
                    pull = p.eta * (len(near) * w[i] + p.around(i, w)) - 2 * lam[i]
                    new.append(
                        prox(
                            one,
                            w[i][None],
                            -pull[None],
                            torch.full((1, 1), weight, dtype=pull.dtype),
                        )[0]
                    )
                    known[i] = pull - weight * new[i]
                else:
                    apart = p.eta * (len(near) * w[i] - p.around(i, w))
                    new.append(w[i] - (known[i] + 2 * lam[i] + apart) / (weight + p.gamma))
            w = new
            lam = [
                lam[i] + p.theta / 2 * (len(p.near[i]) * w[i] - p.around(i, w))
                for i in range(p.nodes)
            ]
            p.tell(w)
            yield w


def dpadmmserver(p: Loop) -> Iterator[Models]:
    w, v, gam = p.start, [p.start] * p.nodes, [torch.zeros_like(p.start)] * p.nodes
    while True:
        v = [
            (v[i] / p.eta + p.rho * w + gam[i] - p.g(i, v[i])) / (p.rho + 1 / p.eta)
            for i in range(p.nodes)
        ]
        p.sent += v
        w = sum(a - b / p.rho for a, b in zip(v, gam, strict=True)) / p.nodes
        gam = [gam[i] - p.rho * (v[i] - w) for i in range(p.nodes)]
        yield v


def dpnorm(p: Loop) -> Iterator[Models]:
    w, z = [p.start] * p.nodes, {arc: torch.zeros_like(p.start) for arc in p.graph.arcs}
    while True:
        y = {}
        for i, near in enumerate(p.near):
            eta, pull = 1 / (p.mu * len(near)), sum(z[i, j] if i < j else -z[i, j] for j in near)
            w[i] = (w[i] - p.mu * p.g(i, w[i]) + p.mu * eta * pull) / (1 + eta * p.mu * len(near))
            for j in near:
                y[i, j] = 2 * (z[i, j] - (w[i] if i < j else -w[i])) - z[i, j]
        p.sent += y.values()
        z = {(i, j): y[j, i] for i, j in y}
        yield w


def dkm(p: Loop) -> Iterator[Models]:
    x = [p.start] * p.nodes
    while True:
        x = [p.mix(i, x) - p.alpha * p.gamma * p.g(i, x[i]) for i in range(p.nodes)]
        p.tell(x)
        yield x


def single(p: Loop) -> Iterator[Models]:
    w = p.start
    while True:
        w = w - p.mu * sum(p.g(i, w) for i in range(p.nodes)) / p.nodes
        yield [w]


def secured(p: Loop) -> Iterator[Models]:
    """The average does not depend on the groups, so they never change; lam^0 is zero."""
    n, size, t, z = p.nodes, p.group_size, 0, p.start
    while True:
        if t % p.iterations == 0:
            w = [z] * n
            for i in range(n):
                for _ in range(p.local_steps):
                    w[i] = w[i] - p.lr * p.g(i, w[i])
            z, lam = torch.zeros_like(z), [torch.zeros_like(z)] * n
        x = [(2 * w[i] - lam[i] + p.rho * z) / (2 + p.rho) for i in range(n)]
        y = [x[i] + lam[i] / p.rho for i in range(n)]
        z = torch.zeros_like(z)
        for first in range(0, n, size):
            group = range(first, first + size)
            total = sum(y[k] for k in group) / n
            for k in group:
                p.sent += [y[k]] * (size - 1) + [total] * (n - size)
            z = z + total
        lam = [lam[i] + p.rho * (x[i] - z) for i in range(n)]
        t += 1
        yield w


LOOPS: dict[str, Callable[[Loop], Iterator[Models]]] = {
    f.__name__: f
    for f in (
        *(fedsgd, fedavg, fedsplit, pdmm, gossip, muffliato, dpsgd, tracking, choco, extra, nids),
        *(dpadmm, pvpadmm, mradmm, dpadmmserver, dpnorm, dkm, secured, single),
    )
}
# The masks cancel in the sum, so they do not change the models.
LOOPS["secagg"] = fedavg
