"""The messages of Flower (flwr): what they hold, and how it is logged.

The server is rank 0, and clients are ranks from 1. This module imports neither torch nor flwr.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leakaudit.capture.tap.log.capture import Capture
from leakaudit.capture.tap.log.writing import LEFT_OUT

SERVER = 0  # rank of the server
TRAIN = "train"  # first part of the type of a message that asks for training
ROUND = ("server-round", "server_round", "current_round", "round")  # keys of configurations
EXAMPLES = ("num-examples", "num_examples")  # keys of metrics
EMPTY = "_empty"  # flwr's name of no array
KEYS = 200  # characters of a text from the program in a note: a choice
NAMES = 40  # and the names in a list: also a choice


@dataclass(frozen=True)
class NamedArray:
    """One array of a message.

    Attributes:
        value: the numbers; None if they could not be read.
        name: its name in the message; empty if the message has only a list.
        record: number of the record of arrays that holds it.
        why: why there are no numbers.
    """

    value: Any
    name: str = ""
    record: int = 0
    why: str = ""


@dataclass(frozen=True)
class Place:
    """To which exchange a message belongs.

    Attributes:
        kind: train, evaluate or another word.
        round: the round.
        rank: rank of the client.
        node: number of the client in flwr.
    """

    kind: str
    round: int | None
    rank: int
    node: str

    @property
    def notes(self) -> dict[str, Any]:
        """The notes of each event of the message."""
        found: dict[str, Any] = {"server": SERVER, "node": self.node}
        if self.round is not None:
            found["round"] = self.round
        return found


@dataclass(frozen=True)
class ArrayList:
    """The arrays of one message.

    Attributes:
        arrays: all of them.
        place: to which exchange the message belongs.
        examples: number of training examples that the client reports.
    """

    arrays: Sequence[NamedArray]
    place: Place
    examples: int | None = None


def kind_of(message: Any) -> str:
    """Return what a message is about: train, evaluate or another word.

    Args:
        message: a message of flwr.
    """
    kind: str = message.metadata.message_type.split(".")[0]
    return kind


def round_in(message: Any) -> int | None:
    """Return the round that a message names; None if it names none.

    Args:
        message: a message of flwr.
    """
    if message.has_content():
        for record in message.content.config_records.values():
            for key in ROUND:
                if type(record.get(key)) is int:
                    return int(record[key])
    group = str(message.metadata.group_id)
    if group.isdecimal():
        return int(group)
    return None


def write(capture: Capture, op: str, messages: Sequence[tuple[Any, Place]]) -> None:
    """Log messages that are sent or received together.

    Args:
        capture: the recording of this process.
        op: send or recv.
        messages: messages of flwr, each with the exchange to which it belongs.
    """
    lists: list[ArrayList] = []
    read: dict[int, tuple[Any, Any]] = {}
    for message, place in messages:
        if message.has_error():
            why = str(message.error.reason)[:KEYS]
            capture.event("error", None, place.rank, why=why, **place.notes)
        elif place.kind != TRAIN:
            capture.event("other", None, place.rank, way=op, kind=place.kind[:KEYS], **place.notes)
        elif not any(message.content.array_records.values()):
            holds = _keys(message)
            capture.event("other", None, place.rank, way=op, kind=TRAIN, holds=holds, **place.notes)
        else:
            lists.append(ArrayList(arrays_of(message, read), place, _examples(message)))
    write_lists(capture, op, lists)


def write_lists(capture: Capture, op: str, lists: Sequence[ArrayList]) -> None:
    """Log lists of arrays that are sent or received together.

    The first arrays of all lists come first, then the second ones, and so on: equal arrays then
    follow each other, and are stored once.

    Args:
        capture: the recording of this process.
        op: send or recv.
        lists: the lists.
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
    notes = {"array": k, "arrays": len(held.arrays), **place.notes}
    if array.name:
        notes["name"] = array.name
    if array.why:
        notes[LEFT_OUT] = array.why
    if held.examples is not None:
        notes["examples"] = held.examples
    capture.event(op, array.value, peer, array.record, at=at, sender=sender, **notes)


def arrays_of(message: Any, read: dict[int, tuple[Any, Any]]) -> list[NamedArray]:
    """Return the arrays of a message.

    Args:
        message: a message of flwr.
        read: arrays that were read before, because messages to several clients share them.
    """
    found: list[NamedArray] = []
    for number, record in enumerate(message.content.array_records.values()):
        held = {name: array for name, array in record.items() if name != EMPTY}
        # Flwr itself numbers the arrays of a list.
        is_list = all(name == str(k) for k, name in enumerate(held))
        for name, array in held.items():
            given = "" if is_list else name
            found.append(_array(array, given, number, read))
    return found


def _array(array: Any, name: str, record: int, read: dict[int, tuple[Any, Any]]) -> NamedArray:
    try:
        if id(array) not in read:
            read[id(array)] = (array, array.numpy())  # the array itself keeps its id in use
        _, value = read[id(array)]
        return NamedArray(value, name, record)
    except Exception as error:  # another serialisation than numpy's
        return NamedArray(None, name, record, f"not an array of numpy: {error}"[:KEYS])


def unpacked(tensors: Sequence[bytes]) -> list[NamedArray]:
    """Return the arrays of a list of files .npy.

    Args:
        tensors: the contents of the files.
    """
    import numpy as np

    return [NamedArray(np.load(io.BytesIO(data), allow_pickle=False)) for data in tensors]


def _examples(message: Any) -> int | None:
    """Return the number of examples that a client reports."""
    for record in message.content.metric_records.values():
        for key in EXAMPLES:
            if isinstance(record.get(key), int | float):
                return int(record[key])
    return None


def _keys(message: Any) -> list[str]:
    """Return the names of what a message without arrays holds."""
    names: list[str] = []
    for record in message.content.config_records.values():
        names.extend(str(name)[:KEYS] for name in record)
    return names[:NAMES]
