"""The messages of Flower (flwr): what they hold, and how it is logged.

This module imports neither torch nor flwr.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from leakaudit.capture.tap.exchanges.arrays import (
    KEYS,
    NAMES,
    TRAIN,
    ArrayList,
    ExchangePlace,
    NamedArray,
    write_lists,
)
from leakaudit.capture.tap.log.capture import Capture

ROUND = ("server-round", "server_round", "current_round", "round")  # keys of configurations
EXAMPLES = ("num-examples", "num_examples")  # keys of metrics
EMPTY = "_empty"  # flwr's name of no array


def kind_of(message: Any) -> str:
    """Return what a message is about: train, evaluate or another word."""
    kind: str = message.metadata.message_type.split(".")[0]
    return kind


def round_in(message: Any) -> int | None:
    """Return the round that a message names; None if it names none."""
    if message.has_content():
        for record in message.content.config_records.values():
            for key in ROUND:
                if type(record.get(key)) is int:
                    return int(record[key])
    group = str(message.metadata.group_id)
    if group.isdecimal():
        return int(group)
    return None


def write(capture: Capture, op: str, messages: Sequence[tuple[Any, ExchangePlace]]) -> None:
    """Log messages that are sent or received together."""
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


def arrays_of(message: Any, read: dict[int, tuple[Any, Any]]) -> list[NamedArray]:
    """Return the arrays of a message.

    Args:
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
    """Return the arrays of a list of files .npy."""
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
