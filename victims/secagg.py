"""Secure aggregation: peers add masks that cancel in the sum, so that only the sum is seen."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols.local import LocalSteps, Steps, above, least, normal, of_all, stable
from leakaudit.protocols.schedules import (
    clients,
    clients_of,
    draw_clients,
    listed,
    most_sent,
    within_one,
)
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
# With C < 1, m = max(C n, 1) random peers take part in a round, which count as public: only they
# train, agree on masks, and send, to all peers, and the mean is over these m.
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
        "a single gradient to a coalition of all other peers, and with a fraction below 1 to "
        "everybody, if a peer is alone in a round or sums of rounds isolate it"
    )
    separable: ClassVar[bool] = True
    lr: float = param(0.1, "local step size", "eta")
    local_steps: int = param(1, "gradient steps per round")
    batch: int = param(0, "records per gradient step; 0 uses all", "B")
    clip: float = param(0.0, "norm to which each record's gradient is clipped; 0: none", "C")
    sigma: float = param(0.0, "standard deviation of the noise added to each gradient", "sigma")
    mask: float = param(1.0, "standard deviation of the masks")
    fraction: float = param(1.0, "share of the peers that take part in a round, random", "C")

    def __post_init__(self) -> None:
        above("secagg", lr=self.lr, local_steps=self.local_steps, mask=self.mask)
        least("secagg", batch=self.batch, clip=self.clip, sigma=self.sigma)
        within_one("secagg", fraction=self.fraction)

    @property
    def stationary(self) -> bool:
        """All rounds have the same relations if all peers take part."""
        return self.fraction == 1

    def messages(self, graph: Graph, rounds: int, wires: Iterable[tuple[int, int]]) -> int:
        """Count the models to all peers, and one mask for each pair of a round."""
        if self.stationary:
            return super().messages(graph, rounds, wires)
        recorded = set(wires)
        taking_part = clients_of(self.fraction, graph.nodes)
        pairs = min(len(recorded), taking_part * (taking_part - 1) // 2)
        return rounds * (most_sent(recorded, taking_part) + pairs)

    def schedule(self, graph: Graph, rounds: int, generator: Generator) -> Mapping[str, Tensor]:
        """Draw the peers of every round, ``active`` (rounds, m), if not all take part."""
        return draw_clients(self.fraction, graph.nodes, rounds, generator)

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject a graph that is not complete, and step sizes that diverge on the l2 term."""
        _complete(graph)
        stable("secagg", task, lr=self.lr)

    def train(self, sim: Simulation) -> None:
        """Train; the generator draws mini-batches, noise and masks."""
        n = sim.problem.nodes
        recorder = sim.recorder
        everybody = broadcast(recorder, sim.wires)
        w = sim.begin(sim.w0)
        local = LocalSteps(self._training, sim)
        active = clients(self.fraction, n, len(sim.rounds), recorder.public)
        for t, some in zip(sim.rounds, active, strict=True):
            peers = torch.arange(n) if some is None else some
            x = local(t, w.expand(len(peers), -1), some=some)
            recorder.state("x", t, of_all(x, some, n))
            # Of each pair of peers first[k] < second[k], the second draws the mask and sends it.
            first, second = peers[torch.triu_indices(len(peers), len(peers), 1)]
            masks = normal(x.new_empty(len(first), x.shape[1]), self.mask, sim.generator)
            masks = recorder.exchange(t, "mask", masks, _pairs(everybody, peers), secure=True)
            for i in peers[:-1].tolist():
                drawn = masks.new_zeros(n, x.shape[1])
                drawn[second[first == i]] = masks[first == i]
                recorder.state(f"m.{i}", t, drawn)
            y = x.new_zeros(n, x.shape[1])
            y[peers] = x
            y.index_add_(0, first.to(x.device), masks)
            y.index_add_(0, second.to(x.device), masks, alpha=-1)
            to_all = everybody.some(torch.isin(everybody.src, peers))
            y = recorder.exchange(t, "y", y, to_all)
            w = y[peers].mean(0)
            sim.end(t, w)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the masked updates, of which everybody computes the mean."""
        p = Relations(graph)
        everybody = range(graph.nodes)
        w = p.public("w0")
        active = clients(self.fraction, graph.nodes, rounds, public)
        for t in p.rounds(rounds):
            peers = listed(active[t - 1], graph.nodes)
            masked = {}
            for i in peers:
                masked[i] = p.state("x", i, eq=self._training.declare(p, i, w))
            for i, j in itertools.combinations(peers, 2):
                mask = p.noise("m", self.mask, j, i)
                p.send(j, i, mask, "mask", secure=True)
                masked[i] = masked[i] + mask
                masked[j] = masked[j] - mask
            y: list[Expression] = []
            for i in peers:
                y.append(p.send(i, [j for j in everybody if j != i], masked[i], "y"))
            w = p.state("w", eq=sum(y) * Fraction(1, len(y)))
        return p

    @property
    def _training(self) -> Steps:
        return Steps(self.lr, self.local_steps, self.batch, self.clip, sigma=self.sigma)


def _pairs(everybody: Arcs, peers: Tensor) -> Arcs:
    """Return one message for each pair of peers (m,), ascending, from the second to the first.

    Its payload is that of the pair, which are counted as in ``torch.triu_indices``.
    """
    m = len(peers)
    both = torch.isin(everybody.src, peers) & torch.isin(everybody.dst, peers)
    back = everybody.some(both & (everybody.src > everybody.dst))
    i, j = torch.searchsorted(peers, back.dst), torch.searchsorted(peers, back.src)
    row = i * (2 * m - i - 1) // 2 + j - i - 1
    return replace(back, row=row)


def _complete(graph: Graph) -> None:
    if len(graph.edges) != graph.nodes * (graph.nodes - 1) // 2 or graph.nodes < 3:
        raise LeakauditError(
            "secagg: expected a complete graph of at least 3 peers (every peer sends to every "
            "other); use --graph complete"
        )
