"""One exchange of messages: which node sends which payload to whom.

Victims describe their exchanges in these terms; the engine that runs them carries them out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from leakaudit.trace import Graph


class Participant(Protocol):
    """What an exchange has to know of the recorder that carries it out.

    Attributes:
        graph: The network of the run.
        partial: Whether some of its nodes live in other processes.
    """

    graph: Graph
    partial: bool


@dataclass(frozen=True, eq=False)
class Arcs:
    """The messages of one exchange.

    Attributes:
        src: (k,) The sender of each message.
        dst: (k,) Its receiver.
        row: (k,) Which payload it carries.
        kept: (k,) bool, whether it is recorded.
    """

    src: Tensor
    dst: Tensor
    row: Tensor
    kept: Tensor

    @cached_property
    def recorded(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The messages that are recorded: src, dst, row, and the payloads that they use.

        Rows count among the used payloads only: message k carries payload ``used[row[k]]``.
        """
        used, row = self.row[self.kept].unique(return_inverse=True)
        return self.src[self.kept], self.dst[self.kept], row, used

    def some(self, which: Tensor) -> Arcs:
        """Return the messages that a mask chooses.

        Args:
            which: (k,) bool.
        """
        return Arcs(self.src[which], self.dst[which], self.row[which], self.kept[which])


def broadcast(recorder: Participant, wires: Iterable[tuple[int, int]]) -> Arcs:
    """Return the messages by which every node sends row i of (N, d) to all its neighbours.

    Args:
        recorder: Of the run. If all nodes live in its process, wires that are not recorded are left
            out; otherwise all are needed, because values really travel over them.
        wires: Undirected edges that are recorded.

    Returns:
        The messages, sorted by sender and receiver.
    """
    both = set[tuple[int, int]]()
    for i, j in wires:
        both |= {(i, j), (j, i)}
    arcs = recorder.graph.arcs if recorder.partial else sorted(both)
    src, dst = torch.tensor(arcs, dtype=torch.long).reshape(-1, 2).T
    kept = torch.tensor([arc in both for arc in arcs], dtype=torch.bool)
    return Arcs(src, dst, src, kept)
