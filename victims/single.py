"""Training without messages: one model on the records of all nodes, or every node by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols.batches import batches, enough
from leakaudit.protocols.local import LocalSteps, Steps, stable
from leakaudit.protocols.optimiser import DeclaredMemory, Optimiser
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Relations, decimal

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# DP-Norm (2023), section VI, method M5: w <- w - mu g(w), where g is the gradient over the records
# of all nodes, with K steps per round. It provides the reference curve for decentralised methods;
# record it with the same seed, data and model. With local=true every node trains its own model on
# its own records, which is the method Local-Only of SecureD-FL (2021), section VI-A.


@victim("single")
@dataclass(frozen=True)
class Single(SimulatedVictim):
    """Gradient descent on the union of all nodes' records, or on each node's by itself."""

    paper: ClassVar[str] = "DP-Norm 2023, section VI (M5); SecureD-FL 2021, section VI (Local-Only)"
    sends: ClassVar[Mapping[str, str]] = {}
    leaks_what: ClassVar[str] = "nothing: no message is sent"
    centralised: ClassVar[bool] = False
    stationary = True  # all rounds have the same relations

    mu: float = param(0.1, "step size", "mu")
    inner: int = param(1, "steps per round", "K")
    batch: int = param(0, "records of each node in a mini-batch; 0 uses all", "B")
    local: bool = param(False, "every node trains its own model on its own records")
    optimiser: Literal["sgd", "adam", "adamw", "adagrad", "rmsprop"] = param(
        "sgd", "optimiser of local=true, as in torch.optim"
    )
    momentum: float = param(0.0, "momentum of optimiser=sgd with local=true")

    def __post_init__(self) -> None:
        if not (self.mu > 0 and self.inner >= 1 and self.batch >= 0):
            raise LeakauditError(
                "single: expected mu > 0, inner >= 1 and batch >= 0, "
                f"got {self.mu}, {self.inner} and {self.batch}"
            )
        if not (self.local or Optimiser(self.optimiser, self.momentum).is_plain):
            raise LeakauditError("single: optimiser and momentum are those of local=true; set it")

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject a mini-batch larger than a node's data, and steps that diverge on the l2 term."""
        enough(self.batch, samples)
        stable("single", task, mu=self.mu)

    def train(self, sim: Simulation) -> None:
        """Train; nodes hold equally many records, so a pooled mini-batch weights them equally."""
        if self.local:
            self._train_alone(sim)
            return
        w = sim.begin(sim.w0)
        task = sim.problem.task
        g = torch.empty_like(sim.common)
        for t in sim.rounds:
            for k, part in enumerate(batches(sim.problem, self.batch, self.inner, sim.generator)):
                task.gradients(w.expand(sim.graph.nodes, -1), part.x, part.y, out=g)
                if self.batch:
                    sim.recorder.state("g" if self.inner == 1 else f"g.{k}", t, g)
                w = w - self.mu * g.mean(0)
            sim.end(t, w)

    def _train_alone(self, sim: Simulation) -> None:
        """Train every node's own model."""
        alone = LocalSteps(self._steps, sim)
        w = sim.begin(sim.common)
        for t in sim.rounds:
            w = alone(t, w)
            sim.end(t, w)

    @property
    def _steps(self) -> Steps:
        optimiser = Optimiser(self.optimiser, self.momentum)
        return Steps(self.mu, self.inner, self.batch, optimiser=optimiser)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the steps along the mean of the nodes' gradients, or along each node's own.

        A common model belongs to no particular node, because it is never sent.
        """
        p = Relations(graph)
        if self.local:
            return self._declared_alone(p, range(graph.nodes), rounds)
        mu = decimal(self.mu)
        w = p.public("w0")
        for _ in p.rounds(rounds):
            for k in range(self.inner):
                index = None if self.inner == 1 else k
                total = sum(p.grad(i, at=w, index=index) for i in range(graph.nodes))
                mean = total * Fraction(1, graph.nodes)
                w = p.state("w", None, None if k == self.inner - 1 else k, eq=w - mu * mean)
        return p

    def _declared_alone(self, p: Relations, nodes: range, rounds: int) -> Relations:
        """Declare the steps of every node."""
        memory: DeclaredMemory = {}
        w = dict.fromkeys(nodes, p.public("w0"))
        for _ in p.rounds(rounds):
            for i in w:
                w[i] = p.state("w", i, eq=self._steps.declare(p, i, w[i], memory=memory))
        return p
