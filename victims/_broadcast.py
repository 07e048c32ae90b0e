"""A node tells all neighbours the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from leakaudit.recorder import Recorder


class Broadcast:
    """Who hears whom on the wires (undirected edges) that are recorded; a payload is stored once a sender."""

    def __init__(self, recorder: Recorder, wires: Iterable[tuple[int, int]]) -> None:
        self.recorder = recorder
        arcs = sorted({arc for i, j in wires for arc in ((i, j), (j, i))})
        self.src, self.dst = torch.tensor(arcs, dtype=torch.long).reshape(-1, 2).T
        self.senders, self.row = self.src.unique(return_inverse=True)

    def send(self, round: int, kind: str, values: Tensor, secure: bool = False) -> None:
        """Record row i of values (N, d) as what node i sends to its neighbours."""
        if len(self.src):
            rows = self.recorder.send_many(round, self.src, self.dst, kind, secure=secure, row=self.row)
            rows.copy_(values[self.senders.to(values.device), slice(*self.recorder.columns)])
