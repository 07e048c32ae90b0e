"""A node tells all neighbours the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor

from leakaudit.traces.arcs import broadcast

if TYPE_CHECKING:
    from leakaudit.traces.recorder import Recorder


class Broadcast:
    """Who hears whom; on the wires (undirected edges) that are recorded a payload is stored once a sender."""

    def __init__(self, recorder: Recorder, wires: Iterable[tuple[int, int]]) -> None:
        self.recorder, self.arcs = recorder, broadcast(recorder, wires)

    def send(
        self,
        round: int,
        kind: str,
        values: Tensor,
        secure: bool = False,
        before: Tensor | None = None,
    ) -> Tensor:
        """Let node i tell its neighbours row i of values (N, d), and return what they hold of it; before: what they held before."""
        instead = None if before is None else lambda: before
        return self.recorder.exchange(round, kind, values, self.arcs, secure, instead)
