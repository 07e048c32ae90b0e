"""The messages of Flower (flwr), and the tap of a server that sends and receives them.

This module imports neither torch nor flwr.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from leakaudit.capture.tap.exchanges import (
    KEYS,
    NAMES,
    TRAIN,
    Array,
    ArrayList,
    Conversation,
    ExchangePlace,
    write_lists,
)
from leakaudit.capture.tap.log.capture import Capture
from leakaudit.capture.tap.log.writing import LEFT_OUT

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
    return int(group) if group.isdecimal() else None


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
            lists.append((place, _arrays(message, read), _examples(message)))
    write_lists(capture, op, lists)


def _arrays(message: Any, read: dict[int, tuple[Any, Any]]) -> list[Array]:
    """Return the arrays of a message; some were read before, as messages to clients share them."""
    found: list[Array] = []
    for number, record in enumerate(message.content.array_records.values()):
        held = {name: array for name, array in record.items() if name != EMPTY}
        # Flwr itself numbers the arrays of a list.
        is_list = all(name == str(k) for k, name in enumerate(held))
        for name, array in held.items():
            found.append(_array(array, "" if is_list else name, number, read))
    return found


def _array(array: Any, name: str, record: int, read: dict[int, tuple[Any, Any]]) -> Array:
    try:
        if id(array) not in read:
            read[id(array)] = (array, array.numpy())  # the array itself keeps its id in use
        return read[id(array)][1], record, {"name": name} if name else {}
    except Exception as error:  # another serialisation than numpy's
        why = {LEFT_OUT: f"not an array of numpy: {error}"[:KEYS]}
        return None, record, {"name": name, **why} if name else why


def write_fits(capture: Capture, op: str, fits: Iterable[tuple[ExchangePlace, Any]]) -> None:
    """Log files .npy of arrays, which the older generation of Flower sends together."""
    import numpy as np

    lists: list[ArrayList] = []
    for place, fit in fits:
        files = [io.BytesIO(data) for data in fit.parameters.tensors]
        arrays: list[Array] = [(np.load(file, allow_pickle=False), 0, {}) for file in files]
        examples = getattr(fit, "num_examples", None)
        lists.append((place, arrays, {} if examples is None else {"examples": examples}))
    write_lists(capture, op, lists)


def _examples(message: Any) -> dict[str, int]:
    for record in message.content.metric_records.values():
        for key in EXAMPLES:
            if isinstance(record.get(key), int | float):
                return {"examples": int(record[key])}
    return {}


def _keys(message: Any) -> list[str]:
    names: list[str] = []
    for record in message.content.config_records.values():
        names.extend(str(name)[:KEYS] for name in record)
    return names[:NAMES]


class FlowerServerTap:
    """The tap of one server process; its methods may be called by several threads."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.talk = Conversation()
        self._lock = threading.Lock()
        self._nested = threading.local()

    def push(self, push: Callable[..., Any], grid: Any, messages: Iterable[Any]) -> Any:
        """Log instructions, and send them with ``push_messages`` of a grid."""
        if getattr(self._nested, "inside", False):  # a grid that uses another one
            return push(grid, messages)
        messages = list(messages)
        known = self.capture.safely(self._known, grid, messages) or ()
        places = self.capture.safely(self.instruct, messages, known) or []
        numbers = self._once(push, grid, messages)
        self.capture.safely(self._remember, messages, numbers, places)
        return numbers

    def pull(self, pull: Callable[..., Any], grid: Any, *args: Any, **named: Any) -> Any:
        """Receive replies with ``pull_messages`` of a grid, and log them."""
        if getattr(self._nested, "inside", False):
            return pull(grid, *args, **named)
        replies = list(self._once(pull, grid, *args, **named))
        self.capture.safely(self.receive, replies)
        return replies

    def instruct(self, messages: Iterable[Any], known: Iterable[int] = ()) -> list[ExchangePlace]:
        """Log what the server sends."""
        with self._lock:
            placed: list[tuple[Any, ExchangePlace]] = []
            for message in messages:
                node = message.metadata.dst_node_id
                kind = kind_of(message)
                if kind == TRAIN:
                    self.talk.begin(node, round_in(message))
                placed.append((message, self.talk.place(kind, node, known)))
            write(self.capture, "send", placed)
            return [place for _, place in placed]

    def receive(self, replies: Iterable[Any]) -> None:
        """Log what clients answered."""
        with self._lock:
            placed: list[tuple[Any, ExchangePlace]] = []
            for reply in replies:
                about = reply.metadata
                place = self.talk.reply(
                    about.reply_to_message_id, kind_of(reply), about.src_node_id
                )
                placed.append((reply, place))
            write(self.capture, "recv", placed)

    def fit(self, fit: Callable[..., Any], proxy: Any, ins: Any, *args: Any, **named: Any) -> Any:
        """Log an instruction of ``start_server``, and its reply."""
        place = self.capture.safely(self._ask, proxy, ins, named.get("group_id"))
        result = fit(proxy, ins, *args, **named)
        if place is not None:
            self.capture.safely(self._answer, result, place)
        return result

    def _once(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call a method of a grid; what it does with another grid is not logged again."""
        self._nested.inside = True
        try:
            return call(*args, **named)
        finally:
            self._nested.inside = False

    def _known(self, grid: Any, messages: Iterable[Any]) -> list[int]:
        talk = self.talk
        receivers = {message.metadata.dst_node_id for message in messages}
        if receivers <= talk.ranks.keys() | talk.partitions.keys():
            return []
        with suppress(Exception):  # the receivers are known in any case
            receivers |= set(self._once(grid.get_node_ids))
        return list(receivers)

    def _remember(
        self, messages: Iterable[Any], numbers: Iterable[Any], places: Iterable[ExchangePlace]
    ) -> None:
        """Keep the places until the replies arrive; messages get their numbers when pushed."""
        for message, place in zip(messages, places, strict=True):
            self.talk.places[message.metadata.message_id] = place
        for number, place in zip(numbers, places, strict=False):
            self.talk.places[str(number)] = place

    def _ask(self, proxy: Any, ins: Any, group: Any) -> ExchangePlace:
        with self._lock:
            node = hash(proxy.cid)
            self.talk.begin(node, group)
            place = self.talk.place(TRAIN, node, name=proxy.cid)
            write_fits(self.capture, "send", [(place, ins)])
            return place

    def _answer(self, result: Any, place: ExchangePlace) -> None:
        with self._lock:
            self.talk.answered = True
            write_fits(self.capture, "recv", [(place, result)])
