"""Tap a server of NVFlare: all tasks that it gives to its clients, and their results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from leakaudit.capture.tap.exchanges.arrays import TRAIN, ExchangePlace
from leakaudit.capture.tap.exchanges.conversation import Client, Conversation
from leakaudit.capture.tap.log.capture import Capture
from leakaudit.capture.tap.nvflare.messages import content_of, copy_of, kind_of, round_in, write


class NVFlareServerTap:
    """The tap of one server; its methods may be called by several threads."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.talk = Conversation()
        self._places: dict[tuple[str, str], ExchangePlace] = {}  # client and task -> place
        self._models: dict[str, Mapping[str, Any]] = {}  # client -> the last model sent to it
        self._last: Mapping[str, Any] = {}  # the last model sent to any client
        self._lock = threading.Lock()

    def request(self, process: Callable[..., Any], runner: Any, client: Any, fl_ctx: Any) -> Any:
        """Let the server choose the task of a client, and log it after the server's filters.

        Args:
            process: ``process_task_request`` of a server's runner.
        """
        name, number, data = process(runner, client, fl_ctx)
        if number and data is not None:  # otherwise the client is asked to wait, or to end
            known = self.capture.safely(_clients, fl_ctx) or ()
            self.capture.safely(self.instruct, client.name, str(name), str(number), data, known)
        return name, number, data

    def submission(
        self,
        process: Callable[..., Any],
        runner: Any,
        client: Any,
        task_name: Any,
        task_id: Any,
        result: Any,
        fl_ctx: Any,
    ) -> Any:
        """Log the result of a task before the server's filters, and let the server use it.

        Args:
            process: ``process_submission`` of a server's runner.
        """
        self.capture.safely(self.receive, client.name, str(task_name), str(task_id), result)
        return process(runner, client, task_name, task_id, result, fl_ctx)

    def instruct(
        self, client: str, task: str, number: str, data: Any, known: Iterable[Client] = ()
    ) -> None:
        """Log a task."""
        content = content_of(data)
        with self._lock:
            kind = kind_of(task)
            at = self.talk.round
            if kind == TRAIN and content.is_model:
                at = self.talk.begin(client, round_in(data))
                self._last = copy_of(content, self._last)
                self._models[client] = self._last
            place = ExchangePlace(kind, at, self.talk.rank(client, known), client)
            self._places[client, number] = place
            write(self.capture, "send", data, place)

    def receive(self, client: str, task: str, number: str, result: Any) -> None:
        """Log the result of a task."""
        with self._lock:
            place = self._places.pop((client, number), None)
            if place is None:
                place = ExchangePlace(
                    kind_of(task), self.talk.round, self.talk.rank(client), client
                )
            if place.kind == TRAIN:
                self.talk.answered = True
            model = self._models.get(client)
            write(self.capture, "recv", result, place, model, is_answer=True)


def _clients(fl_ctx: Any) -> list[str]:
    """Return the names of all clients of a server."""
    return [str(client.name) for client in fl_ctx.get_engine().get_clients()]
