"""Tap one client of NVFlare: the tasks that it receives, and the results that it sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakaudit.capture.tap.exchanges.arrays import TRAIN, ExchangePlace
from leakaudit.capture.tap.exchanges.conversation import Conversation
from leakaudit.capture.tap.log.capture import Capture
from leakaudit.capture.tap.nvflare.messages import content_of, copy_of, kind_of, round_in, write


class ClientTap:
    """The tap of one client."""

    def __init__(self, capture: Capture, name: str) -> None:
        self.capture = capture
        self.name = name
        self._talk = Conversation()
        self._place: ExchangePlace | None = None
        self._model: Mapping[str, Any] = {}

    def receive(self, task: str, data: Any) -> None:
        """Log a task."""
        content = content_of(data)
        kind = kind_of(task)
        at = self._talk.round
        if kind == TRAIN and content.is_model:
            at = self._talk.begin(self.name, round_in(data))
            self._model = copy_of(content, self._model)
        self._place = ExchangePlace(kind, at, self.capture.rank, self.name)
        write(self.capture, "recv", data, self._place)

    def answer(self, task: str, result: Any) -> None:
        """Log the result of a task."""
        place = self._place
        if place is None:
            place = ExchangePlace(kind_of(task), None, self.capture.rank, self.name)
        write(self.capture, "send", result, place, self._model, is_answer=True)
