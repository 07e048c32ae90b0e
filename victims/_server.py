"""What protocols with a server share: one broadcast a round, and leaks that are whole gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakaudit.adversary import View
from leakaudit.errors import NotDetermined
from leakaudit.leak import GradientLeak

if TYPE_CHECKING:
    from leakaudit.recorder import Recorder


def broadcast(recorder: Recorder, t: int, server: int, clients: list[int], w: Tensor) -> None:
    """Send the model (d,) to all clients that are recorded, stored once."""
    if clients:
        recorder.send(t, server, clients, "w", w)


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
