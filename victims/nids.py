"""NIDS: similar to EXTRA, but with node-specific step sizes and gradients in the messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim, written
from leakaudit.core.trace import Graph
from leakaudit.protocols.blocks import blocks
from leakaudit.protocols.consensus import Mixing
from leakaudit.protocols.local import above, stable
from leakaudit.protocols.released import noisy_release, ranges, shrink, start
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Expression, Relations, decimal

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# Li, Shi and Yan 2019, eqs. (1), (2), Metropolis weights, A = diag(a_i), Wn = I - c A (I - W), c =
# 1 / (2 max a_i):
#
#     z^1     = x^0 - A g^0
#     x^t     = prox_{a_i l1}(z^t)
#     m^t     = 2 x^t - x^{t-1} - A (g^t - g^{t-1})                              is sent
#     z^{t+1} = z^t - x^t + Wn m^t
#
# Round 1 sends nothing; round t sends m^{t-1} and computes g^{t-1}. x^0 is common, or private
# (spread > 0), in which case no other node needs it. Noise of round t has standard deviation sigma
# fade^t: noise=state adds it to x wherever it is used, and with fade < 1 the run still converges to
# the optimum; noise=message adds it only to m, and the resulting error remains.


@victim("nids")
@dataclass(frozen=True)
class Nids(SimulatedVictim):
    """NIDS with common or node-specific step sizes."""

    paper: ClassVar[str] = "Li, Shi and Yan 2019 (NIDS)"
    sends: ClassVar[Mapping[str, str]] = {
        "m": "combination of a node's models and gradients of two rounds",
    }
    leaks_what: ClassVar[str] = (
        "every gradient from the third on, from the messages only, even if the start is private"
    )
    separable: ClassVar[bool] = True
    regular: ClassVar[bool] = True

    alpha: float = param(0.1, "step size of all nodes", "alpha")
    alphas: Sequence[float] = param(
        (),
        "step sizes of the nodes, separated by commas, instead of alpha; "
        "1 / L_i requires no coordination",
        "a_i",
    )
    l1: float = param(0.0, "weight of the l1 norm in each node's objective", "r_i")
    spread: float = param(
        0.0, "standard deviation of private initial models around the common one", "x^0"
    )
    sigma: float = param(0.0, "standard deviation of the noise in round 0", "sigma")
    fade: float = param(1.0, "factor of the standard deviation from one round to the next", "R")
    noise: Literal["state", "message"] = param(
        "state", "noise on the models wherever they are used, or only on the messages"
    )

    def __post_init__(self) -> None:
        above("nids", alpha=self.alpha)
        ranges("nids", self.l1, self.spread, self.sigma, self.fade)

    def own_steps(self, nodes: int) -> tuple[Fraction, ...]:
        """Return a_i of every node."""
        if not self.alphas:
            return (decimal(self.alpha),) * nodes
        if isinstance(self.alphas, str):
            raise LeakauditError(
                f"nids: expected alphas as a list of numbers, got text {self.alphas!r}"
            )
        steps = tuple(decimal(step) for step in self.alphas)
        if len(steps) != nodes or min(steps) <= 0:
            raise LeakauditError(
                f"nids: expected alphas to be {nodes} positive numbers separated by commas, "
                f"got {written(self.alphas)!r}"
            )
        return steps

    @property
    def stationary(self) -> bool:
        """All rounds have the same relations if the noise level is constant."""
        return not self.sigma or self.fade == 1

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject a wrong number of step sizes, and steps that diverge on the task's l2 term."""
        given = "alphas" if self.alphas else "alpha"
        stable("nids", task, **{given: float(max(self.own_steps(graph.nodes)))})

    def train(self, sim: Simulation) -> None:
        """Train; the generator draws the noise and private initial models."""
        problem = sim.problem
        mix = Mixing(sim.graph)
        released = noisy_release(self.sigma, self.fade, sim)
        w = sim.begin(start(sim, self.spread))
        steps = self.own_steps(sim.graph.nodes)
        largest = max(steps)
        a = w.new_tensor([[float(s)] for s in steps])
        pull = w.new_tensor([[float(s / largest / 2)] for s in steps])  # c a_i
        before = w
        z = w
        last = torch.empty_like(w)
        g = torch.empty_like(w)
        own = torch.empty_like(w)
        for t in sim.rounds:
            problem.task.gradients(w, problem.x, problem.y, out=g)
            if t == 1:
                z = w - a * g
            else:
                for part in blocks(own):
                    torch.sub(last[:, part], g[:, part], out=own[:, part]).mul_(a)
                    own[:, part].add_(w[:, part], alpha=2).sub_(before[:, part])
                m = sim.send(t, "m", released(t, own) if self.noise == "message" else own)
                new = before if w is z else z  # reuse the oldest vector, no longer needed by m
                for part in blocks(new):
                    change = mix(m[:, part]).sub_(m[:, part]).mul_(pull).add_(m[:, part])
                    new[:, part] = change.add_(z[:, part]).sub_(w[:, part])
                z = new
            before = w
            last, g = g, last
            w = shrink(z, a * self.l1) if self.l1 else z
            sim.recorder.state("z", t, z)
            if self.noise == "state":
                w = released(t, w)
            sim.end(t, w)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare z, x and m; the prox is opaque. Without l1 and noise on x, z equals x."""
        p = Relations(graph)
        mix = Mixing(graph)
        steps = self.own_steps(graph.nodes)
        nodes = range(graph.nodes)
        if self.spread:
            w = {i: p.secret("w", i) for i in nodes}
        else:
            w = dict.fromkeys(nodes, p.public("w0"))
        before = dict(w)
        last = dict[int, Expression]()
        z = dict(w)
        for t in p.rounds(rounds):
            std = self.sigma * self.fade**t
            on_state = std if self.noise == "state" else 0.0
            g = {i: p.grad(i, at=w[i]) for i in nodes}
            m = {}
            if t > 1:
                for i in nodes:
                    out = 2 * w[i] - before[i] - steps[i] * (g[i] - last[i])
                    if self.sigma and self.noise == "message":
                        out = out + p.noise("xi", std, i)
                    m[i] = p.send(i, graph.neighbours[i], out, "m")
            before = dict(w)
            last = g
            for i in nodes:
                if m:
                    pull = steps[i] / max(steps) / 2
                    new = z[i] - before[i] + m[i] - pull * (m[i] - mix.declared(i, m))
                else:
                    new = before[i] - steps[i] * g[i]
                w[i], z[i] = self._moved(p, i, new, on_state)
        return p

    def _moved(
        self, p: Relations, i: int, new: Expression, std: float
    ) -> tuple[Expression, Expression]:
        """Return x and z of node i from the expression of z."""
        if not (self.l1 or std):
            x = p.state("w", i, eq=new)
            return x, x
        z = p.state("z", i, eq=new)
        x = z
        if self.l1:
            x = p.state("x" if std else "w", i)
            p.opaque(x, of=[z])
        if std:
            x = p.state("w", i, eq=x + p.noise("xi", std, i))
        return x, z
