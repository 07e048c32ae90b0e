"""Averaging with neighbours by Metropolis weights, and the round trip of protocols that step alone and then only average."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from leakaudit.progress import step
from leakaudit.protocols.blocks import blocks
from leakaudit.protocols.broadcast import Broadcast
from leakaudit.protocols.local import LocalSteps, Steps, common, everybody, normal
from leakaudit.protocols.mixing import metropolis
from leakaudit.protocols.training_curves import Curves
from leakaudit.relations import Expression, Relations, decimal
from leakaudit.trace import Graph

if TYPE_CHECKING:
    from leakaudit.tasks.task import Problem
    from leakaudit.traces.recorder import Recorder


class Mixing:
    """The averaging matrix W of a graph: exact in declarations, as sums over neighbours in runs."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.weights = graph, metropolis(graph)
        self._around = [(i, *graph.neighbours[i]) for i in range(graph.nodes)]
        self._cache: tuple[Tensor, Tensor, Tensor] | None = None

    def declared(self, i: int, vectors: Mapping[int, Expression]) -> Expression:
        """Return sum_j W_ij v_j."""
        return sum(
            (self.weights[i, j] * vectors[j] for j in self._around[i][1:]),
            start=self.weights[i, i] * vectors[i],
        )

    def own(self, like: Tensor) -> Tensor:
        """Return W_ii, (N, 1)."""
        return torch.tensor(
            [[float(self.weights[i, i])] for i in range(self.graph.nodes)],
            dtype=like.dtype,
            device=like.device,
        )

    def __call__(self, v: Tensor) -> Tensor:
        """Return W v for v (N, d); the cost is that of the graph's edges, not of N^2."""
        if self._cache is None:
            flat = [
                (j, float(self.weights[i, j]))
                for i, around in enumerate(self._around)
                for j in around
            ]
            starts = torch.tensor([0, *map(len, self._around[:-1])]).cumsum(0)
            nodes, weights = (
                torch.tensor([j for j, _ in flat]),
                torch.tensor([w for _, w in flat], dtype=torch.float64),
            )
            self._cache = nodes.to(v.device), starts.to(v.device), weights.to(v)
        nodes, starts, weights = self._cache
        return F.embedding_bag(
            nodes, v.contiguous(), starts, mode="sum", per_sample_weights=weights
        )


def average(
    problem: Problem,
    graph: Graph,
    rounds: int,
    recorder: Recorder,
    generator: Generator,
    wires: Iterable[tuple[int, int]],
    steps: Steps,
    every: int,
    std: float,
    speed: float = 1.0,
) -> None:
    """Train: every `every` rounds local steps and noise on their result, in every round an exchange of models, kind ``w``.

    With y^0 the model after the steps and the noise: y^{s+1} = speed W y^s + (1 - speed) y^{s-1}, y^{-1} = y^0.
    """
    w, mix, channel, curves = (
        common(recorder, problem),
        Mixing(graph),
        Broadcast(recorder, wires),
        Curves(recorder, problem),
    )
    local, spare = LocalSteps(steps, problem, recorder, generator), torch.empty_like(w)
    before = spare
    recorder.state("w", 0, w)
    for t in range(1, rounds + 1):
        if begins(t, every):
            w = local(t, w)
            if std:
                noise = normal(w, std, generator)
                recorder.state("xi", t, noise)
                w.add_(noise)
            before = spare if speed == 1 else spare.copy_(w)
        w = channel.send(t, "w", w)
        for part in blocks(w):
            mixed = mix(w[:, part])
            before[:, part] = (
                mixed if speed == 1 else mixed.mul_(speed).add_(before[:, part], alpha=1 - speed)
            )
        w, before = before, w
        recorder.state("w", t, w)
        curves.observe(t, w)
        recorder.end_round(t)
        step("recording", t, rounds)


def begins(t: int, every: int) -> bool:
    """Whether round t begins with local steps; every = 0: the first alone."""
    return t == 1 if every == 0 else (t - 1) % every == 0


def declare_average(
    graph: Graph, rounds: int, steps: Steps, every: int, std: float, speed: float = 1.0
) -> Relations:
    """Declare what `average` runs; a model is a sum of messages."""
    p, mix, pace = Relations(graph), Mixing(graph), decimal(speed)
    w = dict(everybody(p, graph.nodes))
    before = dict(w)
    for t in p.rounds(rounds):
        sent = {}
        for i, near in enumerate(graph.neighbours):
            if begins(t, every):
                w[i] = steps.declare(p, i, w[i]) + (p.noise("xi", std, i) if std else 0)
            sent[i] = p.send(i, near, w[i], "w")
            if begins(t, every):
                before[i] = sent[i]
        w = {i: pace * mix.declared(i, sent) + (1 - pace) * before[i] for i in sent}
        before = sent
    return p
