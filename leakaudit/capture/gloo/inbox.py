"""The packets of the other processes, in the order in which each sent them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from queue import Empty, Queue

import torch
from torch import Tensor

# In place of the number of an exchange: the sender has ended, or its connection has.
GOODBYE = -1
CUT = -2
POLL = 0.02  # seconds between two checks whether to wait for a peer any longer: a choice

_Packet = tuple[int, Tensor]  # number of an exchange, and rows


class Inbox:
    """The packets of each sender, of which the last may be GOODBYE or CUT."""

    def __init__(self, peers: Iterable[int]) -> None:
        self._in: dict[int, Queue[_Packet]] = {p: Queue() for p in peers}
        self._kept: dict[int, _Packet] = {}  # of later exchanges, and the last ones

    def put(self, peer: int, number: int, rows: Tensor) -> None:
        """Add the rows (k, d) of a peer; any thread may call this."""
        self._in[peer].put((number, rows))

    def end(self, peer: int, word: int, reached: int = 0) -> None:
        """Add the last packet of a peer, with as many rows as it took part in exchanges."""
        self.put(peer, word, torch.empty(reached, 0))

    def take(
        self, peer: int, number: int, silent: Callable[[], bool], waiting: Callable[[], None]
    ) -> tuple[Tensor | None, str]:
        """Return a peer's rows of an exchange and an empty text; earlier rows are discarded.

        None and a key of `leakaudit.traces.gaps.WHY` if they do not arrive.
        """
        seconds = 0.0
        while True:
            packet = self._next(peer, seconds)
            if packet is None:
                if seconds and silent():
                    return None, "silent"
                if not seconds:
                    waiting()
                seconds = POLL
                continue
            found, rows = packet
            if found == number:
                return rows, ""
            if not 0 <= found < number:
                self._kept[peer] = packet
                return None, _why(found, len(rows), number)

    def _next(self, peer: int, seconds: float) -> _Packet | None:
        if peer in self._kept:
            return self._kept.pop(peer)
        try:
            return self._in[peer].get(timeout=seconds)
        except Empty:
            return None


def _why(found: int, reached: int, number: int) -> str:
    if found == CUT:
        return "closed"
    if found > number:
        return "lost"
    return "lost" if number <= reached else "ended"
