"""FedSGD: clients send gradients to a server, which updates the model and sends it back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Generator, Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols import running_statistics
from leakaudit.protocols.local import above, least, normal, of_all, stable
from leakaudit.protocols.optimiser import DeclaredMemory, Kind, Optimiser, OptimiserState
from leakaudit.protocols.running_statistics import RunningStatistics
from leakaudit.protocols.schedules import clients, draw_clients, listed, most_of, within_one
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.tasks import clipping
from leakaudit.theory.relations import Expression, Relations, decimal

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# McMahan et al. 2017, Algorithm 1 with one full-batch step. In round t the server sends w, the
# clients send g_i = grad f_i(w), and w <- w - lr mean_i g_i. With C < 1, m = max(C N, 1) random
# clients take part in a round, which count as public, and the mean is over these.


@victim("fedsgd")
@dataclass(frozen=True)
class FedSGD(SimulatedVictim):
    """Clients send gradients; the server sends the model."""

    paper: ClassVar[str] = "McMahan et al. 2017, Algorithm 1 (FedSGD)"
    sends: ClassVar[Mapping[str, str]] = {
        "w": "model of the server",
        "g": "gradient of a client, with its noise",
        **running_statistics.SENDS,
    }
    leaks_what: ClassVar[str] = "every gradient, as it is sent"
    centralised: ClassVar[bool] = True

    lr: float = param(0.1, "step size of the server", "eta")
    server: Literal["sgd", "adam", "adamw", "adagrad", "rmsprop", "unknown"] = param(
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
    fraction: float = param(1.0, "share of the clients that take part in a round, random", "C")
    buffers: bool = param(False, "also send the running statistics of batch normalisation")
    bn_momentum: float = param(0.1, "momentum of these statistics, as in the model's layers", "m")

    def __post_init__(self) -> None:
        above("fedsgd", lr=self.lr)
        least("fedsgd", decay=self.decay, clip=self.clip, sigma=self.sigma)
        _ = self._optimiser
        within_one("fedsgd", fraction=self.fraction, bn_momentum=self.bn_momentum)

    @property
    def stationary(self) -> bool:
        """All rounds have the same relations if all clients take part."""
        return self.fraction == 1

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject steps that diverge on the task's l2 term, and server=unknown."""
        if self.server == "unknown":
            raise LeakauditError(
                "fedsgd: server=unknown only describes recordings of other programs; "
                "use server=sgd to run"
            )
        stable("fedsgd", task, lr=self.lr)
        if self.buffers:
            running_statistics.check("fedsgd", task, self.bn_momentum, self.clip)

    def messages(self, graph: Graph, rounds: int, wires: Iterable[tuple[int, int]]) -> int:
        """Count the messages in each direction of a channel, to each client of a round."""
        return (1 + self.buffers) * most_of(self.fraction, graph.nodes - 1, rounds, wires)

    def schedule(self, graph: Graph, rounds: int, generator: Generator) -> Mapping[str, Tensor]:
        """Draw the clients of every round, ``active`` (rounds, m), if not all take part."""
        return draw_clients(self.fraction, graph.nodes - 1, rounds, generator)

    def began(self, task: Task) -> Mapping[str, Tensor]:
        """Return the running statistics of a new model, if they are sent."""
        return {running_statistics.START: running_statistics.start(task)} if self.buffers else {}

    def train(self, sim: Simulation) -> None:
        """Train; the generator draws the noise."""
        nodes = sim.problem.nodes
        w = sim.begin(sim.w0)
        memory = OptimiserState()
        running = RunningStatistics(sim, self.bn_momentum) if self.buffers else None
        active = clients(self.fraction, nodes, len(sim.rounds), sim.recorder.public)
        g = torch.empty_like(sim.common)[: len(listed(active[0], nodes))]
        for t, some in zip(sim.rounds, active, strict=True):
            problem = sim.problem if some is None else sim.problem.of(some)
            models = w.expand(problem.nodes, -1)
            if self.clip:
                g = clipping.gradients(problem.task, models, problem.x, problem.y, self.clip)
                sim.recorder.state("g", t, of_all(g, some, nodes))
            else:
                problem.task.gradients(models, problem.x, problem.y, out=g)
            sent = g
            if self.sigma:
                noise = normal(g, self.sigma, sim.generator)
                if self.noisy == "first":
                    first = int(0 in listed(some, nodes))
                    noise[first:] = 0
                sim.recorder.state("e", t, of_all(noise, some, nodes))
                sent = g + noise
            sim.down(t, "w", w, some)
            sim.up(t, "g", sent, some)
            if running is not None:
                running.step(t, models, problem.x, some)
                running.exchange(t, some)
            w = self._optimiser.step(memory, self.lr, w, sent.mean(0))
            sim.end(t, w)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the server's step; client i sends its gradient."""
        p = Relations(graph)
        server = graph.nodes - 1
        memory: DeclaredMemory = {}
        w = p.public("w0")
        running = p.public(running_statistics.START) if self.buffers else None
        active = clients(self.fraction, server, rounds, public)
        for t in p.rounds(rounds):
            some = listed(active[t - 1], server)
            down = p.send(server, some, w, "w")
            sent = []
            for i in some:
                g = p.grad(i, at=down)
                if self.sigma and (self.noisy == "all" or i == 0):
                    g = g + p.noise("e", self.sigma, i)
                sent.append(p.send(i, server, g, "g"))
            if running is not None:
                running = running_statistics.declare(p, running, server, some, self.bn_momentum)
            w = p.state("w", server, eq=self._moved(p, memory, down, sent, server))
        return p

    def _moved(
        self,
        p: Relations,
        memory: DeclaredMemory,
        w: Expression,
        sent: Sequence[Expression],
        server: int,
    ) -> Expression | None:
        """Return the server's next model; None if its step is not known."""
        if self.server == "unknown":
            return None
        mean = sum(sent[1:], start=sent[0]) / len(sent)
        return self._optimiser.declare(p, memory, server, w, mean, decimal(self.lr))

    @property
    def _optimiser(self) -> Optimiser:
        kind: Kind = "sgd" if self.server == "unknown" else self.server
        return Optimiser(kind, self.momentum, self.nesterov, self.decay)
