"""Tap the tasks that a server of NVFlare gives to its clients, and their results."""

# A message of NVFlare is a dictionary, so this module imports neither torch nor nvflare.

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from leakaudit.capture.tap.exchanges import (
    KEYS,
    NAMES,
    TRAIN,
    Array,
    Client,
    Conversation,
    ExchangePlace,
    note_once,
    wrap,
    write_lists,
)
from leakaudit.capture.tap.log.capture import Capture
from leakaudit.capture.tap.log.writing import LEFT_OUT

HELD = "DXO"  # key of what a message holds: kind, data and meta
MODEL = "WEIGHTS"  # kind of a model
DIFFERENCE = "WEIGHT_DIFF"  # kind of what a client adds to the model that it received
ROUND = "current_round"  # header of a round; NVFlare counts from 0
OK = "OK"  # code of an answer without an error
STEPS = "NUM_STEPS_CURRENT_ROUND"  # what an answer weighs: steps or records, as the program likes
HISTORY = "filter_history"  # filters through which the content has passed
OTHER_TASKS = ("validate", "evaluate", "submit_model")  # tasks that do not ask for training

Model = Mapping[str, Any]  # name -> array


class TaskTap:
    """The tap of a server, or of one client; its methods may be called by several threads."""

    def __init__(self, capture: Capture, client: str = "") -> None:
        self.capture = capture
        self.talk = Conversation()
        self._ops = ("send", "recv")
        if client:
            self.talk.ranks[client] = capture.rank
            self._ops = ("recv", "send")
        self._models: dict[str, Model] = {}  # client -> the last model sent to it
        self._last: Model = {}  # the last model sent to any client
        self._lock = threading.Lock()

    def request(self, process: Callable[..., Any], runner: Any, client: Any, fl_ctx: Any) -> Any:
        """Let the server choose the task of a client, and log it after the server's filters.

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

        process: ``process_submission`` of a server's runner.
        """
        self.capture.safely(self.receive, client.name, str(task_name), str(task_id), result)
        return process(runner, client, task_name, task_id, result, fl_ctx)

    def instruct(
        self, client: str, task: str, number: str, data: Any, known: Iterable[Client] = ()
    ) -> None:
        """Log a task."""
        content = _content(data)
        with self._lock:
            kind = _kind(task)
            if kind == TRAIN and content.is_model:
                self.talk.begin(client, _round(data))
                self._last = _copy(content, self._last)
                self._models[client] = self._last
            place = self.talk.place(kind, client, known)
            self.talk.places[client, number] = place
            self._write(self._ops[0], content, place)

    def receive(self, client: str, task: str, number: str, result: Any) -> None:
        """Log the result of a task."""
        with self._lock:
            place = self.talk.reply((client, number), _kind(task), client)
            code = str(result.get_return_code(OK))
            if code != OK:
                why = code[:KEYS]
                self.capture.event("error", None, place.rank, why=why, **place.notes)
            else:
                self._write(self._ops[1], _content(result), place, self._models.get(client, {}))

    def _write(
        self, op: str, content: _Content, place: ExchangePlace, model: Model | None = None
    ) -> None:
        if place.kind != TRAIN or not content.is_model:
            notes = {"kind": place.kind, "holds": _named(content), **content.notes, **place.notes}
            self.capture.event("other", None, place.rank, way=op, **notes)
        else:
            write_lists(self.capture, op, [(place, _arrays(content, model or {}), content.notes)])


def listen(module: ModuleType, capture: Capture) -> None:
    """Tap a module of nvflare."""
    name = module.__name__.rpartition(".")[2]
    if name == "server_runner":
        tap = TaskTap(capture)
        wrap(module.ServerRunner, "process_task_request", tap.request)
        wrap(module.ServerRunner, "process_submission", tap.submission)
    elif name == "task_utils":
        note_filters(module, capture.folder)
    else:
        _end_with_main(module, capture)


def note_filters(module: ModuleType, folder: str) -> None:
    """Note which filters run in this process; module: ``nvflare.apis.utils.task_utils``."""

    def noting(get_filters: Callable[..., Any], *args: Any, **named: Any) -> Any:
        filters = get_filters(*args, **named)
        for one in filters:
            note_once(folder, "filter", filter=type(one).__name__)
        return filters

    wrap(module, "get_filters", noting)


