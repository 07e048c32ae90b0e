"""The packets of the other processes, in the order in which each sent them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import Empty, Queue

from torch import Tensor

# In place of the number of an exchange: the sender has ended, or its connection has.
GOODBYE = -1
CUT = -2
POLL = 0.02  # seconds between two checks whether to wait for a peer any longer: a choice


@dataclass(frozen=True, eq=False)
class _Packet:
    number: int
    rows: Tensor


@dataclass(frozen=True)
class _End:
    word: int
    reached: int


class Inbox:
    """The packets of each sender, in the order in which it sent them."""

    def __init__(self, peers: Iterable[int]) -> None:
        self._in: dict[int, Queue[_Packet | _End]] = {p: Queue() for p in peers}
        self._early: dict[int, _Packet] = {}  # packets of later exchanges, kept until needed
        self._gone: dict[int, _End] = {}

    def put(self, peer: int, number: int, rows: Tensor) -> None:
        """Add the rows (k, d) of a peer; any thread may call this."""
        self._in[peer].put(_Packet(number, rows))

    def end(self, peer: int, word: int, reached: int = 0) -> None:
        """Add the last notice of a peer; any thread may call this."""
        self._in[peer].put(_End(word, reached))

    def take(
        self, peer: int, number: int, silent: Callable[[], bool], waiting: Callable[[], None]
    ) -> tuple[Tensor | None, str]:
        """Return a peer's rows of an exchange and an empty text; earlier rows are discarded.

        None and a key of `leakaudit.traces.gaps.WHY` if they do not arrive.
        """
        told = False
        while True:
            packet = self._next(peer)
            if packet is None and peer in self._gone:
                return None, _why(self._gone[peer], number)
            if packet is None:
                if not told:
                    waiting()
                    told = True
                packet = self._wait(peer)
            if packet is None:
                if silent():
                    return None, "silent"
            elif isinstance(packet, _End):
                self._gone[peer] = packet
            elif packet.number == number:
                return packet.rows, ""
            elif packet.number > number:
                self._early[peer] = packet
                return None, "lost"

    def _next(self, peer: int) -> _Packet | _End | None:
        early = self._early.pop(peer, None)
        if early is not None:
            return early
        try:
            return self._in[peer].get_nowait()
        except Empty:
            return None

    def _wait(self, peer: int) -> _Packet | _End | None:
        try:
            return self._in[peer].get(timeout=POLL)
        except Empty:
            return None


def _why(end: _End, number: int) -> str:
    if end.word == CUT:
        return "closed"
    return "lost" if number <= end.reached else "ended"
