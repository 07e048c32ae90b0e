"""What protocols with a server share: the round trip."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.progress import step
from leakaudit.protocols.training_curves import Curves
from leakaudit.trace import Graph

if TYPE_CHECKING:
    from leakaudit.tasks.task import Problem
    from leakaudit.traces.recorder import Recorder


def train(
    problem: Problem,
    graph: Graph,
    rounds: int,
    recorder: Recorder,
    wires: Iterable[tuple[int, int]],
    kind: str,
    up: Callable[[Tensor, Tensor], Tensor],
    merge: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Send the model (d,) down as kind ``w``, once; up goes what `up` makes of it and the gradients (N, d); `merge` makes the next."""
    clients, server = [i for i, _ in wires], graph.nodes - 1
    w, curves = recorder.public["w0"].to(problem.x.device), Curves(recorder, problem)
    g = w.new_empty(server, len(w))
    recorder.state("w", 0, w.expand(server, -1))
    for t in range(1, rounds + 1):
        sent = up(w, problem.task.gradients(w.expand(server, -1), problem.x, problem.y, out=g))
        if clients:
            recorder.send(t, server, clients, "w", w)
            rows = recorder.send_many(
                t, torch.tensor(clients), torch.full((len(clients),), server), kind
            )
            rows.copy_(sent[clients][:, slice(*recorder.columns)])
        w = merge(w, sent)
        recorder.state("w", t, w.expand(server, -1))
        curves.observe(t, w[None])
        recorder.end_round(t)
        step("recording", t, rounds)
