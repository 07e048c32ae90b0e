"""One exchange of messages, as victims describe it: which node sends which payload to whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from leakaudit.core.trace import Graph


class _Participant(Protocol):
    """What an exchange needs to know about the recorder that executes it."""

    graph: Graph  # the network of the run
    partial: bool  # whether some of its nodes run in other processes


@dataclass(frozen=True, eq=False)
class Arcs:
    """The messages of one exchange."""

    src: Tensor  # (k,) the sender of each message
    dst: Tensor  # (k,) its receiver
    row: Tensor  # (k,) index of the payload that it carries
    kept: Tensor  # (k,) bool, whether it is recorded

    @cached_property
    def recorded(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The messages that are recorded: src, dst, row, and the payloads that they use.

        Rows are counted among the used payloads only: message k carries payload ``used[row[k]]``.
        """
        used, row = self.row[self.kept].unique(return_inverse=True)
        return self.src[self.kept], self.dst[self.kept], row, used

    def some(self, which: Tensor) -> Arcs:
        """Return the messages selected by a mask (k,)."""
        return Arcs(self.src[which], self.dst[which], self.row[which], self.kept[which])


def broadcast(recorder: _Participant, wires: Iterable[tuple[int, int]]) -> Arcs:
    """Return the messages with which every node sends row i of (N, d) to all its neighbours.

    If all nodes run in one process, channels that are not recorded are omitted; otherwise values
    are actually sent over them.
    """
    both = set[tuple[int, int]]()
    for i, j in wires:
        both |= {(i, j), (j, i)}
    arcs = recorder.graph.arcs if recorder.partial else sorted(both)
    src, dst = torch.tensor(arcs, dtype=torch.long).reshape(-1, 2).T
    kept = torch.tensor([arc in both for arc in arcs], dtype=torch.bool)
    return Arcs(src, dst, src, kept)
