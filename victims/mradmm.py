"""ADMM with a separate penalty per node (M-ADMM) and recycled gradients (R-ADMM, MR-ADMM)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from leakaudit.core.claim import Adjacency, Claim
from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols import admm_family as admm
from leakaudit.protocols.prox import exact, prox
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Expression, Relations, decimal

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# Zhang, Khalili and Liu: ICML 2018 (M-ADMM), Allerton 2018 (R-ADMM), IEEE TIFS 2020 (MR-ADMM);
# written from memory and the abstracts, and verified. With E_i neighbours j, penalty h = eta_i(k)
# and lam^0 = 0; f_i is sent to all neighbours:
#
#     f_i   <- argmin F_i(f) + (2 lam_i + n_i)'f + h sum_j |f - (f_i + f_j)/2|^2
#     n_i    = h E_i e_i                                          e has the density exp(-a |e|)
#     lam_i <- lam_i + theta/2 sum_j (f_i - f_j)
#
# With recycle, every second update (even rounds) does not use data. It uses G_i = grad F_i(f_i) +
# n_i, which is known from the previous update:
#
#     f_i   <- f_i - ( G_i + 2 lam_i + h sum_j (f_i - f_j) ) / (2 h E_i + gamma)
#
# It is a function of earlier broadcasts and therefore adds no leak. k counts rounds, or pairs of
# rounds with recycle. With theta = eta and equal penalties this is ADMM, or R-ADMM with recycle.
# The privacy loss of an update as we remember it, C (1.4 c1 + a) / (h E_i B), contains half of the
# noise term that we derive (for replacing one record: C (1.4 c1 + 2 a) / (h E_i B)).

C1 = admm.LOGISTIC_CURVATURE


@victim("mradmm")
@dataclass(frozen=True)
class MRADMM(SimulatedVictim):
    """MR-ADMM; M-ADMM if recycle=false."""

    paper: ClassVar[str] = (
        "Zhang, Khalili, Liu: M-ADMM (ICML 2018), R-ADMM (Allerton 2018), "
        "MR-ADMM (IEEE TIFS 2020), from memory"
    )
    sends: ClassVar[Mapping[str, str]] = {
        "w": "model of a node",
    }
    leaks_what: ClassVar[str] = (
        "every computed gradient, + n; rounds that use no data leak nothing new"
    )
    claims_what: ClassVar[str] = "total privacy loss, counting only the updates that use data"
    separable: ClassVar[bool] = True
    noise_constant: ClassVar[str] = "rate"
    regular: ClassVar[bool] = True

    eta: float = param(0.3, "initial penalty of disagreement of node 0", "eta_i(1)")
    spread: float = param(0.0, "penalty of node i relative to node 0: 1 + spread i", "eta_i(1)")
    growth: float = param(
        1.0, "factor of all penalties per round, or per pair of rounds with recycle", "eta_i(k)"
    )
    until: int = param(100, "round (or pair of rounds) from which penalties stay constant")
    theta: float = param(0.3, "step size of the dual", "theta")
    recycle: bool = param(True, "reuse the previous gradient in every second update")
    gamma: float = param(2.0, "curvature of an update without data", "gamma")
    rate: float = param(
        0.0, "rate a of the noise, with density exp(-a |e|); 0 adds none", "alpha_i(t)"
    )
    records: int = param(1, "records per node, assumed by the claim", "B_i")
    convexity: float = param(
        0.1, "strong convexity of the regulariser (the task's l2), assumed by the claim", "rho"
    )

    def __post_init__(self) -> None:
        positive = min(self.eta, self.theta, self.convexity) > 0
        if not positive or min(self.spread, self.gamma, self.rate) < 0:
            raise LeakauditError(
                "mradmm: expected eta, theta, convexity > 0 and spread, gamma, rate >= 0"
            )
        if self.growth < 1 or self.until < 1 or self.records < 1:
            raise LeakauditError(
                "mradmm: expected growth >= 1 (penalties that do not decrease), until, records >= 1"
            )

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject a model that is not convex."""
        exact(task)

    def penalty(self, i: int, t: int) -> float:
        """Return eta_i(k) of node i in round t."""
        k = (t + 1) // 2 if self.recycle else t
        return self.eta * (1 + self.spread * i) * self.growth ** min(k, self.until)

    def takes(self, t: int) -> bool:
        """Return whether the updates of round t compute gradients."""
        return not self.recycle or t % 2 == 1

    def train(self, sim: Simulation) -> None:
        """Train a convex model."""
        w = sim.begin(sim.common)
        lam = torch.zeros_like(w)
        noise = torch.zeros_like(w)
        known = torch.zeros_like(w)
        around = admm.NeighbourSums(sim.graph, w)
        for t in sim.rounds:
            h = w.new_tensor([[self.penalty(i, t)] for i in range(sim.graph.nodes)])
            weight = 2 * h * around.degree
            if self.takes(t):
                if self.rate:
                    noise = h * around.degree / self.rate * admm.radial(w, sim.generator)
                    sim.recorder.state("n", t, noise)
                pull = h * around.both(w) - 2 * lam
                w = prox(sim.problem, w, noise - pull, weight)
                known = pull - weight * w
            else:
                w = w - (known + 2 * lam + h * around.apart(w)) / (weight + self.gamma)
            w = sim.send(t, "w", w)
            lam = lam + self.theta / 2 * around.apart(w)
            sim.recorder.state("lam", t, lam)
            sim.end(t, w, lam=lam)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare both kinds of updates; lam is computed from the broadcasts."""
        p = Relations(graph)
        theta = decimal(self.theta)
        gamma = decimal(self.gamma)
        std = self._spread(public)
        w = dict.fromkeys(range(graph.nodes), p.public("w0"))
        lam = dict.fromkeys(w, 0 * w[0])
        known = dict[int, Expression]()
        for t in p.rounds(rounds):
            new = {}
            for i in w:
                h = decimal(self.penalty(i, t))
                degree = graph.degree(i)
                weight = 2 * h * degree
                if self.takes(t):
                    pull = h * admm.both(graph, i, w) - 2 * lam[i]
                    spread = float(h) * degree * std
                    moved, known[i] = admm.declare_prox(p, i, weight, pull, std=spread)
                else:
                    slope = known[i] + 2 * lam[i] + h * admm.apart(graph, i, w)
                    moved = w[i] - slope / (weight + gamma)
                new[i] = p.send(i, graph.neighbours[i], moved, "w")
            w = new
            lam = admm.declare_duals(p, graph, lam, w, theta / 2)
        return p

    def claims(
        self, graph: Graph, rounds: int, public: Mapping[str, Tensor] | None = None
    ) -> tuple[Claim, ...]:
        """Return the total privacy loss, with the formula as we remember it.

        It is the maximum over nodes of the summed losses of the updates that use data.
        """
        if not self.rate:
            return ()
        touched = [t for t in range(1, rounds + 1) if self.takes(t)]
        losses = []
        for i, near in enumerate(graph.neighbours):
            hidden = (self.penalty(i, t) * len(near) * self.records for t in touched)
            losses.append(sum((1.4 * C1 + self.rate) / h for h in hidden))
        claim = Claim(
            source="Zhang, Khalili, Liu 2018 and 2020, loss of M-ADMM and MR-ADMM, from memory",
            promise=f"{max(losses):.4g}-differential privacy over {rounds} rounds, "
            f"{len(touched)} of which use data",
            epsilon=max(losses),
            delta=0.0,
            adjacency="one record of one node differs",
            neighbours=Adjacency.REPLACE,
            rounds=rounds,
            gradient_norm=admm.UNIT,
            assumes=(
                str(admm.UNIT),
                admm.assumed_of_losses(C1),
                f"{self.records} records per node, "
                f"and {2 * C1:g} < B (rho/N + 2 eta E_i) with rho = {self.convexity:g}",
            ),
        )
        return (claim,)

    def _spread(self, public: Mapping[str, Tensor]) -> float:
        """Return the standard deviation of each coordinate of e, 0 without noise.

        It grows with the number of parameters.
        """
        if not self.rate:
            return 0.0
        return admm.declared_std("mradmm", public) / self.rate
