"""The rows of an exchange that one process sends to and receives from each of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakaudit.traces.arcs import Arcs

# By the other process: the arcs, and their rows, each row once.
Parts = dict[int, tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Route:
    """The part of an exchange that one process has to do.

    Attributes:
        out: Arcs and rows that it sends, by the other process.
        into: Arcs and rows that it receives, by the other process.
        foreign: Rows that are sent only on arcs which start in other processes.
        wanted: Those of them that end in this process.
        told: Arcs that start in this process and are recorded.
    """

    out: Parts
    into: Parts
    foreign: Tensor
    wanted: Tensor
    told: Tensor

    @classmethod
    def of(cls, arcs: Arcs, place: Sequence[int], rank: int) -> Route:
        """Determine the part of one process.

        Args:
            arcs: The arcs of the exchange.
            place: The process of every node.
            rank: The process.
        """
        where = torch.tensor(place)
        start = where[arcs.src]
        end = where[arcs.dst]
        from_here = start == rank
        to_here = end == rank
        own = arcs.row[from_here]
        foreign = arcs.row[~from_here].unique()
        foreign = foreign[~torch.isin(foreign, own)]
        out = {}
        for peer in end[from_here & ~to_here].unique().tolist():
            out[peer] = _part(arcs, from_here & (end == peer))
        into = {}
        for peer in start[~from_here & to_here].unique().tolist():
            into[peer] = _part(arcs, (start == peer) & to_here)
        wanted = foreign[torch.isin(foreign, arcs.row[to_here])]
        told = (from_here & arcs.kept).nonzero().flatten()
        return cls(out, into, foreign, wanted, told)


def _part(arcs: Arcs, which: Tensor) -> tuple[Tensor, Tensor]:
    return which.nonzero().flatten(), arcs.row[which].unique()
