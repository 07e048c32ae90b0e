"""Secure aggregation: peers add masks that cancel in the sum, so that only the sum is seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols.local import LocalSteps, Steps, above, least, normal, stable
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Expression, Relations
from leakaudit.traces.arcs import Arcs, broadcast

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# Bonawitz et al. 2017, section 4.0.1, here without a server: every peer adds up what all send. In a
# round, every pair i < j of peers agrees on a mask m_ij, and peer i trains x_i from the common
# model:
#
#     y_i = x_i + sum_{j > i} m_ij - sum_{j < i} m_ji     is sent to all other peers
#     w   <- (1/n) sum_i y_i                              in which every mask cancels
#
# The paper derives masks from agreed keys and draws them uniformly modulo a number, so that they
# hide an update perfectly. Here they are real numbers, N(0, mask^2), that peer j of each pair sends
# to the other, encrypted: noise that hides single updates as well as its size allows, and not their
# sum. The rounding of messages grows with it.


@victim("secagg")
@dataclass(frozen=True)
class SecAgg(SimulatedVictim):
    """Averaging of local models under masks that cancel in the sum."""

    paper: ClassVar[str] = "Bonawitz et al. 2017, pairwise masks, without a server"
    sends: ClassVar[Mapping[str, str]] = {
        "mask": "mask of a pair of peers, encrypted",
        "y": "model of a peer after its local steps, with its masks",
    }
    leaks_what: ClassVar[str] = (
        "the sum of all peers' gradients, to everybody; "
        "a single gradient only to a coalition of all other peers"
    )
    separable: ClassVar[bool] = True
    stationary = True  # all rounds have the same relations

    lr: float = param(0.1, "local step size", "eta")
    local_steps: int = param(1, "gradient steps per round")
    batch: int = param(0, "records per gradient step; 0 uses all", "B")
    clip: float = param(0.0, "norm to which each record's gradient is clipped; 0: none", "C")
    sigma: float = param(0.0, "standard deviation of the noise added to each gradient", "sigma")
    mask: float = param(1.0, "standard deviation of the masks")

    def __post_init__(self) -> None:
        above("secagg", lr=self.lr, local_steps=self.local_steps, mask=self.mask)
        least("secagg", batch=self.batch, clip=self.clip, sigma=self.sigma)

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject a graph that is not complete, and step sizes that diverge on the l2 term."""
        _complete(graph)
        stable("secagg", task, lr=self.lr)

    def train(self, sim: Simulation) -> None:
        """Train; the generator draws mini-batches, noise and masks."""
        problem = sim.problem
        recorder = sim.recorder
        # Pair k consists of peers first[k] < second[k], of which the second sends the mask.
        first, second = torch.triu_indices(problem.nodes, problem.nodes, 1, device=problem.x.device)
        everybody = broadcast(recorder, sim.wires)
        pairs = _pairs(everybody, problem.nodes)
        w = sim.begin(sim.w0)
        train = LocalSteps(self._training, sim)
        for t in sim.rounds:
            x = train(t, w.expand(problem.nodes, -1))
            recorder.state("x", t, x)
            y = x.clone()
            masks = normal(x.new_empty(len(first), x.shape[1]), self.mask, sim.generator)
            masks = recorder.exchange(t, "mask", masks, pairs, secure=True)
            for i in range(problem.nodes - 1):
                drawn = torch.zeros_like(y)
                drawn[i + 1 :] = masks[first == i]
                recorder.state(f"m.{i}", t, drawn)
            y.index_add_(0, first, masks).index_add_(0, second, masks, alpha=-1)
            y = recorder.exchange(t, "y", y, everybody)
            w = y.mean(0)
            sim.end(t, w)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the masked updates, of which everybody computes the mean."""
        p = Relations(graph)
        peers = range(graph.nodes)
        w = p.public("w0")
        for _ in p.rounds(rounds):
            masked = {}
            for i in peers:
                masked[i] = p.state("x", i, eq=self._training.declare(p, i, w))
            for i in peers:
                for j in range(i + 1, graph.nodes):
                    mask = p.noise("m", self.mask, j, i)
                    p.send(j, i, mask, "mask", secure=True)
                    masked[i] = masked[i] + mask
                    masked[j] = masked[j] - mask
            y: list[Expression] = []
            for i in peers:
                y.append(p.send(i, [j for j in peers if j != i], masked[i], "y"))
            w = p.state("w", eq=sum(y) * Fraction(1, graph.nodes))
        return p

    @property
    def _training(self) -> Steps:
        return Steps(self.lr, self.local_steps, self.batch, self.clip, sigma=self.sigma)


def _pairs(everybody: Arcs, nodes: int) -> Arcs:
    """Return one message for each pair of nodes, from the second to the first.

    Its payload is that of the pair, which are counted as in ``torch.triu_indices``.
    """
    back = everybody.some(everybody.src > everybody.dst)
    i, j = back.dst, back.src
    row = i * (2 * nodes - i - 1) // 2 + j - i - 1
    return replace(back, row=row)


def _complete(graph: Graph) -> None:
    if len(graph.edges) != graph.nodes * (graph.nodes - 1) // 2 or graph.nodes < 3:
        raise LeakauditError(
            "secagg: expected a complete graph of at least 3 peers (every peer sends to every "
            "other); use --graph complete"
        )
