"""What a server and its clients send each other, in any framework that knows which is which."""

# The server is rank 0, and clients are ranks from 1. This module imports neither torch nor a
# framework.

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from leakaudit.capture.tap.log.capture import Capture
from leakaudit.capture.tap.log.writing import UNRANKED, Log

SERVER = 0  # rank of the server
TRAIN = "train"  # kind of the messages that ask for training, and of their answers
KEYS = 200  # characters of a text from the program in a note: a choice
NAMES = 40  # and the names in a list: also a choice

Client = int | str  # what the program calls a client
_captures: dict[tuple[str, int, str], Capture] = {}
_noted: set[tuple[str, int, str, str]] = set()


@dataclass(frozen=True)
class ExchangePlace:
    """The exchange to which a message belongs."""

    kind: str  # train, evaluate or another word
    round: int | None
    rank: int
    node: str  # what the program calls the client

    @property
    def notes(self) -> dict[str, Any]:
        """The notes of each event of the message."""
        notes: dict[str, Any] = {"server": SERVER, "node": self.node}
        if self.round is not None:
            notes["round"] = self.round
        return notes


# The numbers of one array, or None; the number of the record of arrays that holds it; and notes:
# its name, if the message has more than a list, and why there are no numbers.
Array = tuple[Any, int, Mapping[str, str]]
# The place of a message, its arrays, and what else to note about it.
ArrayList = tuple[ExchangePlace, Sequence[Array], Mapping[str, Any]]


def write_lists(capture: Capture, op: str, lists: Sequence[ArrayList]) -> None:
    """Log lists of arrays that are sent or received together."""
    # The k-th arrays of all lists follow each other, so that equal ones are stored once.
    longest = max((len(arrays) for _, arrays, _ in lists), default=0)
    for k in range(longest):
        for place, arrays, notes in lists:
            if k < len(arrays):
                value, record, named = arrays[k]
                noted = {"array": k, "arrays": len(arrays), **place.notes, **notes, **named}
                _write_array(capture, op, place, value, record, noted)


def _write_array(
    capture: Capture, op: str, place: ExchangePlace, value: Any, record: int, notes: dict[str, Any]
) -> None:
    # What a client receives from the server, or sends to it, has the server as its peer.
    is_client = capture.rank == place.rank
    peer = SERVER if is_client else place.rank
    comes_from_client = (op == "send") == is_client
    sender = place.rank if comes_from_client else SERVER
    at = None
    if place.round is not None:
        at = place.round - capture.settings.start
    capture.event(op, value, peer, record, at=at, sender=sender, **notes)


@dataclass
class Conversation:
    """The rounds of a server, which it may not say, and the ranks of its clients."""

    partitions: dict[Client, int] = field(default_factory=dict)  # empty outside a simulation
    ranks: dict[Client, int] = field(default_factory=dict)  # of clients without a known partition
    round: int = 0
    answered: bool = True  # whether a reply has arrived in this round
    asked: set[Client] = field(default_factory=set)  # clients that were asked to train in it
    places: dict[Hashable, ExchangePlace] = field(default_factory=dict)  # of what was asked

    def rank(self, node: Client, known: Iterable[Client] = ()) -> int:
        """Return the rank of a client: by its partition, else in the order of the names."""
        if node in self.partitions:
            return SERVER + 1 + self.partitions[node]
        if node not in self.ranks:
            for other in sorted({node, *known}, key=_order):
                self.ranks.setdefault(other, SERVER + 1 + len(self.ranks))
        return self.ranks[node]

    def begin(self, node: Client, noted: int | None) -> int:
        """Return the round of a training instruction, as it notes it."""
        # Else one begins when a client is asked after an answer, or a second time.
        if noted is None:
            begins = self.answered or node in self.asked
            noted = self.round + 1 if begins else self.round
        if noted != self.round:
            self.asked.clear()
        self.round = noted
        self.answered = False
        self.asked.add(node)
        return self.round

    def place(
        self, kind: str, node: Client, known: Iterable[Client] = (), name: str = ""
    ) -> ExchangePlace:
        """Return the place of a message of the current round."""
        return ExchangePlace(kind, self.round, self.rank(node, known), name or str(node))

    def reply(self, asked: Hashable, kind: str, node: Client) -> ExchangePlace:
        """Return the place of an answer: that of what was asked, if this is known."""
        place = self.places.get(asked) or self.place(kind, node)
        if place.kind == TRAIN:
            self.answered = True
        return place


def _order(node: Client) -> tuple[int, str]:
    """Return a key that puts 2 before 10, and site-2 before site-10."""
    text = str(node)
    return len(text), text


def wrap(owner: Any, name: str, instead: Callable[..., Any]) -> None:
    """Replace a function by a call of another one, with the function as its first argument."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        return instead(function, *args, **named)

    setattr(owner, name, call)


def capture_of(folder: str, rank: int, run: str = "") -> Capture:
    """Return the recording of a rank in this process."""
    key = (folder, rank, run)
    if key not in _captures:
        _captures[key] = Capture(folder, rank=rank, run=run)
    return _captures[key]


def note_once(folder: str, op: str, **notes: Any) -> None:
    """Write, once per process and word, what runs in it; an error must not reach the program."""
    key = (folder, os.getpid(), op, str(notes.get(op)))
    if key in _noted:
        return
    _noted.add(key)
    # A log of its own, closed at once: a simulation kills the processes of its clients.
    with suppress(OSError), Log(folder, UNRANKED) as log:
        log.write(op, **notes)
