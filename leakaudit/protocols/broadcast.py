"""A node sends the same message to all its neighbours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor

from leakaudit.traces.arcs import broadcast

if TYPE_CHECKING:
    from leakaudit.traces.recorder import Recorder


class Broadcast:
    """The broadcasts of a run; each payload is stored once, for any number of recorded channels."""

    def __init__(self, recorder: Recorder, wires: Iterable[tuple[int, int]]) -> None:
        self.recorder = recorder
        self.arcs = broadcast(recorder, wires)

    def send(
        self,
        round: int,
        kind: str,
        values: Tensor,
        secure: bool = False,
        before: Tensor | None = None,
    ) -> Tensor:
        """Send every node's row of values to all its neighbours.

        Args:
            values: The vectors to send, (N, d).
            before: The neighbours' previous copy, (N, d), if they have one.

        Returns:
            The neighbours' new copy, (N, d).
        """
        instead = None if before is None else lambda: before
        return self.recorder.exchange(round, kind, values, self.arcs, secure, instead)
