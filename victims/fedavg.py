"""FedAvg: clients train the server's model for several steps; the server averages the results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols.local import LocalSteps, Steps, above, least, stable
from leakaudit.protocols.optimiser import Optimiser
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Expression, Relations, Turns

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# McMahan et al. 2017, Algorithm 1. In round t the server sends w; each client runs E epochs of w_i
# <- (1 - lr decay) w_i - lr g_i(w_i; mini-batch) over one random split into mini-batches and sends
# w_i; then w <- mean_i w_i. All clients hold the same number of records, so the paper's weighted
# mean is the plain mean.


@victim("fedavg")
@dataclass(frozen=True)
class FedAvg(SimulatedVictim):
    """Clients send their local models; the server sends the mean."""

    paper: ClassVar[str] = "McMahan et al. 2017, Algorithm 1 (FedAvg)"
    sends: ClassVar[Mapping[str, str]] = {
        "w": "model of the server",
        "up": "model of a client after its local steps",
    }
    leaks_what: ClassVar[str] = (
        "every gradient, (w - w_i) / lr; of several local steps, their weighted sum"
    )
    centralised: ClassVar[bool] = True
    stationary = True  # all rounds have the same relations

    lr: float = param(0.1, "local step size", "eta")
    epochs: int = param(1, "passes over a client's records per round", "E")
    batch: int = param(0, "records per step; 0 uses all", "B")
    steps: int = param(0, "gradient steps per round; 0: those of the epochs")
    decay: float = param(0.0, "weight decay of the local steps", "lambda")
    optimiser: Literal["sgd", "adam", "adamw", "adagrad"] = param(
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
        """Return the turns: every epoch uses all records, in a new order. Needs `samples`."""
        if not self.samples:
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

    def train(self, sim: Simulation) -> None:
        """Train; the generator draws the order of the mini-batches."""
        w = sim.begin(sim.w0)
        local = LocalSteps(self.training(sim.problem.samples), sim)
        for t in sim.rounds:
            sent = local(t, w.expand(sim.problem.nodes, -1))
            sim.down(t, "w", w)
            sim.up(t, "up", sent)
            w = sent.mean(0)
            sim.end(t, w)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the clients' steps from the server's model, and the mean of the results."""
        p = Relations(graph)
        server = graph.nodes - 1
        steps = self.training(self.samples)
        memory: dict[int, Expression] = {}
        w = p.public("w0")
        for _ in p.rounds(rounds):
            down = p.send(server, range(server), w, "w")
            up = []
            for i in range(server):
                model = steps.declare(p, i, down, memory=memory)
                up.append(p.send(i, server, model, "up"))
            if self.server == "mean":
                w = p.state("w", server, eq=sum(up) * Fraction(1, server))
            else:
                w = p.state("w", server)
        return p
