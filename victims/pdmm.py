"""PDMM and ADMM: decentralised training by operator splitting, plain or differential."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols.blocks import blocks
from leakaudit.protocols.growth import TOO_FAST, growth
from leakaudit.protocols.pdmm_family import DualRule, EdgeDuals, Sums
from leakaudit.protocols.prox import exact, prox
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Relations, decimal

if TYPE_CHECKING:
    from leakaudit.tasks.task import Problem, Task

# W. Yu, Privacy Analysis of Decentralized Federated Learning (2023), Algorithms 1 and 2. Node i has
# d_i neighbours j; B = +1 if i < j, else -1:
#
#     w_i     <- argmin f_i(w) + sum_j B z_{i|j} w + rho d_i / 2 |w|^2
#     z_{j|i} <- z_{j|i} + theta ( z_{i|j} - z_{j|i} + 2 rho B w_i )              is sent i -> j


@victim("pdmm")
@dataclass(frozen=True)
class PDMM(SimulatedVictim):
    """PDMM (theta = 1) and ADMM (theta = 1/2): exact, gradient-step or quadratic local updates."""

    paper: ClassVar[str] = "Yu 2023 (TU Delft), Algorithms 1 and 2"
    sends: ClassVar[Mapping[str, str]] = {
        "z0": "encrypted start of the dual variable of a channel, in round 0 (only with z0 > 0)",
        "dz": "change of the dual variable of a channel (only with differential=true)",
        "z": "dual variable of a channel (only with differential=false)",
    }
    leaks_what: ClassVar[str] = (
        "every one-step gradient difference; every gradient if z^0 is known or messages are plain"
    )
    separable: ClassVar[bool] = True
    stationary = True  # all rounds have the same relations

    rho: float = param(0.4, "penalty of disagreement", "rho")
    theta: float = param(
        1.0, "averaging: 1 is PDMM (Peaceman-Rachford), 0.5 is ADMM (Douglas-Rachford)", "theta"
    )
    update: Literal["gradient", "quadratic", "exact"] = param(
        "gradient", "local update: k_max gradient steps, quadratic approximation, or exact"
    )
    alpha: float = param(0.05, "step size of update=gradient", "alpha")
    k_max: int = param(1, "gradient steps per round for update=gradient", "k_max")
    mu: float = param(20.0, "curvature of update=quadratic", "mu")
    differential: bool = param(True, "send only changes of z; z^0 is sent over encrypted channels")
    z0: float = param(
        0.1, "standard deviation of the random z^0; 0 starts at zero and protects nothing", "z^0"
    )
    quantize: float = param(
        0.0,
        "cell width of a fixed quantizer of the messages; 0 sends plain floating-point numbers",
        "Delta",
    )

    def __post_init__(self) -> None:
        positive = min(self.rho, self.alpha, self.mu) > 0 and 0 < self.theta <= 1
        if not (positive and self.k_max >= 1 and min(self.z0, self.quantize) >= 0):
            raise LeakauditError(
                "pdmm: expected 0 < theta <= 1, rho, alpha, mu > 0, k_max >= 1, "
                "z0 >= 0 and quantize >= 0"
            )

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject an exact update of a model that is not convex, and gradient steps that diverge."""
        if self.update == "exact":
            exact(task)
        if self.update == "gradient":
            factor = growth(graph, self.alpha, self.rho, self.theta, self.k_max, task.l2)
            if factor > TOO_FAST:
                degree = max(map(graph.degree, range(graph.nodes)))
                product = self.alpha * (task.l2 + self.rho * degree)
                raise LeakauditError(
                    f"pdmm: alpha (l2 + rho d) = {product:g} for a node with {degree} neighbours: "
                    f"the run diverges by a factor of {factor:.3g} per round on any data; "
                    "lower alpha or rho"
                )

    def step(self, degree: Tensor) -> tuple[Tensor, Tensor]:
        """Return c0 and c1 of one inexact step w <- c0 w - c1 (g + S), (N, 1) each.

        Args:
            degree: Number of neighbours of each node, (N, 1).
        """
        if self.update == "quadratic":
            c1 = 1 / (self.mu + self.rho * degree)
            return self.mu * c1, c1
        return 1 - self.alpha * self.rho * degree, torch.full_like(degree, self.alpha)

    def train(self, sim: Simulation) -> None:
        """Train; without a quantizer, channels that are not recorded add no cost to a round."""
        w = sim.begin(sim.common)
        rule = DualRule(self.rho, self.theta, self.differential, self.quantize, self.z0)
        form = EdgeDuals if self.quantize or sim.recorder.partial else Sums
        duals = form(rule, sim, w)
        degree = w.new_tensor([[sim.graph.degree(i)] for i in range(sim.graph.nodes)])
        spare = torch.empty_like(w)
        sim.recorder.end_round(0)
        for t in sim.rounds:
            w = self._updated(sim.problem, w, degree, duals, spare)
            duals.send(t, w)
            sim.end(t, w, s=duals.s)

    def _updated(
        self, problem: Problem, w: Tensor, degree: Tensor, duals: Sums | EdgeDuals, spare: Tensor
    ) -> Tensor:
        """Return all nodes' new w (N, d), and update the sums block by block.

        Gradient steps overwrite the old w.
        """
        if self.update == "exact":
            w = prox(problem, w, duals.s, self.rho * degree)
            duals.move(w, slice(None))
            return w
        c0, c1 = self.step(degree)
        last = self.k_max if self.update == "gradient" else 1
        for k in range(1, last + 1):
            g = problem.task.gradients(w, problem.x, problem.y, out=spare)
            for part in blocks(w):
                w[:, part].mul_(c0).addcmul_(g[:, part], c1, value=-1)
                w[:, part].addcmul_(duals.s[:, part], c1, value=-1)
                if k == last:
                    duals.move(w, part)
        return w

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare both updates; node i holds z_{i|j}, which changes by the received message."""
        p = Relations(graph)
        near = graph.neighbours
        rho, theta, alpha, mu = map(decimal, (self.rho, self.theta, self.alpha, self.mu))
        twice = 2 * rho
        # The rounding error is uniform on up to half a cell: variance cell^2 / 12.
        cell = self.quantize / 12**0.5
        sign = {(i, j): 1 if i < j else -1 for i, j in graph.arcs}
        w = dict.fromkeys(range(graph.nodes), p.public("w0"))
        if self.z0:
            z = {(j, i): p.secret("z", j, i) for i, j in sign}
            for i, j in sign:
                p.send(i, j, z[j, i], "z0", secure=True)
        else:
            z = dict.fromkeys(sign, p.public("z0"))
        for _ in p.rounds(rounds):
            for i in range(graph.nodes):
                pull = sum(sign[i, j] * z[i, j] for j in near[i])
                push = rho * len(near[i])
                if self.update == "exact":
                    w[i] = p.state("w", i)
                    p.relate(push * w[i], -(p.grad(i, at=w[i]) + pull))
                elif self.update == "quadratic":
                    w[i] = p.state("w", i, eq=(mu * w[i] - p.grad(i, at=w[i]) - pull) / (mu + push))
                else:
                    for k in range(1, self.k_max + 1):
                        g = p.grad(i, at=w[i], index=None if self.k_max == 1 else k)
                        moved_w = w[i] - alpha * (g + pull + push * w[i])
                        w[i] = p.state("w", i, None if k == self.k_max else k, eq=moved_w)
            moved = {}
            pushed = {i: twice * w[i] for i in w}
            for i, j in sign:
                change = theta * (z[i, j] - z[j, i] + sign[i, j] * pushed[i])
                if self.differential:
                    sent = p.send(i, j, change, "dz", std=cell)
                    moved[j, i] = p.state("z", j, i, eq=z[j, i] + sent)
                else:
                    moved[j, i] = p.send(i, j, z[j, i] + change, "z", std=cell)
            z = moved
        return p
