"""Averaging with neighbours, for protocols that alternate local steps with pure averaging.

Every few rounds, nodes take local gradient steps and add noise to the result; in every round they
exchange models. With y^0 the model after the steps and the noise, y^{-1} = y^0 and the averaging
matrix W, the exchanges are

    y^{s+1} = speed W y^s + (1 - speed) y^{s-1}
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from leakaudit.core.trace import Graph
from leakaudit.protocols.blocks import blocks
from leakaudit.protocols.local import LocalSteps, Steps, normal
from leakaudit.protocols.mixing import metropolis
from leakaudit.protocols.simulation import Simulation
from leakaudit.theory.relations import Expression, Relations, decimal


class Mixing:
    """The averaging matrix W of a graph: exact in declarations, sums over neighbours in runs.

    Attributes:
        weights: W_ij by (i, j), exact.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.weights = metropolis(graph)
        self._around = [(i, *graph.neighbours[i]) for i in range(graph.nodes)]
        self._cache: tuple[Tensor, Tensor, Tensor] | None = None

    def declared(self, i: int, vectors: Mapping[int, Expression]) -> Expression:
        """Return sum_j W_ij v_j for the vectors v of node i and its neighbours."""
        others = (self.weights[i, j] * vectors[j] for j in self._around[i][1:])
        return sum(others, start=self.weights[i, i] * vectors[i])

    def own(self, like: Tensor) -> Tensor:
        """Return W_ii, (N, 1), in the dtype and on the device of `like`."""
        diagonal = [[float(self.weights[i, i])] for i in range(self.graph.nodes)]
        return torch.tensor(diagonal, dtype=like.dtype, device=like.device)

    def __call__(self, v: Tensor) -> Tensor:
        """Return W v for v (N, d), at a cost per edge of the graph rather than N^2."""
        if self._cache is None:
            self._cache = self._sparse(v)
        nodes, starts, weights = self._cache
        return F.embedding_bag(
            nodes, v.contiguous(), starts, mode="sum", per_sample_weights=weights
        )

    def _sparse(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return W in compressed rows: columns of the nonzero entries, row starts, and entries."""
        columns: list[int] = []
        entries: list[float] = []
        for i, around in enumerate(self._around):
            columns += around
            entries += [float(self.weights[i, j]) for j in around]
        nodes = torch.tensor(columns)
        starts = torch.tensor([0, *map(len, self._around[:-1])]).cumsum(0)
        weights = torch.tensor(entries, dtype=torch.float64)
        return nodes.to(like.device), starts.to(like.device), weights.to(like)


def average(sim: Simulation, steps: Steps, every: int, std: float, speed: float = 1.0) -> None:
    """Run local steps, then exchange models in messages of kind ``w``.

    Args:
        every: Rounds between two local trainings; 0 trains only before the first round.
    """
    mix = Mixing(sim.graph)
    local = LocalSteps(steps, sim)
    w = sim.begin(sim.common)
    spare = torch.empty_like(w)
    before = spare
    for t in sim.rounds:
        if begins(t, every):
            w = local(t, w)
            if std:
                noise = normal(w, std, sim.generator)
                sim.recorder.state("xi", t, noise)
                w.add_(noise)
            # Without acceleration `before` only provides memory for the result.
            before = spare if speed == 1 else spare.copy_(w)
        w = sim.send(t, "w", w)
        for part in blocks(w):
            mixed = mix(w[:, part])
            if speed != 1:
                mixed.mul_(speed).add_(before[:, part], alpha=1 - speed)
            before[:, part] = mixed
        w, before = before, w
        sim.end(t, w)


def begins(t: int, every: int) -> bool:
    """Return whether a round begins with local steps.

    Args:
        every: Rounds between two local trainings; 0 trains only before the first round.
    """
    if every == 0:
        return t == 1
    return (t - 1) % every == 0


def declare_average(
    graph: Graph, rounds: int, steps: Steps, every: int, std: float, speed: float = 1.0
) -> Relations:
    """Declare the run of `average`; a model is a sum of messages.

    Args:
        every: Rounds between two local trainings; 0 trains only before the first round.
    """
    p = Relations(graph)
    mix = Mixing(graph)
    pace = decimal(speed)
    w = dict.fromkeys(range(graph.nodes), p.public("w0"))
    before = dict(w)
    for t in p.rounds(rounds):
        sent = {}
        for i, near in enumerate(graph.neighbours):
            if begins(t, every):
                w[i] = steps.declare(p, i, w[i])
                if std:
                    w[i] = w[i] + p.noise("xi", std, i)
            sent[i] = p.send(i, near, w[i], "w")
            if begins(t, every):
                before[i] = sent[i]
        w = {i: pace * mix.declared(i, sent) + (1 - pace) * before[i] for i in sent}
        before = sent
    return p
