"""Lists of arrays that a server and its clients exchange, and how they are logged.

The server is rank 0, and clients are ranks from 1. This module imports neither torch nor a
framework.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leakaudit.capture.tap.log.capture import Capture
from leakaudit.capture.tap.log.writing import LEFT_OUT

SERVER = 0  # rank of the server
TRAIN = "train"  # kind of the messages that ask for training, and of their answers
KEYS = 200  # characters of a text from the program in a note: a choice
NAMES = 40  # and the names in a list: also a choice


@dataclass(frozen=True)
class NamedArray:
    """One array of a message."""

    value: Any  # the numbers; None if they could not be read
    name: str = ""  # its name in the message; empty if the message has only a list
    record: int = 0  # number of the record of arrays that holds it
    why: str = ""  # why there are no numbers


@dataclass(frozen=True)
class ExchangePlace:
    """To which exchange a message belongs."""

    kind: str  # train, evaluate or another word
    round: int | None
    rank: int
    node: str  # what the program calls the client

    @property
    def notes(self) -> dict[str, Any]:
        """The notes of each event of the message."""
        found: dict[str, Any] = {"server": SERVER, "node": self.node}
        if self.round is not None:
            found["round"] = self.round
        return found


@dataclass(frozen=True)
class ArrayList:
    """The arrays of one message."""

    arrays: Sequence[NamedArray]
    place: ExchangePlace  # to which exchange the message belongs
    examples: int | None = None  # number of training examples that the client reports
    notes: Mapping[str, Any] = field(default_factory=dict)  # what else to note about the message


def write_lists(capture: Capture, op: str, lists: Sequence[ArrayList]) -> None:
    """Log lists of arrays that are sent or received together.

    The first arrays of all lists come first, then the second ones, and so on: equal arrays then
    follow each other, and are stored once.
    """
    longest = max((len(one.arrays) for one in lists), default=0)
    for k in range(longest):
        for one in lists:
            if k < len(one.arrays):
                _write_array(capture, op, one, k)


def _write_array(capture: Capture, op: str, held: ArrayList, k: int) -> None:
    """Log an array of a message."""
    place = held.place
    array = held.arrays[k]
    # What a client receives from the server, or sends to it, has the server as its peer.
    is_client = capture.rank == place.rank
    peer = SERVER if is_client else place.rank
    comes_from_client = (op == "send") == is_client
    sender = place.rank if comes_from_client else SERVER
    at = None
    if place.round is not None:
        at = place.round - capture.start
    notes = {"array": k, "arrays": len(held.arrays), **place.notes, **held.notes}
    if array.name:
        notes["name"] = array.name
    if array.why:
        notes[LEFT_OUT] = array.why
    if held.examples is not None:
        notes["examples"] = held.examples
    capture.event(op, array.value, peer, array.record, at=at, sender=sender, **notes)
