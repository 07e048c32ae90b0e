"""FedSplit, also known as centralised PDMM: a server averages reflected proximal points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols.admm_family import declare_prox
from leakaudit.protocols.blocks import blocks
from leakaudit.protocols.prox import exact, prox
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Relations, decimal

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# Pathak and Wainwright 2020; Yu 2023, eqs. (5.1), (5.2). Every client keeps the server's last z
# (z_{s|i}):
#
#     w_i <- argmin f_i(w) + rho/2 |w - z_{s|i}|^2       z_{i|s} = 2 w_i - z_{s|i}       to server
#     w_s <- mean_i z_{i|s}                              z_{s|i} = 2 w_s - z_{i|s}       to client


@victim("fedsplit")
@dataclass(frozen=True)
class FedSplit(SimulatedVictim):
    """Centralised PDMM with exact or one-gradient-step local updates."""

    paper: ClassVar[str] = "Pathak and Wainwright 2020; Yu 2023, eqs. (5.1), (5.2)"
    sends: ClassVar[Mapping[str, str]] = {
        "up": "reflected model of a client",
        "down": "reflected model of the server for one client",
    }
    leaks_what: ClassVar[str] = "every gradient, rho (z_{s|i} - w_i)"
    centralised: ClassVar[bool] = True
    stationary = True  # all rounds have the same relations

    rho: float = param(0.4, "penalty of disagreement", "rho")
    update: Literal["gradient", "exact"] = param(
        "gradient", "local update: one gradient step, or exact (convex models only)"
    )
    alpha: float = param(0.05, "step size of update=gradient", "alpha")

    def __post_init__(self) -> None:
        if not (self.rho > 0 and self.alpha > 0):
            raise LeakauditError(
                f"fedsplit: expected rho > 0 and alpha > 0, got {self.rho} and {self.alpha}"
            )
        if self.update == "gradient" and self.alpha * self.rho > 1:
            raise LeakauditError(
                "fedsplit: expected alpha rho <= 1 (above 1, the difference between clients "
                f"diverges), got {self.alpha * self.rho:g}; lower alpha"
            )

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject an exact update of a model that is not convex."""
        if self.update == "exact":
            exact(task)

    def train(self, sim: Simulation) -> None:
        """Train; the run is deterministic given the start, so the generator is not used."""
        problem = sim.problem
        w = sim.begin(sim.common)
        z = w.clone()
        weight = torch.full((problem.nodes, 1), self.rho, dtype=w.dtype, device=w.device)
        spare = torch.empty_like(w)
        for t in sim.rounds:
            if self.update == "exact":
                w = prox(problem, w, -self.rho * z, weight)
            else:
                g = problem.task.gradients(w, problem.x, problem.y, out=spare)
                for part in blocks(g):
                    torch.add(g[:, part], w[:, part] - z[:, part], alpha=self.rho, out=g[:, part])
                    w[:, part].sub_(g[:, part], alpha=self.alpha)
            sim.down(t, "down", z)
            for part in blocks(z):
                z[:, part].neg_().add_(w[:, part], alpha=2)  # sent to the server
            sim.up(t, "up", z)
            torch.sub(2 * z.mean(0), z, out=z)
            sim.end(t, w, z=z)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare both proximal forms; a client's w is the mean of its messages up and down."""
        p = Relations(graph)
        server = graph.nodes - 1
        rho = decimal(self.rho)
        alpha = decimal(self.alpha)
        w = dict.fromkeys(range(server), p.public("w0"))
        z = dict(w)
        for _ in p.rounds(rounds):
            up = {}
            for i in range(server):
                down = p.send(server, i, z[i], "down")
                if self.update == "exact":
                    w[i], _ = declare_prox(p, i, rho, rho * down)
                else:
                    slope = p.grad(i, at=w[i]) + rho * (w[i] - down)
                    w[i] = p.state("w", i, eq=w[i] - alpha * slope)
                up[i] = p.send(i, server, 2 * w[i] - down, "up")
            mean = p.state("mean", server, eq=sum(up.values()) * Fraction(1, server))
            z = {i: p.state("z", server, i, eq=2 * mean - up[i]) for i in up}
        return p
