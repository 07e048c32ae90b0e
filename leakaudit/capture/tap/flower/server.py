"""Tap a server of Flower: all that it sends to its clients and receives from them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from leakaudit.capture.tap.exchanges.arrays import TRAIN, ArrayList, ExchangePlace, write_lists
from leakaudit.capture.tap.exchanges.conversation import Conversation
from leakaudit.capture.tap.flower.messages import kind_of, round_in, unpacked, write
from leakaudit.capture.tap.log.capture import Capture


class FlowerServerTap:
    """The tap of one server process; its methods may be called by several threads."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.talk = Conversation()
        self._places: dict[str, ExchangePlace] = {}  # number of an instruction -> its place
        self._lock = threading.Lock()
        self._nested = threading.local()

    def push(self, push: Callable[..., Any], grid: Any, messages: Iterable[Any]) -> Any:
        """Log instructions, and send them.

        Args:
            push: ``push_messages`` of a grid.
        """
        if getattr(self._nested, "inside", False):  # a grid that uses another one
            return push(grid, messages)
        messages = list(messages)
        known = self.capture.safely(self._known, grid, messages) or ()
        places = self.capture.safely(self.instruct, messages, known) or []
        numbers = self._once(push, grid, messages)
        self.capture.safely(self._remember, messages, numbers, places)
        return numbers

    def pull(self, pull: Callable[..., Any], grid: Any, *args: Any, **named: Any) -> Any:
        """Receive replies, and log them.

        Args:
            pull: ``pull_messages`` of a grid.
        """
        if getattr(self._nested, "inside", False):
            return pull(grid, *args, **named)
        replies = list(self._once(pull, grid, *args, **named))
        self.capture.safely(self.receive, replies)
        return replies

    def instruct(self, messages: Iterable[Any], known: Iterable[int] = ()) -> list[ExchangePlace]:
        """Log what the server sends."""
        with self._lock:
            placed = [(message, self._place(message, known)) for message in messages]
            write(self.capture, "send", placed)
            return [place for _, place in placed]

    def receive(self, replies: Iterable[Any]) -> None:
        """Log what clients answered."""
        with self._lock:
            write(self.capture, "recv", [(reply, self._answered(reply)) for reply in replies])

    def fit(self, fit: Callable[..., Any], proxy: Any, ins: Any, *args: Any, **named: Any) -> Any:
        """Log an instruction of ``start_server``, and its reply.

        Args:
            named: its named arguments; ``group_id`` is the round.
        """
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
        """Return the numbers of all clients, if one of the receivers is new."""
        found = self.talk
        receivers = {message.metadata.dst_node_id for message in messages}
        if receivers <= found.ranks.keys() | found.partitions.keys():
            return []
        with suppress(Exception):  # the receivers are known in any case
            receivers |= set(self._once(grid.get_node_ids))
        return list(receivers)

    def _place(self, message: Any, known: Iterable[int]) -> ExchangePlace:
        """Return the exchange that an instruction begins."""
        node = message.metadata.dst_node_id
        kind = kind_of(message)
        at = self.talk.round
        if kind == TRAIN:
            at = self.talk.begin(node, round_in(message))
        return ExchangePlace(kind, at, self.talk.rank(node, known), str(node))

    def _remember(
        self, messages: Iterable[Any], numbers: Iterable[Any], places: Iterable[ExchangePlace]
    ) -> None:
        """Keep the places until the replies arrive; messages get their numbers when pushed."""
        for message, place in zip(messages, places, strict=True):
            self._places[message.metadata.message_id] = place
        for number, place in zip(numbers, places, strict=False):
            self._places[str(number)] = place

    def _answered(self, message: Any) -> ExchangePlace:
        """Return the exchange to which a reply belongs."""
        place = self._places.get(message.metadata.reply_to_message_id)
        if place is None:
            node = message.metadata.src_node_id
            place = ExchangePlace(
                kind_of(message), self.talk.round, self.talk.rank(node), str(node)
            )
        if place.kind == TRAIN:
            self.talk.answered = True
        return place

    def _ask(self, proxy: Any, ins: Any, group: Any) -> ExchangePlace:
        with self._lock:
            node = hash(proxy.cid)
            place = ExchangePlace(
                TRAIN, self.talk.begin(node, group), self.talk.rank(node), proxy.cid
            )
            arrays = unpacked(ins.parameters.tensors)
            write_lists(self.capture, "send", [ArrayList(arrays, place)])
            return place

    def _answer(self, result: Any, place: ExchangePlace) -> None:
        with self._lock:
            self.talk.answered = True
            arrays = unpacked(result.parameters.tensors)
            one = ArrayList(arrays, place, result.num_examples)
            write_lists(self.capture, "recv", [one])
