"""Which arrays of a program's messages are parameters: the state of a model also holds buffers.

A framework such as Flower sends a model as a list of arrays, with names or without. Running
statistics and counters of normalisation layers travel beside the parameters; they are no function
of one gradient, so they are set apart.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from leakaudit.capture.tap.log.event import Event
from leakaudit.capture.tap.log.reading import RankLog
from leakaudit.capture.tap.messages.streams import FLOATS
from leakaudit.tasks.task import Task

# What the state of a normalisation layer holds besides parameters, by the end of the name.
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
WRAPPERS = ("module.", "_orig_mod.")  # prefixes that DistributedDataParallel and compile add
SHOWN = 6  # names in a remark: a choice


@dataclass(frozen=True)
class MarkedLogs:
    """Logs in which the arrays of messages are marked."""

    # the logs; an array that is a parameter has the notes that `streams` reads, and others are left
    # out
    logs: tuple[RankLog, ...]
    notes: tuple[str, ...]  # remarks for the reader


def sort_out(
    logs: Sequence[RankLog], task: Task | None, tags: frozenset[int] | None = None
) -> MarkedLogs:
    """Mark the arrays that are parameters, and leave out the others.

    Messages that are not lists of arrays are left as they are.

    Args:
        task: the task of the model that is sent, if known: its names and shapes decide. Otherwise
            names decide, or the shapes of a normalisation layer's state.
        tags: tags of the messages to use; None for the first record of arrays of each message.
    """
    messages = [message for log in logs for message in _messages(log, tags)]
    chosen: dict[tuple[str, ...], dict[int, int]] = {}
    for key, group in _alike(messages).items():
        if task is None:
            chosen[key] = _by_habit(group)
        else:
            chosen[key] = _by_model(group, task)
    marked: dict[tuple[int, int], Event] = {}
    left = Counter[str]()
    for log, events in messages:
        places = chosen[_key(events)]
        for event in _marked(events, places):
            marked[id(log), event.seq] = event
        for k, event in enumerate(events):
            if k not in places:
                left[_called(event)] += 1
    found: list[RankLog] = []
    for log in logs:
        used = [_event(log, event, marked) for event in log.events]
        found.append(replace(log, events=tuple(event for event in used if event is not None)))
    return MarkedLogs(tuple(found), tuple(_remarks(logs, left, tags)))


def _event(log: RankLog, event: Event, marked: dict[tuple[int, int], Event]) -> Event | None:
    """Return the event to use in place of one of a log; None for an array that is left out."""
    if "arrays" not in event.notes:
        return event
    return marked.get((id(log), event.seq))


def _messages(log: RankLog, tags: frozenset[int] | None) -> Iterator[tuple[RankLog, list[Event]]]:
    """Yield the complete lists of arrays of a log."""
    used_tags = tags or frozenset({0})
    held: dict[tuple[str, int | None], list[Event]] = defaultdict(list)
    for event in log.events:
        place = event.notes.get("array")
        count = event.notes.get("arrays")
        if type(place) is not int or type(count) is not int:
            continue
        events = held[event.op, event.peer]
        if place == 0:
            events.clear()
        if place == len(events):
            events.append(event)
        if place + 1 == count == len(events):
            used = [e for e in events if e.tag in used_tags]
            if used:
                yield log, used
            held.pop((event.op, event.peer))


def _key(events: Sequence[Event]) -> tuple[str, ...]:
    """Return what is equal in messages that hold the same arrays."""
    return tuple(f"{event.notes.get('name', '')} {event.shape}" for event in events)


def _alike(
    messages: Iterable[tuple[RankLog, list[Event]]],
) -> dict[tuple[str, ...], list[tuple[RankLog, list[Event]]]]:
    """Group messages that hold arrays of the same names and shapes."""
    groups: dict[tuple[str, ...], list[tuple[RankLog, list[Event]]]] = defaultdict(list)
    for log, events in messages:
        groups[_key(events)].append((log, events))
    return groups


def _by_model(group: Sequence[tuple[RankLog, list[Event]]], task: Task) -> dict[int, int]:
    """Return place of an array -> number of the model's parameter; empty if they do not fit."""
    _, events = group[0]
    layout = task.layout
    numbers = {name: k for k, name in enumerate(layout.names)}
    shapes = [event.shape for event in events]
    names = [_bare(str(event.notes.get("name", ""))) for event in events]
    if set(numbers) <= set(names):
        found = {k: numbers[name] for k, name in enumerate(names) if name in numbers}
        fits = all(shapes[k] == layout.shapes[number] for k, number in found.items())
        if fits and len(found) == len(numbers):
            return found
        return {}
    state = {name: tuple(value.shape) for name, value in task.module.state_dict().items()}
    if shapes == list(state.values()):
        return {k: numbers[name] for k, name in enumerate(state) if name in numbers}
    # Another implementation of the model, with names of its own.
    rest = [k for k, event in enumerate(events) if not _is_named_buffer(event)]
    if [shapes[k] for k in rest] == list(layout.shapes):
        return {k: number for number, k in enumerate(rest)}
    return {}


