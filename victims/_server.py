"""What protocols with a server share: a round trip, and leaks that are whole gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.adversary import View
from leakaudit.errors import NotDetermined
from leakaudit.leak import GradientLeak
from leakaudit.progress import step
from leakaudit.trace import Graph

if TYPE_CHECKING:
    from leakaudit.recorder import Recorder
    from leakaudit.task import Problem


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
    w = recorder.public["w0"].to(problem.x.device)
    for t in range(1, rounds + 1):
        recorder.state("w", t - 1, w.expand(server, -1))
        sent = up(w, problem.task.gradients(w.repeat(server, 1), problem.x, problem.y))
        if clients:
            recorder.send(t, server, clients, "w", w)
            rows = recorder.send_many(t, torch.tensor(clients), torch.full((len(clients),), server), kind)
            rows.copy_(sent[clients][:, slice(*recorder.columns)])
        w = merge(w, sent)
        recorder.end_round(t)
        step("recording", t, rounds)


def round_trips(view: View, node: int, rounds: int, up: str, down: str | None) -> list[int]:
    """Return the first `rounds` rounds in which the node's message up (and the model down) is heard; raises NotDetermined."""
    server = view.graph.nodes - 1
    if node == server:
        raise NotDetermined("it is the server and holds no data")
    taken = [t for t in view.rounds if view.has(t, node, server, up) and (down is None or view.has(t, server, node, down))][:rounds]
    if not taken:
        raise NotDetermined(f"its wire to the server {server} is not heard")
    return taken


def plain_leak(
    view: View, node: int, taken: list[int], value: Tensor, models: Tensor | None, amplification: float, formula: str
) -> GradientLeak:
    """One row a gradient, value (T, c); amplification: size of one rounding unit of the wire in the value."""
    unit = 0.3 * torch.finfo(view.dtype).eps * amplification
    return GradientLeak(
        node=node,
        rounds=torch.tensor(taken),
        combination=torch.eye(len(taken), dtype=torch.float64),
        value=value,
        std=torch.full((len(taken),), unit, dtype=torch.float64),
        columns=view.columns,
        theta=models if view.columns == (0, view.layout.size) else None,
        batch=view.constant("samples") if view.knows("samples") else None,
        adversary=str(view.adversary),
        formula=formula,
    )
