"""A node sends the same message to all its neighbours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor

from leakaudit.traces.arcs import broadcast

if TYPE_CHECKING:
    from leakaudit.traces.recorder import Recorder


class Broadcast:
    """The broadcasts of a run; a payload is stored once, however many recorded wires carry it."""

    def __init__(self, recorder: Recorder, wires: Iterable[tuple[int, int]]) -> None:
        """Prepare the broadcasts.

        Args:
            recorder: The recorder of the run.
            wires: Undirected edges that are recorded.
        """
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
        """Let every node send its row of values to all its neighbours.

        Args:
            round: The round.
            kind: Kind of the messages.
            values: What the nodes send, (N, d).
            secure: Whether an encrypted channel carries them.
            before: What the neighbours held of it before, (N, d), if there is such a thing.

        Returns:
            What the neighbours hold of it now, (N, d).
        """
        instead = None if before is None else lambda: before
        return self.recorder.exchange(round, kind, values, self.arcs, secure, instead)
