"""FedAvg with one local step: clients send models to a server, which averages them.

McMahan et al. 2017, Algorithm 1, E = 1, B = all. Round t: w down, w_i = w - lr grad f_i(w) up, w <- mean_i w_i.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

from torch import Generator, Tensor

from leakaudit.registry import param, victim
from leakaudit.relations import Relations, decimal
from leakaudit.trace import Graph
from leakaudit.victim import Victim
from leakaudit.victims._server import train  # noqa: TID251 - shared by files of this folder alone

if TYPE_CHECKING:
    from leakaudit.recorder import Recorder
    from leakaudit.task import Problem


@victim("fedavg")
@dataclass(frozen=True)
class FedAvg(Victim):
    """Local models travel up, their mean travels down."""

    paper: ClassVar[str] = "McMahan et al. 2017, Algorithm 1 (FedAvg)"
    leaks_what: ClassVar[str] = "every gradient, (w - w_i) / lr"
    centralised: ClassVar[bool] = True

    lr: float = param(0.1, "local step size", "eta")

    def messages(self, graph: Graph, rounds: int, wires: Iterable[tuple[int, int]]) -> int:
        """One down and one up a wire and round."""
        return 2 * len(list(wires)) * rounds

    def run(
        self, problem: Problem, graph: Graph, rounds: int, recorder: Recorder, generator: Generator, wires: Iterable[tuple[int, int]]
    ) -> None:
        """Train; the generator is not used, the run is deterministic given the start."""
        train(problem, graph, rounds, recorder, wires, "up", up=lambda w, g: w - self.lr * g, merge=lambda w, local: local.mean(0))

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the clients' steps from the model that came down, and the mean of what comes up."""
        p, server = Relations(graph), graph.nodes - 1
        w = p.public("w0")
        for _ in p.rounds(rounds):
            down = p.send(server, range(server), w, "w")
            up = [p.send(i, server, down - decimal(self.lr) * p.grad(i, at=down), "up") for i in range(server)]
            w = p.state("w", server, eq=sum(up) * Fraction(1, server))
        return p
