"""Gradient tracking: a node's estimate y of the mean gradient is averaged like its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols.blocks import blocks
from leakaudit.protocols.consensus import Mixing
from leakaudit.protocols.local import above, least, normal
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Expression, Relations, decimal

# DIGing (Nedic, Olshevsky and Shi 2017, Algorithm 1), with Metropolis weights and a common start
# x^0, y_i^0 = g_i(x^0):
#
#     x^t = W x^{t-1} - alpha y^{t-1}
#     y^t = W y^{t-1} + g(x^t) - g(x^{t-1})            x^t, y^t and y^0 are sent
#
# noise=state adds noise to x wherever it is used, and the error remains small. noise=message adds
# it to the x and y that are sent and averaged: the sum of the y then drifts away from the sum of
# the gradients, and the error grows.


@victim("tracking")
@dataclass(frozen=True)
class Tracking(SimulatedVictim):
    """Gradient tracking in the form of DIGing."""

    paper: ClassVar[str] = "Nedic, Olshevsky and Shi 2017, Algorithm 1 (DIGing)"
    sends: ClassVar[Mapping[str, str]] = {
        "w": "model of a node, with its noise",
        "y": "estimate of the mean gradient; with noise=message, with its noise",
    }
    leaks_what: ClassVar[str] = "every gradient, the first as it is sent; also from the models only"
    separable: ClassVar[bool] = True
    stationary = True  # all rounds have the same relations
    step_size: ClassVar[str] = "alpha"

    alpha: float = param(0.1, "step size", "alpha")
    sigma: float = param(0.0, "standard deviation of the noise", "sigma")
    noise: Literal["state", "message"] = param(
        "state", "noise on the models wherever they are used, or on all messages"
    )

    def __post_init__(self) -> None:
        above("tracking", alpha=self.alpha)
        least("tracking", sigma=self.sigma)

    def train(self, sim: Simulation) -> None:
        """Train; the generator draws the noise."""
        problem = sim.problem
        mix = Mixing(sim.graph)
        w = sim.begin(sim.common)
        g = problem.task.gradients(w, problem.x, problem.y)

        def noised(t: int, kind: str, value: Tensor, where: str) -> Tensor:
            if not self.sigma or self.noise != where:
                return value
            noise = normal(value, self.sigma, sim.generator)
            sim.recorder.state(f"n{kind}", t, noise)
            return value + noise

        y = g.clone()
        spare = torch.empty_like(g)
        heard = {"w": w, "y": sim.send(0, "y", noised(0, "y", g, "message"))}
        sim.recorder.end_round(0)
        for t in sim.rounds:
            for part in blocks(w):
                torch.sub(mix(heard["w"][:, part]), y[:, part], alpha=self.alpha, out=w[:, part])
            w = noised(t, "w", w, "state")
            new = problem.task.gradients(w, problem.x, problem.y, out=spare)
            for part in blocks(y):
                y[:, part] = mix(heard["y"][:, part]).add_(new[:, part]).sub_(g[:, part])
            g, spare = new, g
            heard = {
                kind: sim.send(t, kind, noised(t, kind, value, "message"))
                for kind, value in (("w", w), ("y", y))
            }
            sim.end(t, w, y=y)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare both recursions; a variable that is sent without noise equals its message."""
        p = Relations(graph)
        mix = Mixing(graph)
        alpha = decimal(self.alpha)
        on_state = self.sigma and self.noise == "state"
        on_message = self.sigma and self.noise == "message"

        def send(i: int, kind: str, value: Expression) -> tuple[Expression, Expression]:
            near = graph.neighbours[i]
            if not on_message:
                m = p.send(i, near, value, kind)
                return m, m
            kept = p.state(kind, i, eq=value)
            return kept, p.send(i, near, kept + p.noise(f"n{kind}", self.sigma, i), kind)

        # w and y are the variables, heard_w and heard_y the versions that neighbours receive.
        w = dict.fromkeys(range(graph.nodes), p.public("w0"))
        heard_w = dict(w)
        g = {i: p.grad(i, at=w[i]) for i in w}
        y = dict[int, Expression]()
        heard_y = dict[int, Expression]()
        for i in w:
            y[i], heard_y[i] = send(i, "y", g[i])
        for _ in p.rounds(rounds):
            before_w = dict(heard_w)
            before_y = dict(heard_y)
            for i in w:
                new = mix.declared(i, before_w) - alpha * y[i]
                if on_state:
                    new = new + p.noise("nw", self.sigma, i)
                w[i], heard_w[i] = send(i, "w", new)
                change = p.grad(i, at=w[i])
                y[i], heard_y[i] = send(i, "y", mix.declared(i, before_y) + change - g[i])
                g[i] = change
        return p
