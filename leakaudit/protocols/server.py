"""The exchange of a protocol with a server: its model, and the clients' messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from leakaudit.traces.recorder import Recorder


def exchange(
    recorder: Recorder, t: int, clients: list[int], server: int, w: Tensor, kind: str, sent: Tensor
) -> None:
    """Record a round: the server sends the model as kind ``w``, and the clients send their rows.

    Args:
        w: The model, (d,).
        sent: The messages of all clients, (N, d).
    """
    if not clients:
        return
    recorder.send(t, server, clients, "w", w)
    senders = torch.tensor(clients)
    rows = recorder.send_many(t, senders, torch.full_like(senders, server), kind)
    recorder.kept.cut(sent, rows, senders)
