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
class ExchangeRoute:
    """The part of an exchange that one process has to do."""

    out: Parts  # arcs and rows that it sends, by the other process
    into: Parts  # arcs and rows that it receives, by the other process
    foreign: Tensor  # rows that are sent only on arcs which start in other processes
    wanted: Tensor  # those of them that end in this process
    told: Tensor  # arcs that start in this process and are recorded

    @classmethod
    def of(cls, arcs: Arcs, place: Sequence[int], rank: int) -> ExchangeRoute:
        """Determine the part of one process."""
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
