"""What the other processes have sent, in the order in which each sent it, and when it is no longer waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from queue import Empty, Queue

from torch import Tensor

GOODBYE, CUT = (
    -1,
    -2,
)  # instead of the number of an exchange: the sender has ended, or its connection has
POLL = 0.02  # seconds between two looks at the patience


class Inbox:
    """Packets by sender: the number of an exchange and its rows. Packets of one sender arrive in order, so a later one tells of a loss."""

    def __init__(self, peers: Iterable[int]) -> None:
        """Start empty."""
        self._in: dict[int, Queue[tuple[int, Tensor | int]]] = {p: Queue() for p in peers}
        self._early: dict[int, tuple[int, Tensor | int]] = {}
        self._gone: dict[int, tuple[int, int]] = {}

    def put(self, peer: int, number: int, rows: Tensor | int = 0) -> None:
        """Take what a peer sent; may be called by any thread. rows: with a last word, the exchange that the peer had reached."""
        self._in[peer].put((number, rows))

    def take(
        self, peer: int, number: int, silent: Callable[[], bool], waiting: Callable[[], None]
    ) -> tuple[Tensor | None, str]:
        """Return a peer's rows of an exchange, or None and why: ``lost``, ``ended``, ``closed`` or ``silent`` (`leakaudit.traces.gaps.WHY`).

        silent: whether it is no longer waited for. waiting: is called before the first wait. Rows of earlier exchanges are thrown away.
        """
        told = False
        while True:
            packet = self._early.pop(peer, None)
            try:
                packet = packet or self._in[peer].get_nowait()
            except Empty:
                if peer in self._gone:
                    word, reached = self._gone[peer]
                    return (
                        None,
                        "closed" if word == CUT else "lost" if number <= reached else "ended",
                    )
                if not told:
                    waiting()
                    told = True
                try:
                    packet = self._in[peer].get(timeout=POLL)
                except Empty:
                    if silent():
                        return None, "silent"
                    continue
            found, rows = packet
            if isinstance(rows, int):
                self._gone[peer] = found, rows
            elif found == number:
                return rows, ""
            elif found > number:
                self._early[peer] = packet
                return None, "lost"
