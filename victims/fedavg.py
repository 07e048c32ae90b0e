"""FedAvg: clients train the server's model for several steps; the server averages the results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Generator, Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols import running_statistics
from leakaudit.protocols.local import LocalSteps, Steps, above, least, stable
from leakaudit.protocols.optimiser import Optimiser
from leakaudit.protocols.running_statistics import RunningStatistics
from leakaudit.protocols.schedules import clients, draw_clients, listed, most_of, within_one
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Expression, Relations, Turns

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# McMahan et al. 2017, Algorithm 1. In round t the server sends w; each client runs E epochs of w_i
# <- (1 - lr decay) w_i - lr g_i(w_i; mini-batch) over one random split into mini-batches and sends
# w_i; then w <- mean_i w_i. All clients hold the same number of records, so the paper's weighted
# mean is the plain mean. With C < 1, m = max(C N, 1) random clients take part in a round, and the
# mean is over these; who they are counts as public.


@victim("fedavg")
@dataclass(frozen=True)
class FedAvg(SimulatedVictim):
    """Clients send their local models; the server sends the mean."""

    paper: ClassVar[str] = "McMahan et al. 2017, Algorithm 1 (FedAvg)"
    sends: ClassVar[Mapping[str, str]] = {
        "w": "model of the server",
        "up": "model of a client after its local steps",
        **running_statistics.SENDS,
    }
    leaks_what: ClassVar[str] = (
        "every gradient, (w - w_i) / lr; of several local steps, their weighted sum"
    )
    centralised: ClassVar[bool] = True

    lr: float = param(0.1, "local step size", "eta")
    epochs: int = param(1, "passes over a client's records per round", "E")
    batch: int = param(0, "records per step; 0 uses all", "B")
    steps: int = param(0, "gradient steps per round; 0: those of the epochs")
    decay: float = param(0.0, "weight decay of the local steps", "lambda")
    optimiser: Literal["sgd", "adam", "adamw", "adagrad", "rmsprop"] = param(
        "sgd", "optimiser of the local steps, as in torch.optim"
    )
    momentum: float = param(0.0, "momentum of optimiser=sgd")
    nesterov: bool = param(False, "use Nesterov momentum")
    keep: bool = param(False, "clients keep momentum and Adam's averages from round to round")
    clip: float = param(0.0, "norm to which each record's gradient is clipped; 0: none", "C")
    sigma: float = param(0.0, "standard deviation of the noise added to each gradient", "sigma")
    server: Literal["mean", "unknown"] = param(
        "mean", "how the server combines models; unknown for recordings of other programs"
    )
    fraction: float = param(1.0, "share of the clients that take part in a round, random", "C")
    buffers: bool = param(False, "also send the running statistics of batch normalisation")
    bn_momentum: float = param(0.1, "momentum of these statistics, as in the model's layers", "m")
    samples: int = param(0, "records per client; set automatically when recording", "n_k")

    def __post_init__(self) -> None:
        above("fedavg", lr=self.lr, epochs=self.epochs)
        least(
            "fedavg",
            batch=self.batch,
            steps=self.steps,
            decay=self.decay,
            clip=self.clip,
            sigma=self.sigma,
            samples=self.samples,
        )
        _ = self._optimiser
        within_one("fedavg", fraction=self.fraction, bn_momentum=self.bn_momentum)
        if self.fraction < 1 and self.keep:
            raise LeakauditError(
                "fedavg: keep=true needs clients that take part in every round; set fraction=1"
            )
        if self.lr * self.decay >= 2:
            raise LeakauditError(
                "fedavg: expected lr decay < 2 (from 2 on, the weight decay diverges), "
                f"got {self.lr * self.decay:g}"
            )

    def training(self, samples: int) -> Steps:
        """Return the local steps of a round.

        Args:
            samples: Records per client; 0 if unknown.
        """
        if self.steps:
            return self._steps(self.steps)
        if not self.batch:
            return self._steps(self.epochs)
        if not samples:
            raise LeakauditError(
                f"fedavg: with batch={self.batch} the number of steps per round depends on the "
                "number of records per client; set samples=… or steps=…"
            )
        count = math.ceil(Fraction(samples, min(self.batch, samples)))
        return self._steps(self.epochs * count)

    @property
    def _optimiser(self) -> Optimiser:
        return Optimiser(self.optimiser, self.momentum, self.nesterov, self.decay)

    def _steps(self, count: int) -> Steps:
        return Steps(
            self.lr,
            count,
            self.batch,
            self.clip,
            optimiser=self._optimiser,
            keep=self.keep,
            sigma=self.sigma,
        )

    def turns(self, rounds: int) -> Turns | None:
        """Return the turns: every epoch uses all records, in a new order. Needs `samples`.

        None if clients take part in different rounds.
        """
        if not self.samples or self.fraction < 1:
            return None
        return self.training(self.samples).turns(rounds, self.samples)

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject step sizes that diverge on the task's l2 term, and server=unknown."""
        if self.server != "mean":
            raise LeakauditError(
                "fedavg: server=unknown only describes recordings of other programs; "
                "use server=mean to run"
            )
        stable("fedavg", task, lr=self.lr)
        if self.buffers:
            running_statistics.check("fedavg", task, self.bn_momentum, self.clip)

    @property
    def stationary(self) -> bool:
        """All rounds have the same relations if all clients take part."""
        return self.fraction == 1

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
        """Train; the generator draws the order of the mini-batches."""
        w = sim.begin(sim.w0)
        running = RunningStatistics(sim, self.bn_momentum) if self.buffers else None
        local = LocalSteps(self.training(sim.problem.samples), sim, running)
        active = clients(self.fraction, sim.problem.nodes, len(sim.rounds), sim.recorder.public)
        for t, some in zip(sim.rounds, active, strict=True):
            count = sim.problem.nodes if some is None else len(some)
            sent = local(t, w.expand(count, -1), some=some)
            sim.down(t, "w", w, some)
            sim.up(t, "up", sent, some)
            if running is not None:
                running.exchange(t, some)
            w = sent.mean(0)
            sim.end(t, w)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the clients' steps from the server's model, and the mean of the results."""
        p = Relations(graph)
        server = graph.nodes - 1
        steps = self.training(self.samples)
        memory: dict[int, Expression] = {}
        w = p.public("w0")
        running = p.public(running_statistics.START) if self.buffers else None
        active = clients(self.fraction, server, rounds, public)
        for t in p.rounds(rounds):
            some = listed(active[t - 1], server)
            down = p.send(server, some, w, "w")
            up = []
            for i in some:
                model = steps.declare(p, i, down, memory=memory)
                up.append(p.send(i, server, model, "up"))
            if running is not None:
                running = running_statistics.declare(
                    p, running, server, some, self.bn_momentum, steps.count
                )
            if self.server == "mean":
                w = p.state("w", server, eq=sum(up) * Fraction(1, len(up)))
            else:
                w = p.state("w", server)
        return p
