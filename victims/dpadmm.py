"""DP-ADMM with several noisy gradient steps per round, over a graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Generator, Tensor

from leakaudit.core.claim import Adjacency, Claim, NormAssumption
from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols import admm_family as admm
from leakaudit.protocols.batches import chosen, is_drawn, replaced
from leakaudit.protocols.local import normal
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Relations, decimal

if TYPE_CHECKING:
    from leakaudit.tasks.task import Problem, Task

# Huang and Gong 2020, in the form to which DP-Norm's Table II compares. The update is derived from
# the table's curvature 2 rho E_i + eta and was verified; the noise is printed in the table. With
# E_i neighbours and n ~ N(0, (sigma / (2 rho E_i + eta))^2):
#
#     b_i   = rho sum_j (w_i^r + w_j^r) - 2 lam_i^r
#     w_i   <- ( eta w_i + b_i - g_i(w_i) ) / (2 rho E_i + eta) + n          K times from w_i^r
#     lam_i <- lam_i + rho/2 sum_j ( w_i^{r+1} - w_j^{r+1} )
#
# sigma is the noise in units of the gradient. Table II requires sigma >= 2 G sqrt(2 K R
# log(1.25/delta)) / (eps d_i) for a node with d_i records. w_i^{r+1}, the last inner iterate, is
# sent to all neighbours (the sources do not state whether the paper sends the last iterate or the
# average). With K = 1 and no noise this is IC-ADMM (Chang, Hong, Wang 2015) with p = 2 lam and beta
# = eta. A number eta is the same in all steps, as in DP-Norm's experiments (eta = 1/mu); eta=table
# is the table's, with p parameters and the diameter D of the set of models,
#
#     eta^{k,r} = sqrt(2 k r) / D sqrt( G^2/N^2 + p G^2 K R log(1.25/delta) / (d_i^2 eps^2) )
#
# whose second summand is p sigma^2 / 8 at the noise that the table requires.


@victim("dpadmm")
@dataclass(frozen=True)
class DPADMM(SimulatedVictim):
    """Decentralised DP-ADMM with K inner steps; K = 1 without noise is IC-ADMM."""

    paper: ClassVar[str] = "Huang and Gong 2020, in the form of DP-Norm's Table II"
    sends: ClassVar[Mapping[str, str]] = {
        "w": "model of a node, with its noise",
    }
    leaks_what: ClassVar[str] = (
        "sum_k a^(K-1-k) g_k of every round, a = eta / (2 rho E_i + eta), up to the noise; "
        "for K = 1, every gradient"
    )
    claims_what: ClassVar[str] = "(epsilon, delta) of all rounds (DP-Norm, Table II)"
    separable: ClassVar[bool] = True
    regular: ClassVar[bool] = True

    rho: float = param(0.3, "penalty of disagreement", "rho")
    eta: float | Literal["table"] = param(
        2.0,
        "curvature of the linearised loss; table: that of Table II, which grows with every step",
        "eta^{k,r}",
    )
    diameter: float = param(1.0, "largest distance between two models, for eta=table", "D")
    steps: int = param(1, "inner steps per round", "K")
    batch: int = param(
        0,
        "records per inner step, drawn each time without replacement from the node's; 0 uses all",
        "B",
    )
    sigma: float = param(
        0.0,
        "standard deviation of the noise of an inner step, in units of the gradient; 0 adds none",
        "sigma",
    )
    epsilon: float = param(
        0.0, "if above 0, sigma is what Table II prints for it and for `horizon` rounds", "eps"
    )
    horizon: int = param(0, "number of rounds for which epsilon > 0 is stated", "R")
    delta: float = param(1e-3, "delta of the claim and of the printed noise", "delta")
    lipschitz: float = param(
        1.0, "bound on the norm of a record's gradient, assumed by the claim", "G"
    )
    records: int = param(1, "records per node, assumed by the claim", "d_i")

    def __post_init__(self) -> None:
        fixed = 1.0 if self.eta == "table" else self.eta
        positive = min(self.rho, fixed, self.diameter, self.lipschitz) > 0
        if not (positive and min(self.steps, self.records) >= 1 and 0 < self.delta < 1):
            raise LeakauditError(
                "dpadmm: expected rho, eta, diameter, lipschitz > 0, steps, records >= 1 "
                "and 0 < delta < 1"
            )
        negative = min(self.batch, self.sigma, self.epsilon, self.horizon) < 0
        if negative or (self.sigma and self.epsilon):
            raise LeakauditError(
                "dpadmm: expected batch, sigma, epsilon, horizon >= 0, "
                "and at most one of sigma and epsilon above 0"
            )
        if self.epsilon and self.horizon < 1:
            raise LeakauditError(
                "dpadmm: the noise for epsilon depends on the number of rounds; set horizon to it"
            )

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject a mini-batch that is larger than a node's data."""
        if self.batch > samples:
            raise LeakauditError(
                f"dpadmm: expected batch of at most a node's {samples} records, got {self.batch}"
            )

    @property
    def stationary(self) -> bool:
        """All rounds have the same relations if eta is constant."""
        return self.eta != "table"

    @property
    def noise(self) -> float:
        """Standard deviation of the noise in units of the gradient."""
        if not self.epsilon:
            return self.sigma
        return self._printed(self.horizon) / self.epsilon

    def train(self, sim: Simulation) -> None:
        """Train; each inner step computes all nodes' gradients at once."""
        recorder = sim.recorder
        w = sim.begin(sim.common)
        duals = admm.NodeDuals(sim)
        spare = torch.empty_like(w)
        std = self.noise
        for t in sim.rounds:
            pull = duals.pull(w, self.rho)
            for k in range(1, self.steps + 1):
                eta = self.curvature(k, t, sim.graph.nodes, w.shape[1])
                curve = 2 * self.rho * duals.around.degree + eta
                g = self._gradients(sim.problem, w, sim.generator, spare)
                if self.batch:
                    recorder.state(self._name("g", k), t, g)
                admm.linearised(g, w, pull, eta, curve)
                w, spare = g, w
                if std:
                    n = std / curve * normal(w, 1.0, sim.generator)
                    recorder.state(self._name("n", k), t, n)
                    w.add_(n)
            w = sim.send(t, "w", w)
            duals.move(t, w, self.rho / 2)
            sim.end(t, w, lam=duals.lam)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the inner steps; lam is computed from the broadcasts."""
        p = Relations(graph)
        rho = decimal(self.rho)
        size = 0 if self.stationary else admm.declared_size("dpadmm", public)
        std = self.noise
        w = dict.fromkeys(range(graph.nodes), p.public("w0"))
        lam = dict.fromkeys(w, 0 * w[0])
        for t in p.rounds(rounds):
            new = {}
            for i in w:
                pull = rho * admm.both(graph, i, w) - 2 * lam[i]
                v = w[i]
                for k in range(1, self.steps + 1):
                    eta = decimal(self.curvature(k, t, graph.nodes, size))
                    curve = 2 * rho * graph.degree(i) + eta
                    index = None if self.steps == 1 else k
                    v = (eta * v + pull - p.grad(i, at=v, index=index)) / curve
                    if std:
                        v = v + p.noise("n", std / float(curve), i, index)
                    if k < self.steps:
                        v = p.state("w", i, k, eq=v)
                new[i] = p.send(i, graph.neighbours[i], v, "w")
            w = new
            lam = admm.declare_duals(p, graph, lam, w, rho / 2)
        return p

    def claims(
        self, graph: Graph, rounds: int, public: Mapping[str, Tensor] | None = None
    ) -> tuple[Claim, ...]:
        """Return Table II's row, solved for epsilon at this noise."""
        std = self.noise
        if not std:
            return ()
        epsilon = self._printed(rounds) / std
        added = None  # by a step; with eta=table each step adds another
        if self.eta != "table":
            added = std / (2 * self.rho * max(map(graph.degree, range(graph.nodes))) + self.eta)
        norm = NormAssumption("gradients of single records have norm at most", self.lipschitz)
        claim = Claim(
            source="DP-Norm, Table II, row DP-ADMM (Huang and Gong 2020)",
            promise=f"({epsilon:.4g}, {self.delta:g})-differential privacy "
            f"over {rounds} rounds of {self.steps} steps",
            epsilon=epsilon,
            delta=self.delta,
            adjacency="one record of one node differs",
            neighbours=Adjacency.REPLACE,
            std=added,
            rounds=rounds,
            assumes=(str(norm), f"{self.records} records per node"),
            gradient_norm=norm,
            sensitivity=replaced(self.lipschitz, self.batch, self.records),
            sampled=is_drawn(self.batch, self.records),
        )
        return (claim,)

    def curvature(self, k: int, t: int, nodes: int, size: int) -> float:
        """Return eta^{k,r} of inner step k of round t.

        Args:
            size: Number of parameters, p.
        """
        if self.eta != "table":
            return self.eta
        spread = (self.lipschitz / nodes) ** 2 + size * self.noise**2 / 8
        return math.sqrt(2 * k * t * spread) / self.diameter

    def _printed(self, rounds: int) -> float:
        """Return Table II's sigma (2 rho E_i + eta) at epsilon = 1."""
        spread = math.sqrt(2 * self.steps * rounds * math.log(1.25 / self.delta))
        return 2 * self.lipschitz * spread / self.records

    def _name(self, vector: str, k: int) -> str:
        return vector if self.steps == 1 else f"{vector}.{k}"

    def _gradients(self, problem: Problem, w: Tensor, generator: Generator, out: Tensor) -> Tensor:
        if not self.batch:
            return problem.task.gradients(w, problem.x, problem.y, out=out)
        drawn = torch.rand(problem.nodes, problem.samples, generator=generator)
        x, y = chosen(problem, drawn.argsort(1)[:, : self.batch])
        return problem.task.gradients(w, x, y, out=out)
