"""The single-node reference: one model trained on the records of all nodes, without messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols.batches import batches, enough
from leakaudit.protocols.local import stable
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Relations, decimal

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# DP-Norm (2023), section VI, method M5: w <- w - mu g(w), where g is the gradient over the records
# of all nodes, with K steps per round. It provides the reference curve for decentralised methods;
# record it with the same seed, data and model.


@victim("single")
@dataclass(frozen=True)
class Single(SimulatedVictim):
    """Gradient descent on the union of all nodes' records."""

    paper: ClassVar[str] = "DP-Norm 2023, section VI (M5)"
    sends: ClassVar[Mapping[str, str]] = {}
    leaks_what: ClassVar[str] = "nothing: no message is sent"
    centralised: ClassVar[bool] = False
    stationary = True  # all rounds have the same relations

    mu: float = param(0.1, "step size", "mu")
    inner: int = param(1, "steps per round", "K")
    batch: int = param(0, "records of each node in a mini-batch; 0 uses all", "B")

    def __post_init__(self) -> None:
        if not (self.mu > 0 and self.inner >= 1 and self.batch >= 0):
            raise LeakauditError(
                "single: expected mu > 0, inner >= 1 and batch >= 0, "
                f"got {self.mu}, {self.inner} and {self.batch}"
            )

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject a mini-batch larger than a node's data, and steps that diverge on the l2 term."""
        enough(self.batch, samples)
        stable("single", task, mu=self.mu)

    def train(self, sim: Simulation) -> None:
        """Train; nodes hold equally many records, so a pooled mini-batch weights them equally."""
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

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the steps along the mean of the nodes' gradients.

        The model belongs to no particular node, because it is never sent.
        """
        p = Relations(graph)
        mu = decimal(self.mu)
        w = p.public("w0")
        for _ in p.rounds(rounds):
            for k in range(self.inner):
                index = None if self.inner == 1 else k
                total = sum(p.grad(i, at=w, index=index) for i in range(graph.nodes))
                mean = total * Fraction(1, graph.nodes)
                w = p.state("w", None, None if k == self.inner - 1 else k, eq=w - mu * mean)
        return p
