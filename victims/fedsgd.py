"""FedSGD: clients send gradients to a server, which updates the model and sends it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols.local import above, least, normal, stable
from leakaudit.protocols.optimiser import DeclaredMemory, Kind, Optimiser, OptimiserState
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.tasks import clipping
from leakaudit.theory.relations import Expression, Relations, decimal

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# McMahan et al. 2017, Algorithm 1 with one full-batch step. In round t the server sends w, the
# clients send g_i = grad f_i(w), and w <- w - lr mean_i g_i.


@victim("fedsgd")
@dataclass(frozen=True)
class FedSGD(SimulatedVictim):
    """Clients send gradients; the server sends the model."""

    paper: ClassVar[str] = "McMahan et al. 2017, Algorithm 1 (FedSGD)"
    sends: ClassVar[Mapping[str, str]] = {
        "w": "model of the server",
        "g": "gradient of a client, with its noise",
    }
    leaks_what: ClassVar[str] = "every gradient, as it is sent"
    centralised: ClassVar[bool] = True
    stationary = True  # all rounds have the same relations

    lr: float = param(0.1, "step size of the server", "eta")
    server: Literal["sgd", "adam", "adamw", "adagrad", "unknown"] = param(
        "sgd", "optimiser of the server; unknown for recordings of programs with another one"
    )
    momentum: float = param(0.0, "momentum of server=sgd")
    nesterov: bool = param(False, "use Nesterov momentum")
    decay: float = param(0.0, "weight decay of the server", "lambda")
    clip: float = param(0.0, "norm to which each record's gradient is clipped; 0: none", "C")
    sigma: float = param(0.0, "standard deviation of the noise added to each gradient", "sigma")
    noisy: Literal["all", "first"] = param(
        "all", "clients that add the noise; first: only client 0, as with Opacus"
    )

    def __post_init__(self) -> None:
        above("fedsgd", lr=self.lr)
        least("fedsgd", decay=self.decay, clip=self.clip, sigma=self.sigma)
        _ = self._optimiser

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject steps that diverge on the task's l2 term, and server=unknown."""
        if self.server == "unknown":
            raise LeakauditError(
                "fedsgd: server=unknown only describes recordings of other programs; "
                "use server=sgd to run"
            )
        stable("fedsgd", task, lr=self.lr)

    def train(self, sim: Simulation) -> None:
        """Train; the generator draws the noise."""
        problem = sim.problem
        w = sim.begin(sim.w0)
        memory = OptimiserState()
        g = torch.empty_like(sim.common)
        for t in sim.rounds:
            models = w.expand(problem.nodes, -1)
            if self.clip:
                g = clipping.gradients(problem.task, models, problem.x, problem.y, self.clip)
                sim.recorder.state("g", t, g)
            else:
                problem.task.gradients(models, problem.x, problem.y, out=g)
            sent = g
            if self.sigma:
                noise = normal(g, self.sigma, sim.generator)
                if self.noisy == "first":
                    noise[1:] = 0
                sim.recorder.state("e", t, noise)
                sent = g + noise
            sim.down(t, "w", w)
            sim.up(t, "g", sent)
            w = self._optimiser.step(memory, self.lr, w, sent.mean(0))
            sim.end(t, w)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the server's step; client i sends its gradient."""
        p = Relations(graph)
        server = graph.nodes - 1
        memory: DeclaredMemory = {}
        w = p.public("w0")
        for _ in p.rounds(rounds):
            down = p.send(server, range(server), w, "w")
            sent = []
            for i in range(server):
                g = p.grad(i, at=down)
                if self.sigma and (self.noisy == "all" or i == 0):
                    g = g + p.noise("e", self.sigma, i)
                sent.append(p.send(i, server, g, "g"))
            w = p.state("w", server, eq=self._moved(p, memory, down, sent))
        return p

    def _moved(
        self, p: Relations, memory: DeclaredMemory, w: Expression, sent: Sequence[Expression]
    ) -> Expression | None:
        """Return the server's next model; None if its step is not known."""
        if self.server == "unknown":
            return None
        mean = sum(sent[1:], start=sent[0]) / len(sent)
        return self._optimiser.declare(p, memory, len(sent), w, mean, decimal(self.lr))

    @property
    def _optimiser(self) -> Optimiser:
        kind: Kind = "sgd" if self.server == "unknown" else self.server
        return Optimiser(kind, self.momentum, self.nesterov, self.decay)
