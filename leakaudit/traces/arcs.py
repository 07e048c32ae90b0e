"""One exchange of messages: who sends which payload to whom. Victims describe it; the engine that runs them carries it out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from leakaudit.traces.recorder import Recorder


@dataclass(frozen=True, eq=False)
class Arcs:
    """Messages src (k,) -> dst (k,) of one exchange; row (k,): the payload that each carries. kept: (k,) bool, which are recorded."""

    src: Tensor
    dst: Tensor
    row: Tensor
    kept: Tensor

    @cached_property
    def recorded(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """src, dst and row of the messages that are recorded, rows counted among the last: the payloads that some of them carry."""
        used, row = self.row[self.kept].unique(return_inverse=True)
        return self.src[self.kept], self.dst[self.kept], row, used

    def some(self, which: Tensor) -> Arcs:
        """Return the messages that a mask (k,) chooses."""
        return Arcs(self.src[which], self.dst[which], self.row[which], self.kept[which])


def broadcast(recorder: Recorder, wires: Iterable[tuple[int, int]]) -> Arcs:
    """Return the messages by which every node tells row i of (N, d) to its neighbours, sorted by both ends.

    wires: undirected edges that are recorded. Where all nodes live in one process, the others are left out.
    """
    both = {arc for i, j in wires for arc in ((i, j), (j, i))}
    arcs = recorder.graph.arcs if recorder.partial else sorted(both)
    src, dst = torch.tensor(arcs, dtype=torch.long).reshape(-1, 2).T
    kept = torch.tensor([arc in both for arc in arcs], dtype=torch.bool)
    return Arcs(src, dst, src, kept)
