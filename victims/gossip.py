"""Gossip: averaging with neighbours until all nodes agree on the mean of private vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols.consensus import average, declare_average
from leakaudit.protocols.local import Steps, above, least
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Relations

# Xiao and Boyd 2004, eq. (2), with Metropolis weights. The private vectors are the models after
# local gradient steps from the common start:
#
#     y_i^0   = w0 - lr g_i(w0) - ... + n_i,  n_i ~ N(0, sigma^2 I) drawn once
#     y^{t+1} = W y^t
#
# Every y^t is sent, beginning with y^0: round t sends y^{t-1}. With sigma = 0 the first message of
# a node is equivalent to its gradient.


@victim("gossip")
@dataclass(frozen=True)
class Gossip(SimulatedVictim):
    """One phase of local training, then only averaging."""

    paper: ClassVar[str] = "Xiao and Boyd 2004, eq. (2); Metropolis weights"
    sends: ClassVar[Mapping[str, str]] = {
        "w": "value of a node before the averaging",
    }
    leaks_what: ClassVar[str] = (
        "every initial vector, from the node's first message; those of distant nodes "
        "to anyone who observes one node's messages for long enough"
    )
    separable: ClassVar[bool] = True
    stationary = True  # all rounds have the same relations
    step_size: ClassVar[str] = "lr"

    lr: float = param(0.5, "step size of the local steps before the averaging", "eta")
    steps: int = param(1, "local gradient steps before the averaging")
    sigma: float = param(
        0.0, "standard deviation of the noise on the initial vectors, drawn once", "sigma"
    )

    def __post_init__(self) -> None:
        above("gossip", lr=self.lr, steps=self.steps)
        least("gossip", sigma=self.sigma)

    def train(self, sim: Simulation) -> None:
        """Train in the first round, then average; the generator draws the noise."""
        average(sim, Steps(self.lr, self.steps), every=0, std=self.sigma)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the initial vectors and their averages."""
        return declare_average(graph, rounds, Steps(self.lr, self.steps), every=0, std=self.sigma)