def _end_with_main(module: ModuleType, capture: Capture) -> None:
    """Close the log when a process's main function ends: NVFlare may then end it at once."""
    monitor = module.MainProcessMonitor
    run = monitor.run

    def ending(main_func: Callable[..., Any], *args: Any, **named: Any) -> Any:
        def main(**options: Any) -> Any:
            try:
                return main_func(**options)
            finally:
                capture.end()

        return run(main, *args, **named)

    monitor.run = staticmethod(ending)


def _clients(fl_ctx: Any) -> list[str]:
    return [str(client.name) for client in fl_ctx.get_engine().get_clients()]


@dataclass(frozen=True)
class _Content:
    kind: str  # WEIGHTS, WEIGHT_DIFF or another word; empty if the message has no such content
    data: Model
    meta: Mapping[str, Any]  # the program's remarks

    @property
    def is_model(self) -> bool:
        """Whether the content is a model or a difference of models that can be read."""
        return self.kind in (MODEL, DIFFERENCE) and any(map(_is_array, self.data.values()))

    @property
    def notes(self) -> dict[str, Any]:
        notes: dict[str, Any] = {"content": self.kind}
        if isinstance(self.meta.get(STEPS), int | float):
            notes["steps"] = int(self.meta[STEPS])
        history = self.meta.get(HISTORY)
        if isinstance(history, list):
            notes["filters"] = [str(name)[:KEYS] for name in history[:NAMES]]
        beside = [str(name)[:KEYS] for name, value in self.meta.items() if _holds_arrays(value)]
        if beside:
            notes["beside"] = beside[:NAMES]
        return notes


def _content(message: Any) -> _Content:
    held = message.get(HELD)
    if not isinstance(held, dict):
        return _Content("", {}, {})
    kind = held.get("kind")
    data, meta = (
        part if isinstance(part, dict) else {} for part in (held.get("data"), held.get("meta"))
    )
    return _Content(str(getattr(kind, "value", kind))[:KEYS], data, meta)


def _kind(task: str) -> str:
    return task if task in OTHER_TASKS else TRAIN


def _round(message: Any) -> int | None:
    """Return the round that a message names, counted from 1; None if it names none."""
    number = message.get_header(ROUND)
    return number + 1 if type(number) is int else None


def _arrays(content: _Content, model: Model) -> list[Array]:
    """Return the arrays of a message; for a difference, those of the model that it stands for."""
    found: list[Array] = []
    for name, value in content.data.items():
        array = value
        known_as = str(name)[:KEYS]
        notes = {"name": known_as} if known_as else {}
        if not _is_array(value):
            array = None
            notes[LEFT_OUT] = "not an array"
        elif content.kind == DIFFERENCE:
            array = _sum(model.get(name), value)
            if array is None:
                notes[LEFT_OUT] = "a difference from a model that is not known"
        found.append((array, 0, notes))
    return found


def _copy(content: _Content, last: Model) -> Model:
    import numpy as np

    held = {name: _numbers(value) for name, value in content.data.items() if _is_array(value)}
    same = held.keys() == last.keys()
    if same and all(np.array_equal(value, last[name]) for name, value in held.items()):
        return last
    return {name: np.array(value) for name, value in held.items()}


def _sum(model: Any, difference: Any) -> Any:
    """Return a model plus a difference; None if they do not fit."""
    # The sum is in float64, unless subtracting the model from it gives the difference again in the
    # format of the messages.
    import numpy as np

    if model is None or model.shape != tuple(difference.shape):
        return None
    added = _numbers(difference)
    total = model + added
    if np.array_equal(total - model, added):
        return total
    return model.astype(np.float64) + added.astype(np.float64)


def _numbers(value: Any) -> Any:
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value)


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _holds_arrays(value: Any) -> bool:
    """Return whether a remark of the program is a set of arrays, as that of Scaffold."""
    return isinstance(value, dict) and any(map(_is_array, value.values()))


def _named(content: _Content) -> list[str]:
    """Return what a message without a model holds: its kind, and how its values are encoded."""
    if not content.kind:
        return []
    how = content.meta.get("processed_algorithm")
    if how:
        return [content.kind, str(how)[:KEYS]]
    kinds = {type(value).__name__ for value in content.data.values() if not _is_array(value)}
    return [content.kind, *sorted(kinds)][:NAMES]
