"""FedSGD: clients send gradients to a server, which updates the model and sends it back.

McMahan et al. 2017, Algorithm 1 with one full-batch step. In round t the server sends w, the
clients send g_i = grad f_i(w), and w <- w - lr mean_i g_i.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Generator, Tensor

from leakaudit.errors import LeakauditError
from leakaudit.protocols.local import above, stable
from leakaudit.protocols.server import train
from leakaudit.registry import param, victim
from leakaudit.relations import Relations, decimal
from leakaudit.trace import Graph
from leakaudit.victim import Victim

if TYPE_CHECKING:
    from leakaudit.tasks.task import Problem, Task
    from leakaudit.traces.recorder import Recorder


@victim("fedsgd")
@dataclass(frozen=True)
class FedSGD(Victim):
    """Clients send gradients; the server sends the model."""

    paper: ClassVar[str] = "McMahan et al. 2017, Algorithm 1 (FedSGD)"
    leaks_what: ClassVar[str] = "every gradient, as it is sent"
    centralised: ClassVar[bool] = True

    lr: float = param(0.1, "step size of the server", "eta")
    server: Literal["sgd", "unknown"] = param(
        "sgd", "optimiser of the server; unknown for recordings of programs with another one"
    )

    def __post_init__(self) -> None:
        """Check the range."""
        above("fedsgd", lr=self.lr)

    @property
    def stationary(self) -> bool:
        """All rounds have the same relations."""
        return True

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject steps that diverge on the task's l2 term, and server=unknown."""
        if self.server != "sgd":
            raise LeakauditError(
                "fedsgd: server=unknown only describes recordings of other programs; "
                "use server=sgd to run"
            )
        stable("fedsgd", task, lr=self.lr)

    def run(
        self,
        problem: Problem,
        graph: Graph,
        rounds: int,
        recorder: Recorder,
        generator: Generator,
        wires: Iterable[tuple[int, int]],
    ) -> None:
        """Train; the run is deterministic given the start, so the generator is not used."""
        train(
            problem,
            graph,
            rounds,
            recorder,
            wires,
            "g",
            up=lambda w, g: g,
            merge=lambda w, g: w - self.lr * g.mean(0),
        )

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the server's step; client i sends its gradient."""
        p = Relations(graph)
        server = graph.nodes - 1
        w = p.public("w0")
        for _ in p.rounds(rounds):
            down = p.send(server, range(server), w, "w")
            g = [p.send(i, server, p.grad(i, at=down), "g") for i in range(server)]
            if self.server == "sgd":
                w = p.state("w", server, eq=w - decimal(self.lr) / server * sum(g))
            else:
                w = p.state("w", server)
        return p
