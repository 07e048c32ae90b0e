"""Which rows of an exchange go from one process to which others, and what comes from where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakaudit.traces.arcs import Arcs

Parts = dict[
    int, tuple[Tensor, Tensor]
]  # by the other process: which arcs, and their rows, each once


@dataclass(frozen=True, eq=False)
class Route:
    """The part of an exchange that one process has to do.

    out, into: arcs and rows by the other process. foreign: rows that arcs carry which start elsewhere. wanted: those of them that end here.
    told: arcs that start here and are recorded.
    """

    out: Parts
    into: Parts
    foreign: Tensor
    wanted: Tensor
    told: Tensor

    @classmethod
    def of(cls, arcs: Arcs, place: Sequence[int], rank: int) -> Route:
        """Find it for one process; place: the process of every node."""
        where = torch.tensor(place)
        start, end = where[arcs.src], where[arcs.dst]
        own = arcs.row[start == rank]
        foreign = arcs.row[start != rank].unique()
        foreign = foreign[~torch.isin(foreign, own)]
        out = {
            p: _part(arcs, (start == rank) & (end == p))
            for p in end[(start == rank) & (end != rank)].unique().tolist()
        }
        into = {
            p: _part(arcs, (start == p) & (end == rank))
            for p in start[(start != rank) & (end == rank)].unique().tolist()
        }
        wanted = foreign[torch.isin(foreign, arcs.row[end == rank])]
        return cls(out, into, foreign, wanted, ((start == rank) & arcs.kept).nonzero().flatten())


def _part(arcs: Arcs, which: Tensor) -> tuple[Tensor, Tensor]:
    return which.nonzero().flatten(), arcs.row[which].unique()