def _by_habit(group: Sequence[tuple[RankLog, list[Event]]]) -> dict[int, int]:
    """Return place of an array -> number, for all arrays but those that look like buffers."""
    _, events = group[0]
    others = {k for k, event in enumerate(events) if _is_named_buffer(event)}
    if not any("name" in event.notes for event in events):
        others |= _unnamed_statistics(group)
    others |= {k for k, event in enumerate(events) if event.dtype not in FLOATS}
    rest = [k for k in range(len(events)) if k not in others]
    return {k: number for number, k in enumerate(rest)}


def _unnamed_statistics(group: Sequence[tuple[RankLog, list[Event]]]) -> set[int]:
    """Return the places of mean, variance and counter of normalisation layers.

    Such a layer's state is weight (c,), bias (c,), mean (c,), variance (c,) >= 0 and a counter ().
    """
    _, events = group[0]
    found: set[int] = set()
    for k in range(4, len(events)):
        before = {events[j].shape for j in range(k - 4, k)}
        if events[k].shape != () or len(before) != 1 or len(before.pop()) != 1:
            continue
        variances = [log.tensor(held[k - 1]) for log, held in group if held[k - 1].kept]
        if all(bool((variance >= 0).all()) for variance in variances):
            found |= {k - 2, k - 1, k}
    return found


def _is_named_buffer(event: Event) -> bool:
    return str(event.notes.get("name", "")).endswith(BUFFERS)


def _bare(name: str) -> str:
    """Return a name without the prefixes of wrappers."""
    for prefix in WRAPPERS:
        name = name.removeprefix(prefix)
    return name


def _marked(events: Sequence[Event], places: dict[int, int]) -> Iterator[Event]:
    """Yield the parameters of a message with the notes that `streams` reads."""
    sizes = [events[k].numel for k in places]
    last = max(places, default=-1)
    for k, number in places.items():
        noted = {"parameters": [number], "of": len(places), "last": k == last}
        notes = {**events[k].notes, **noted}
        if k == min(places):
            notes["sizes"] = sizes
        yield replace(events[k], notes=notes)


def _called(event: Event) -> str:
    name = event.notes.get("name")
    if name:
        return str(name)
    return f"array {event.notes['array']}"


def _remarks(
    logs: Iterable[RankLog], left: Counter[str], tags: frozenset[int] | None
) -> Iterator[str]:
    if left:
        names = ", ".join(list(left)[:SHOWN])
        if len(left) > SHOWN:
            names = f"{names}, ..."
        yield f"arrays that travel beside the parameters are not in the trace: {names}"
    others = {event.tag for log in logs for event in log.events if "arrays" in event.notes} - {0}
    if others and tags is None:
        yield (
            "the messages hold several records of arrays, and only the first is in the trace; "
            "[messages] tags = [1] chooses another"
        )
