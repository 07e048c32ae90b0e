"""Decentralised ADMM with primal or dual variable perturbation, and without either."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from leakaudit.core.claim import Adjacency, Claim
from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph, Setting
from leakaudit.protocols import admm_family as admm
from leakaudit.protocols.prox import exact, prox
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Relations, decimal

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# Zhang and Zhu 2017 (IEEE TIFS 12(1)), written from memory and verified: the algorithm is correct
# and has these leaks, but may differ from the print in details. V_i = f_i + q_i is sent to all
# neighbours; lam is never sent, and is a linear recursion of the messages from lam^0 = 0. With N_i
# neighbours:
#
#     f_i   <- argmin F_i(f) + 2 (lam_i + n_i)'f + phi_i/2 |f|^2 + eta sum_j |f - (V_i + V_j)/2|^2
#     lam_i <- lam_i + eta/2 sum_j (V_i - V_j)
#
# PVP: q_i has the density exp(-xi |q|), xi = rho B alpha / (2 C), n = 0. DVP: n = C/(2B) e, e has
# the density exp(-zeta |e|), q = 0, and alpha_hat = alpha - 2 log(1 + c4 C / (B (rho + 2 eta
# N_i))); if that is not positive, alpha_hat = alpha/2 and phi_i = c4 C / (B (e^{alpha/4} - 1)) -
# rho - 2 eta N_i. Here F_i is the mean loss of B records plus rho/2 |f|^2, so C = 1. zeta =
# alpha_hat/2 is what replacing one record requires (measured); the print may mean zeta = alpha_hat,
# which is half the noise. update=gradient replaces F_i by its tangent and curvature/2 |f - f_i|^2,
# which is IC-ADMM (Chang, Hong, Wang 2015).

C4 = admm.LOGISTIC_CURVATURE


@victim("pvpadmm")
@dataclass(frozen=True)
class PVPADMM(SimulatedVictim):
    """D-ADMM (perturb=none), with dual (DVP) or primal variable perturbation (PVP)."""

    paper: ClassVar[str] = "Zhang and Zhu 2017 (IEEE TIFS 12(1)), DVP and PVP, from memory"
    sends: ClassVar[Mapping[str, str]] = {
        "w": "model of a node; with perturb=primal, with its noise",
    }
    leaks_what: ClassVar[str] = (
        "every gradient; with DVP + 2n, with PVP - 2 eta N_i q: the noise does not accumulate"
    )
    claims_what: ClassVar[str] = (
        "alpha-differential privacy of each node and iteration (dynamic DP)"
    )
    separable: ClassVar[bool] = True
    noise_constant: ClassVar[str] = "alpha"
    noiseless: ClassVar[Mapping[str, Setting]] = {"perturb": "none"}
    stationary = True  # all rounds have the same relations

    eta: float = param(0.3, "penalty of disagreement", "eta")
    update: Literal["exact", "gradient"] = param(
        "exact", "local update: exact (convex models only), or one gradient step"
    )
    curvature: float = param(2.0, "curvature of update=gradient", "beta_i")
    perturb: Literal["none", "dual", "primal"] = param(
        "none", "perturbed variable: dual (DVP), primal (PVP) or none"
    )
    alpha: float = param(1.0, "claimed privacy loss of each node and iteration", "alpha_p(t)")
    zeta: Literal["half", "full"] = param(
        "half", "rate of the dual noise: alpha_hat/2 (half), or alpha_hat", "zeta_p(t)"
    )
    records: int = param(1, "records per node, for the noise", "B_p")
    convexity: float = param(
        0.1, "strong convexity of the regulariser (the task's l2), for the noise", "rho"
    )

    def __post_init__(self) -> None:
        if min(self.eta, self.curvature, self.alpha, self.convexity) <= 0 or self.records < 1:
            raise LeakauditError(
                "pvpadmm: expected eta, curvature, alpha, convexity > 0 and records >= 1"
            )

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject an exact update of a model that is not convex."""
        if self.update == "exact":
            exact(task)

    def train(self, sim: Simulation) -> None:
        """Train; every node draws fresh noise in every round."""
        problem = sim.problem
        w = sim.begin(sim.common)
        sent = w
        noise = torch.zeros_like(w)
        spare = torch.empty_like(w)
        duals = admm.NodeDuals(sim)
        constants = [self._noise(len(near)) for near in sim.graph.neighbours]
        size = w.new_tensor([[size] for size, _ in constants])
        phi = w.new_tensor([[phi] for _, phi in constants])
        weight = 2 * self.eta * duals.around.degree + phi
        for t in sim.rounds:
            if self.perturb != "none":
                noise = size * admm.radial(w, sim.generator)
            pull = duals.pull(sent, self.eta)
            if self.perturb == "dual":
                pull.sub_(noise, alpha=2)
            if self.update == "exact":
                w = prox(problem, w, -pull, weight)
            else:
                g = problem.task.gradients(w, problem.x, problem.y, out=spare)
                admm.linearised(g, w, pull, self.curvature, self.curvature + weight)
                w, spare = g, w
            sent = sim.send(t, "w", w + noise if self.perturb == "primal" else w)
            duals.move(t, sent, self.eta / 2)
            sim.recorder.state("n", t, noise)
            sim.end(t, w, lam=duals.lam)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the stationarity of each update; lam is computed from the broadcasts."""
        p = Relations(graph)
        eta = decimal(self.eta)
        curvature = decimal(self.curvature)
        std = self._spread(public)
        start = p.public("w0")
        w = dict.fromkeys(range(graph.nodes), start)
        sent = dict(w)
        lam = dict.fromkeys(w, 0 * start)
        for _ in p.rounds(rounds):
            new = {}
            for i in w:
                size, phi = self._noise(graph.degree(i))
                noise = p.noise("n", size * std, i, law="laplace") if std else 0 * start
                dual = lam[i] + noise if self.perturb == "dual" else lam[i]
                pull = eta * admm.both(graph, i, sent) - 2 * dual
                weight = 2 * eta * graph.degree(i) + decimal(phi)
                if self.update == "exact":
                    w[i], _ = admm.declare_prox(p, i, weight, pull)
                else:
                    moved = curvature * w[i] + pull - p.grad(i, at=w[i])
                    w[i] = p.state("w", i, eq=moved / (curvature + weight))
                shown = w[i] + noise if self.perturb == "primal" else w[i]
                new[i] = p.send(i, graph.neighbours[i], shown, "w")
            sent = new
            lam = admm.declare_duals(p, graph, lam, sent, eta / 2)
        return p

    def claims(
        self, graph: Graph, rounds: int, public: Mapping[str, Tensor] | None = None
    ) -> tuple[Claim, ...]:
        """Return the paper's dynamic differential privacy: alpha for each node and iteration.

        The paper does not compose it.
        """
        if self.perturb == "none":
            return ()
        variant = "DVP" if self.perturb == "dual" else "PVP"
        scale, _ = self._noise(graph.degree(0))
        claim = Claim(
            source=f"Zhang and Zhu 2017, dynamic differential privacy of {variant}",
            promise=f"{self.alpha:g}-differential privacy of each node in each iteration, "
            f"noise of density exp(-|n| / {scale:.4g}) at node 0; "
            f"not composed by the paper: {rounds * self.alpha:g} for {rounds} rounds",
            epsilon=self.alpha,
            delta=0.0,
            adjacency="one record of one node is replaced",
            neighbours=Adjacency.REPLACE,
            rounds=1,
            gradient_norm=admm.UNIT,
            assumes=(
                str(admm.UNIT),
                admm.assumed_of_losses(C4),
                f"{self.records} records per node and a {self.convexity:g}-strongly convex "
                "regulariser",
                "exact updates",
            ),
        )
        return (claim,)

    def _noise(self, degree: int) -> tuple[float, float]:
        """Return 1 / rate of the added noise, and phi, for a node of this degree."""
        weight = self.convexity + 2 * self.eta * degree
        unit = 1 / self.records  # C / B
        if self.perturb == "primal":
            return 2 * unit / (self.convexity * self.alpha), 0.0
        if self.perturb == "none":
            return 0.0, 0.0
        left = self.alpha - 2 * math.log1p(C4 * unit / weight)  # alpha_hat
        phi = 0.0
        if left <= 0:
            left = self.alpha / 2
            phi = C4 * unit / math.expm1(self.alpha / 4) - weight
        zeta = left / 2 if self.zeta == "half" else left
        return unit / 2 / zeta, phi

    def _spread(self, public: Mapping[str, Tensor]) -> float:
        """Return the standard deviation of each coordinate at rate 1, 0 without noise.

        It grows with the number of parameters.
        """
        if self.perturb == "none":
            return 0.0
        return admm.declared_std("pvpadmm", public)
