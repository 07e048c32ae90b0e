"""EXTRA and PG-EXTRA: gradient descent with a correction from the previous round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols.blocks import blocks
from leakaudit.protocols.consensus import Mixing
from leakaudit.protocols.local import above, stable
from leakaudit.protocols.mixing import matrix, metropolis
from leakaudit.protocols.released import noisy_release, ranges, shrink, start
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Expression, Relations, decimal

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# It converges exactly with a constant step size. Shi, Ling, Wu and Yin 2015 (EXTRA; PG-EXTRA in
# their second paper, written from memory and verified), Metropolis weights, Wt = (I + W) / 2:
#
#     z^1     = W x^0 - alpha g^0
#     x^t     = prox_{alpha l1}(z^t)                                           is sent
#     z^{t+1} = z^t + W x^t - Wt x^{t-1} - alpha (g^t - g^{t-1})
#
# x^0 is common, or private and sent over an encrypted channel (spread > 0). Every step is stable
# for alpha < (1 + smallest eigenvalue of W) / L. Noise of round t has standard deviation sigma
# fade^t: noise=state adds it to x wherever it is used; noise=message adds it to what is sent and
# averaged, but gradients are computed at x itself. The paper that compares with a private EXTRA
# (DP-RECAL) does not specify where its noise is added.


@victim("extra")
@dataclass(frozen=True)
class Extra(SimulatedVictim):
    """EXTRA, or PG-EXTRA if l1 > 0."""

    paper: ClassVar[str] = "Shi, Ling, Wu and Yin 2015 (EXTRA, PG-EXTRA)"
    sends: ClassVar[Mapping[str, str]] = {
        "w": "model of a node, with its noise; with spread > 0, its encrypted start in round 0",
    }
    leaks_what: ClassVar[str] = (
        "every gradient; every difference if the start is private; "
        "with l1, only on the nonzero coordinates"
    )
    separable: ClassVar[bool] = True
    regular: ClassVar[bool] = True

    alpha: float = param(0.1, "step size", "alpha")
    l1: float = param(
        0.0, "weight of the l1 norm in each node's objective; above 0: PG-EXTRA", "r_i"
    )
    spread: float = param(
        0.0, "standard deviation of private initial models around the common one", "x^0"
    )
    sigma: float = param(0.0, "standard deviation of the noise in round 0", "sigma")
    fade: float = param(1.0, "factor of the standard deviation from one round to the next", "R")
    noise: Literal["state", "message"] = param(
        "state", "noise on the models wherever they are used, or on what is sent and averaged"
    )

    def __post_init__(self) -> None:
        above("extra", alpha=self.alpha)
        ranges("extra", self.l1, self.spread, self.sigma, self.fade)

    @property
    def stationary(self) -> bool:
        """All rounds have the same relations if the noise level is constant."""
        return not self.sigma or self.fade == 1

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject steps that diverge on the l2 term: alpha l2 >= 1 + smallest eigenvalue of W."""
        if task.l2:
            w = matrix(metropolis(graph), torch.zeros(0, dtype=torch.float64))
            stable("extra", task, 1 + float(torch.linalg.eigvalsh(w)[0]), alpha=self.alpha)

    def train(self, sim: Simulation) -> None:
        """Train; the generator draws the noise and private initial models."""
        problem = sim.problem
        mix = Mixing(sim.graph)
        released = noisy_release(self.sigma, self.fade, sim)
        w = sim.begin(start(sim, self.spread))
        heard = sim.send(0, "w", w, secure=True) if self.spread else w
        sim.recorder.end_round(0)
        half = torch.zeros_like(w)  # Wt x of the previous round
        last = torch.zeros_like(w)  # the gradients of the previous round
        z = torch.zeros_like(w)
        g = torch.empty_like(w)
        for t in sim.rounds:
            problem.task.gradients(w, problem.x, problem.y, out=g)
            for part in blocks(z):
                mixed = mix(heard[:, part])
                between = heard[:, part] + mixed  # before z changes, which may be `heard` itself
                z[:, part].add_(mixed).sub_(half[:, part])
                z[:, part].sub_(g[:, part].sub(last[:, part]), alpha=self.alpha)
                torch.div(between, 2, out=half[:, part])
            last, g = g, last
            w = shrink(z, self.alpha * self.l1)
            sim.recorder.state("z", t, z)
            shown = released(t, w)
            w = shown if self.noise == "state" else w
            heard = sim.send(t, "w", shown)
            sim.end(t, w)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare z and x; without l1 and noise both equal the message. The prox is opaque."""
        p = Relations(graph)
        mix = Mixing(graph)
        alpha = decimal(self.alpha)
        nodes = range(graph.nodes)
        near = graph.neighbours
        if self.spread:
            w = {i: p.secret("w", i) for i in nodes}
            heard = {i: p.send(i, near[i], w[i], "w", secure=True) for i in nodes}
        else:
            w = dict.fromkeys(nodes, p.public("w0"))
            heard = dict(w)
        apart = bool(self.l1 or self.sigma)  # whether z differs from the message
        z = dict(w)
        before = dict(w)
        last = dict[int, Expression]()
        for t in p.rounds(rounds):
            g = {i: p.grad(i, at=w[i]) for i in nodes}
            moved = {}
            for i in nodes:
                base = mix.declared(i, heard)
                if t > 1:
                    base = z[i] + base - (before[i] + mix.declared(i, before)) / 2
                moved[i] = base - alpha * (g[i] - last.get(i, 0))
            before = heard
            last = g
            w = {}
            heard = {}
            for i in nodes:
                z[i] = p.state("z", i, eq=moved[i]) if apart else moved[i]
                w[i], heard[i] = self._released(p, i, t, z[i], near[i])
                if not apart:
                    z[i] = heard[i]
        return p

    def _released(
        self, p: Relations, i: int, t: int, z: Expression, to: tuple[int, ...]
    ) -> tuple[Expression, Expression]:
        x = z
        if self.l1:
            x = p.state("x", i)
            p.opaque(x, of=[z])
        if not self.sigma:
            m = p.send(i, to, x, "w")
            return m, m
        m = p.send(i, to, x + p.noise("xi", self.sigma * self.fade**t, i), "w")
        return (m if self.noise == "state" else x), m
