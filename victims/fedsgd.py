"""FedSGD: clients send gradients to a server, which updates the model and sends it back.

McMahan et al. 2017, Algorithm 1 with one full-batch step. In round t the server sends w, the
clients send g_i = grad f_i(w), and w <- w - lr mean_i g_i.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Generator, Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.progress import step
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols.local import above, least, normal, stable
from leakaudit.protocols.optimiser import DeclaredMemory, Kind, Optimiser, OptimiserState
from leakaudit.protocols.server import exchange
from leakaudit.protocols.training_curves import TrainingCurves
from leakaudit.protocols.victim import Victim
from leakaudit.tasks import clipping
from leakaudit.theory.relations import Expression, Relations, decimal

if TYPE_CHECKING:
    from leakaudit.tasks.task import Problem, Task
    from leakaudit.traces.recorder import Recorder


@victim("fedsgd")
@dataclass(frozen=True)
class FedSGD(Victim):
    """Clients send gradients; the server sends the model."""

    paper: ClassVar[str] = "McMahan et al. 2017, Algorithm 1 (FedSGD)"
    sends: ClassVar[Mapping[str, str]] = {
        "w": "model of the server",
        "g": "gradient of a client, with its noise",
    }
    leaks_what: ClassVar[str] = "every gradient, as it is sent"
    centralised: ClassVar[bool] = True

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
        """Check the ranges."""
        above("fedsgd", lr=self.lr)
        least("fedsgd", decay=self.decay, clip=self.clip, sigma=self.sigma)
        _ = self._optimiser

    @property
    def stationary(self) -> bool:
        """All rounds have the same relations."""
        return True

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject steps that diverge on the task's l2 term, and server=unknown."""
        if self.server == "unknown":
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
        """Train; the generator draws the noise."""
        clients = [i for i, _ in wires]
        server = graph.nodes - 1
        w = recorder.public["w0"].to(problem.x.device)
        curves = TrainingCurves(recorder, problem)
        memory = OptimiserState()
        g = w.new_empty(server, len(w))
        recorder.state("w", 0, w.expand(server, -1))
        for t in range(1, rounds + 1):
            models = w.expand(server, -1)
            if self.clip:
                g = clipping.gradients(problem.task, models, problem.x, problem.y, self.clip)
                recorder.state("g", t, g)
            else:
                problem.task.gradients(models, problem.x, problem.y, out=g)
            sent = g
            if self.sigma:
                noise = normal(g, self.sigma, generator)
                if self.noisy == "first":
                    noise[1:] = 0
                recorder.state("e", t, noise)
                sent = g + noise
            exchange(recorder, t, clients, server, w, "g", sent)
            w = self._optimiser.step(memory, self.lr, w, sent.mean(0))
            recorder.state("w", t, w.expand(server, -1))
            curves.observe(t, w[None])
            recorder.end_round(t)
            step("recording", t, rounds)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the server's step; client i sends its gradient."""
        p = Relations(graph)
        server = graph.nodes - 1
        memory = DeclaredMemory()
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
