"""Muffliato: noise is added once, then gossiped several times between two gradient steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.sparse.csgraph import shortest_path
from torch import Tensor

from leakaudit.core.claim import Adjacency, Claim
from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols.consensus import average, declare_average
from leakaudit.protocols.local import Steps, above, least
from leakaudit.protocols.mixing import matrix, metropolis
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Relations

# Cyffers, Even, Bellet and Massoulie 2022, Algorithms 1 and 2:
#
#     y^0     = w - lr g(w) + n,  n ~ N(0, sigma^2 I)
#     y^{s+1} = gamma W y^s + (1 - gamma) y^{s-1}                    y^s is sent
#
# gamma = 1 is plain gossip; the accelerated gamma is written from memory and not verified. The
# claim is the pairwise formula as the authors' public code computes it. The formula adds the terms
# as if every message had fresh noise, although all messages share y^0; the exact view bound of
# distant pairs therefore exceeds it. The restriction that the proof assumes may differ.

SOURCE = (
    "Cyffers, Even, Bellet and Massoulie 2022 (Muffliato), "
    "the pairwise formula of the authors' public code"
)


@victim("muffliato")
@dataclass(frozen=True)
class Muffliato(SimulatedVictim):
    """Noisy gossip between gradient steps."""

    paper: ClassVar[str] = "Cyffers, Even, Bellet and Massoulie 2022, Algorithms 1 and 2"
    sends: ClassVar[Mapping[str, str]] = {
        "w": "model of a node, with its noise; one message for each averaging step",
    }
    leaks_what: ClassVar[str] = (
        "every noised gradient, including those of distant nodes, "
        "as linear combinations of what one node receives"
    )
    claims_what: ClassVar[str] = "pairwise Renyi epsilon, smaller between more distant nodes"
    separable: ClassVar[bool] = True
    regular: ClassVar[bool] = True
    step_size: ClassVar[str] = "lr"

    lr: float = param(0.5, "step size", "nu")
    gossips: int = param(5, "exchanges between two gradient steps", "K")
    sigma: float = param(
        0.05, "standard deviation of the noise before the first exchange; 0 adds none", "sigma"
    )
    clip: float = param(
        1.0, "norm to which each record's gradient is clipped; 0: none; claims require clipping"
    )
    delta: float = param(1e-3, "delta of the claims", "delta")
    accelerate: bool = param(
        False, "accelerated gossip: gamma from the graph's eigenvalues instead of 1", "gamma"
    )

    def __post_init__(self) -> None:
        above("muffliato", lr=self.lr, gossips=self.gossips)
        least("muffliato", sigma=self.sigma, clip=self.clip)
        if not 0 < self.delta < 1:
            raise LeakauditError(f"muffliato: expected 0 < delta < 1, got {self.delta}")

    @property
    def stationary(self) -> bool:
        """All rounds have the same relations if each round has one gradient step."""
        return self.gossips == 1

    def train(self, sim: Simulation) -> None:
        """Train; the generator draws the noise."""
        average(sim, self._steps, self.gossips, self.sigma, self._speed(sim.graph))

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the noised start of every averaging phase, and its exchanges."""
        return declare_average(
            graph, rounds, self._steps, self.gossips, self.sigma, self._speed(graph)
        )

    def claims(
        self, graph: Graph, rounds: int, public: Mapping[str, Tensor] | None = None
    ) -> tuple[Claim, ...]:
        """Return the formula's epsilon for one pair per distance, and its mean over senders.

        Of the pairs at a distance, the one with the smallest epsilon is used. Adjacency: one node's
        gradient, of norm at most clip, is replaced. Renyi epsilon alpha rho is converted into
        (epsilon, delta) by rho + 2 sqrt(rho log(1 / delta)).
        """
        if not (self.sigma and self.clip):
            return ()
        pairs = self.pairwise(graph, rounds)
        apart = shortest_path(_adjacency(graph), unweighted=True)
        if not np.isfinite(apart).all():
            return ()  # gossip does not reach everybody, and the formula does not hold
        found = []
        for hops in range(1, int(apart.max()) + 1):
            at_distance = np.argwhere(apart == hops).tolist()
            rho, v, u = min((float(pairs[v, u]), v, u) for v, u in at_distance)
            promise = f"node {u} has differential privacy towards node {v}, {hops} hops away"
            found.append(self._claim(promise, rho, rounds, (v, u)))
        mean = float(pairs.mean(1).max())
        average = (
            "a node has differential privacy towards another, on average over senders: "
            f"Renyi epsilon of order alpha at most {mean:.6g} alpha"
        )
        return (*found, self._claim(average, None, rounds))

    def pairwise(self, graph: Graph, rounds: int) -> np.ndarray:
        """Return rho of what a node observes of another one: Renyi epsilon over alpha.

        It is D^2 / (2 sigma^2) sum_{s < K} sum_{w in N_v} (W^s)_{wu}^2 / |(W^s)_w|^2 per gradient
        step, with D = 2 lr clip.

        Returns:
            Row v, column u: what v observes of u, (N, N); the diagonal has no meaning.
        """
        rho = np.zeros((graph.nodes, graph.nodes))
        near = _adjacency(graph)
        speed = self._speed(graph)
        w = _matrix(graph)
        for first in range(0, rounds, self.gossips):
            now = np.eye(graph.nodes)
            before = now
            for _ in range(min(self.gossips, rounds - first)):
                rho += near @ (now**2 / (now**2).sum(1, keepdims=True))
                now, before = speed * w @ now + (1 - speed) * before, now
        return np.asarray(rho * (2 * self.lr * self.clip) ** 2 / (2 * self.sigma**2))

    @property
    def _steps(self) -> Steps:
        return Steps(self.lr, clip=self.clip)

    def _speed(self, graph: Graph) -> float:
        """Return gamma = 2 (1 - sqrt(gap (1 - gap / 4))) / (1 - gap / 2)^2.

        gap is 1 minus the second largest eigenvalue of W.
        """
        if not self.accelerate or graph.nodes < 3:
            return 1.0
        gap = 1 - float(np.linalg.eigvalsh(_matrix(graph))[-2])
        return round(2 * (1 - math.sqrt(gap * (1 - gap / 4))) / (1 - gap / 2) ** 2, 9)

    def _claim(
        self, promise: str, rho: float | None, rounds: int, pair: tuple[int, int] | None = None
    ) -> Claim:
        epsilon = None
        delta = None
        if rho is not None:
            epsilon = rho + 2 * math.sqrt(rho * math.log(1 / self.delta))
            delta = self.delta
        return Claim(
            source=SOURCE,
            promise=promise,
            epsilon=epsilon,
            delta=delta,
            adjacency="one node's clipped gradients are replaced",
            neighbours=Adjacency.NODE,
            std=self.sigma,
            rounds=rounds,
            assumes=("messages compose as if each had independent noise",),
            sensitivity=2 * self.clip,
            pair=pair,
        )


def _matrix(graph: Graph) -> np.ndarray:
    return matrix(metropolis(graph), torch.zeros(0, dtype=torch.float64)).numpy()


def _adjacency(graph: Graph) -> np.ndarray:
    near = np.zeros((graph.nodes, graph.nodes))
    for i, j in graph.arcs:
        near[i, j] = 1.0
    return near
