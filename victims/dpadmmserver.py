"""DP-ADMM with a server: linearised local updates, and noise proportional to the step size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import torch
from torch import Tensor

from leakaudit.core.claim import Adjacency, Claim, NormAssumption
from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols.blocks import blocks
from leakaudit.protocols.local import normal
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Relations, decimal

# Huang, Hu, Guo, Chan-Tin and Gong 2020, written from memory and verified; the noise is confirmed
# by two printed sources. Client i sends the noised v_i to the server, which sends w to the clients:
#
#     v_i   <- ( v_i/eta_k + rho w + gam_i - g_i(v_i) ) / (rho + 1/eta_k)
#              + N(0, (sigma / (rho + 1/eta_k))^2)
#     w     <- mean_i( v_i - gam_i/rho )
#     gam_i <- gam_i - rho (v_i - w)
#
# sigma is the noise in units of the gradient: the printed 2 c1 sqrt(2 ln(1.25/delta)) / (m eps (rho
# + 1/eta_k)) decreases with eta_k as the update does, so the noise relative to the gradient is the
# same in every iteration, 2 c1 sqrt(2 ln(1.25/delta)) / (m eps).


@victim("dpadmmserver")
@dataclass(frozen=True)
class DPADMMServer(SimulatedVictim):
    """DP-ADMM of Huang et al. on a star; without noise, this is linearised consensus ADMM."""

    paper: ClassVar[str] = "Huang, Hu, Guo, Chan-Tin, Gong 2020 (IEEE TIFS 15), from memory"
    sends: ClassVar[Mapping[str, str]] = {
        "up": "model of a client, with its noise",
        "down": "model of the server",
    }
    leaks_what: ClassVar[str] = (
        "every gradient - (rho + 1/eta_k) xi, with noise of the same size in every iteration"
    )
    claims_what: ClassVar[str] = "(epsilon, delta) of each iteration, about sqrt(T) epsilon overall"
    centralised: ClassVar[bool] = True
    regular: ClassVar[bool] = True

    rho: float = param(0.5, "penalty of disagreement", "rho")
    eta: float = param(0.5, "step size of the first iteration", "eta_1")
    fall: bool = param(False, "decrease the step size: eta_k = eta / sqrt(k)")
    sigma: float = param(
        0.0,
        "standard deviation of the noise in units of the gradient; 0 adds none",
        "sigma_{i,k}",
    )
    epsilon: float = param(
        0.0, "if above 0, sigma is what the paper prints for this epsilon per iteration", "eps"
    )
    delta: float = param(1e-3, "delta of the claim per iteration", "delta")
    lipschitz: float = param(
        1.0, "Lipschitz constant of the loss of a record, assumed by the claim", "c1"
    )
    records: int = param(1, "records per client, assumed by the claim", "m_i")

    def __post_init__(self) -> None:
        positive = min(self.rho, self.eta, self.lipschitz) > 0
        if not (positive and self.records >= 1 and 0 < self.delta < 1):
            raise LeakauditError(
                "dpadmmserver: expected rho, eta, lipschitz > 0, records >= 1 and 0 < delta < 1"
            )
        if min(self.sigma, self.epsilon) < 0 or (self.sigma and self.epsilon):
            raise LeakauditError(
                "dpadmmserver: expected sigma, epsilon >= 0, and at most one of them above 0"
            )

    @property
    def noise(self) -> float:
        """Standard deviation of the noise in units of the gradient."""
        if not self.epsilon:
            return self.sigma
        return self._printed / self.epsilon

    def train(self, sim: Simulation) -> None:
        """Train; the model is the one that the server sends."""
        problem = sim.problem
        w = sim.w0
        v = sim.begin(sim.common)
        gam = torch.zeros_like(v)
        spare = torch.empty_like(v)
        for t in sim.rounds:
            slope = float(self._slope(t))
            g = problem.task.gradients(v, problem.x, problem.y, out=spare)
            for part in blocks(g):
                pull = slope * v[:, part] + self.rho * w[part] + gam[:, part]
                g[:, part] = (pull - g[:, part]) / (self.rho + slope)
            v, spare = g, v
            if self.noise:
                n = self.noise / (self.rho + slope) * normal(v, 1.0, sim.generator)
                sim.recorder.state("n", t, n)
                v.add_(n)
            w = torch.empty_like(w)
            for part in blocks(gam):
                w[part] = (v[:, part] - gam[:, part] / self.rho).mean(0)
                gam[:, part] = gam[:, part] - self.rho * (v[:, part] - w[part])
            sim.up(t, "up", v)
            sim.down(t, "down", w)
            sim.recorder.state("gam", t, gam)
            sim.end(t, v, gam=gam)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the clients' updates and the server's mean; messages determine gam."""
        p = Relations(graph)
        server = graph.nodes - 1
        rho = decimal(self.rho)
        w = p.public("w0")
        v = dict.fromkeys(range(server), w)
        gam = dict.fromkeys(v, 0 * w)
        for t in p.rounds(rounds):
            slope = self._slope(t)
            new = {}
            for i in v:
                moved = (slope * v[i] + rho * w + gam[i] - p.grad(i, at=v[i])) / (rho + slope)
                if self.noise:
                    moved = moved + p.noise("n", self.noise / float(rho + slope), i)
                new[i] = p.send(i, server, moved, "up")
            v = new
            mean = Fraction(1, server) * (sum(v.values()) - sum(gam.values()) / rho)
            w = p.send(server, range(server), mean, "down")
            gam = {i: p.state("gam", i, eq=gam[i] - rho * (v[i] - w)) for i in v}
        return p

    def claims(
        self, graph: Graph, rounds: int, public: Mapping[str, Tensor] | None = None
    ) -> tuple[Claim, ...]:
        """Return the claim per iteration.

        The total, c0 sqrt(T) eps, contains a constant that the paper does not specify.
        """
        if not self.noise:
            return ()
        epsilon = self._printed / self.noise
        norm = NormAssumption("losses of a record with Lipschitz constant", self.lipschitz)
        claim = Claim(
            source="Huang et al. 2020, Gaussian mechanism of each iteration, "
            "and moments accountant",
            promise=f"({epsilon:.4g}, {self.delta:g})-differential privacy of each iteration; "
            f"of the order of sqrt({rounds}) times that epsilon in total",
            epsilon=epsilon,
            delta=self.delta,
            adjacency="one record of one client differs",
            neighbours=Adjacency.REPLACE,
            std=self.noise / (self.rho + float(self._slope(1))),
            rounds=1,
            assumes=(str(norm), f"{self.records} records per client", "eps < 1"),
            gradient_norm=norm,
            classic=True,
        )
        return (claim,)

    @property
    def _printed(self) -> float:
        """Return sigma_{i,k} (rho + 1/eta_k) at epsilon = 1."""
        return 2 * self.lipschitz * math.sqrt(2 * math.log(1.25 / self.delta)) / self.records

    def _slope(self, t: int) -> Fraction:
        """Return 1 / eta_t."""
        if not self.fall:
            return 1 / decimal(self.eta)
        return decimal(math.sqrt(t)) / decimal(self.eta)
