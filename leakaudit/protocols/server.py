"""Shared parts of protocols with a server: the exchange of the model and the clients' messages."""

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
    """In every round, send the model to the clients and their messages to the server.

    The model (d,) is sent as kind ``w``, and its payload is stored once.

    Args:
        problem: The task and every client's data.
        graph: A star with the server as its last node.
        rounds: Length of the run.
        recorder: Receives the messages and states.
        wires: Undirected edges that are recorded.
        kind: Kind of the clients' messages.
        up: Computes the clients' messages (N, d) from the model (d,) and their gradients (N, d).
        merge: Computes the next model (d,) from the model and the clients' messages.
    """
    clients = [i for i, _ in wires]
    server = graph.nodes - 1
    w = recorder.public["w0"].to(problem.x.device)
    curves = Curves(recorder, problem)
    g = w.new_empty(server, len(w))
    recorder.state("w", 0, w.expand(server, -1))
    for t in range(1, rounds + 1):
        gradients = problem.task.gradients(w.expand(server, -1), problem.x, problem.y, out=g)
        sent = up(w, gradients)
        exchange(recorder, t, clients, server, w, kind, sent)
        w = merge(w, sent)
        recorder.state("w", t, w.expand(server, -1))
        curves.observe(t, w[None])
        recorder.end_round(t)
        step("recording", t, rounds)


def exchange(
    recorder: Recorder, t: int, clients: list[int], server: int, w: Tensor, kind: str, sent: Tensor
) -> None:
    """Record a round: the server sends the model as kind ``w``, and the clients send their rows.

    Args:
        recorder: Receives the messages.
        t: The round.
        clients: Clients with recorded channels.
        server: The server's node.
        w: The model, (d,).
        kind: Kind of the clients' messages.
        sent: The messages of all clients, (N, d).
    """
    if not clients:
        return
    recorder.send(t, server, clients, "w", w)
    rows = recorder.send_many(t, torch.tensor(clients), torch.full((len(clients),), server), kind)
    rows.copy_(sent[clients][:, slice(*recorder.columns)])
