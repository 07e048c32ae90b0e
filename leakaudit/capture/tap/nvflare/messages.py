"""The messages of NVFlare: what a task and its result hold, and how it is logged.

A message of NVFlare is a dictionary, so this module imports neither torch nor nvflare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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

HELD = "DXO"  # key of what a message holds: kind, data and meta
MODEL = "WEIGHTS"  # kind of a model
DIFFERENCE = "WEIGHT_DIFF"  # kind of what a client adds to the model that it received
ROUND = "current_round"  # header of a round; NVFlare counts from 0
OK = "OK"  # code of an answer that is no error
STEPS = "NUM_STEPS_CURRENT_ROUND"  # what an answer weighs: steps or records, as the program likes
HISTORY = "filter_history"  # filters through which the content has passed
OTHER_TASKS = ("validate", "evaluate", "submit_model")  # tasks that do not ask for training


@dataclass(frozen=True)
class MessageContent:
    """What a message holds."""

    kind: str  # WEIGHTS, WEIGHT_DIFF or another word; empty if the message has no such content
    data: Mapping[str, Any]  # name -> array, for weights
    meta: Mapping[str, Any]  # the program's remarks

    @property
    def is_model(self) -> bool:
        """Whether the content is a model or a difference of models that can be read."""
        return self.kind in (MODEL, DIFFERENCE) and any(map(_is_array, self.data.values()))

    @property
    def notes(self) -> dict[str, Any]:
        """The notes of each event of the message."""
        found: dict[str, Any] = {"content": self.kind}
        if isinstance(self.meta.get(STEPS), int | float):
            found["steps"] = int(self.meta[STEPS])
        history = self.meta.get(HISTORY)
        if isinstance(history, list):
            found["filters"] = [str(name)[:KEYS] for name in history[:NAMES]]
        beside = [str(name)[:KEYS] for name, value in self.meta.items() if _holds_arrays(value)]
        if beside:
            found["beside"] = beside[:NAMES]
        return found


def content_of(message: Any) -> MessageContent:
    """Return what a message holds."""
    held = message.get(HELD)
    if not isinstance(held, dict):
        return MessageContent("", {}, {})
    kind = held.get("kind")
    data = held.get("data")
    meta = held.get("meta")
    if not isinstance(data, dict):
        data = {}
    if not isinstance(meta, dict):
        meta = {}
    return MessageContent(str(getattr(kind, "value", kind))[:KEYS], data, meta)


def kind_of(task: str) -> str:
    """Return what a task is about: training, or its own name."""
    if task in OTHER_TASKS:
        return task
    return TRAIN


def round_in(message: Any) -> int | None:
    """Return the round that a message names, counted from 1; None if it names none."""
    number = message.get_header(ROUND)
    if type(number) is not int:
        return None
    return int(number) + 1


def write(
    capture: Capture,
    op: str,
    message: Any,
    place: ExchangePlace,
    model: Mapping[str, Any] | None = None,
    is_answer: bool = False,
) -> None:
    """Log a message."""
    content = content_of(message)
    code = str(message.get_return_code(OK))
    if is_answer and code != OK:
        capture.event("error", None, place.rank, why=code[:KEYS], **place.notes)
    elif place.kind != TRAIN or not content.is_model:
        notes = {"kind": place.kind, "holds": _named(content), **content.notes, **place.notes}
        capture.event("other", None, place.rank, way=op, **notes)
    else:
        arrays = arrays_of(content, model)
        write_lists(capture, op, [ArrayList(arrays, place, notes=content.notes)])


def arrays_of(content: MessageContent, model: Mapping[str, Any] | None = None) -> list[NamedArray]:
    """Return the arrays of a message; for a difference, those of the model that it stands for."""
    found: list[NamedArray] = []
    for name, value in content.data.items():
        array = value
        why = ""
        if not _is_array(value):
            array = None
            why = "not an array"
        elif content.kind == DIFFERENCE:
            array = _sum((model or {}).get(name), value)
            if array is None:
                why = "a difference from a model that is not known"
        found.append(NamedArray(array, str(name)[:KEYS], why=why))
    return found


def copy_of(content: MessageContent, last: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a copy of a model, which the program may change afterwards."""
    import numpy as np

    held: dict[str, Any] = {}
    for name, value in content.data.items():
        if _is_array(value):
            held[name] = _numbers(value)
    same = held.keys() == last.keys()
    if same and all(np.array_equal(value, last[name]) for name, value in held.items()):
        return last
    return {name: np.array(value) for name, value in held.items()}


def _sum(model: Any, difference: Any) -> Any:
    """Return a model plus a difference; None if they do not fit.

    The sum has the format of the messages if the model subtracted from it is the difference again,
    as it is after a client has subtracted models of this format. Otherwise it is in float64.
    """
    import numpy as np

    if model is None or model.shape != tuple(difference.shape):
        return None
    added = _numbers(difference)
    total = model + added
    if np.array_equal(total - model, added):
        return total
    return model.astype(np.float64) + added.astype(np.float64)


def _numbers(value: Any) -> Any:
    """Return an array or tensor as an array of numpy."""
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value)


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _holds_arrays(value: Any) -> bool:
    """Return whether a remark of the program is a set of arrays, as that of Scaffold."""
    return isinstance(value, dict) and any(map(_is_array, value.values()))


def _named(content: MessageContent) -> list[str]:
    """Return what a message without a model holds: its kind, and how its values are encoded."""
    if not content.kind:
        return []
    how = content.meta.get("processed_algorithm")
    if how:
        return [content.kind, str(how)[:KEYS]]
    kinds = {type(value).__name__ for value in content.data.values() if not _is_array(value)}
    return [content.kind, *sorted(kinds)][:NAMES]
