"""Which arrays of a program's messages are parameters: the state of a model also holds buffers."""

# A framework such as Flower sends a model as a list of arrays, with names or without. Running
# statistics and counters of normalisation layers travel beside the parameters. They do not follow
# from one gradient and are set apart.

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from leakaudit.capture.tap.log.reading import Event, RankLog
from leakaudit.capture.tap.messages.streams import FLOATS
from leakaudit.tasks.task import Task

# What the state of a normalisation layer holds besides parameters, by the end of the name.
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
WRAPPERS = ("module.", "_orig_mod.")  # prefixes that DistributedDataParallel and compile add
SHOWN = 6  # names in a remark: a choice
ABOUT_ALL = ("sizes", "names")  # notes with an entry for each parameter

_Arrays = tuple[RankLog, list[Event]]  # the arrays of one message, and their log


def sort_out(
    logs: Sequence[RankLog], task: Task | None, tags: frozenset[int] | None = None
) -> tuple[tuple[RankLog, ...], tuple[str, ...]]:
    """Give arrays that are parameters the notes that `streams` reads; omit others, with remarks.

    Messages that are not lists of arrays are left as they are. The names and the shapes of a model
    decide, if it is known; otherwise names, or the shapes of a normalisation layer's state. tags:
    of the messages to use; None for the first record of arrays of each message.
    """
    messages = [message for log in logs for message in _messages(log, tags)]
    alike: dict[tuple[str, ...], list[_Arrays]] = defaultdict(list)
    for log, events in messages:
        alike[_key(events)].append((log, events))
    chosen: dict[tuple[str, ...], dict[int, int]] = {}
    for key, group in alike.items():
        chosen[key] = _by_habit(group) if task is None else _by_model(group[0][1], task)
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
        used: list[Event] = []
        for event in log.events:
            if "arrays" not in event.notes:
                used.append(event)
            elif (id(log), event.seq) in marked:
                used.append(marked[id(log), event.seq])
        found.append(replace(log, events=tuple(used)))
    return tuple(found), tuple(_remarks(logs, left, tags))


def _messages(log: RankLog, tags: frozenset[int] | None) -> Iterator[_Arrays]:
    used_tags = tags or frozenset({0})
    held: dict[tuple[str, int | None], list[Event]] = defaultdict(list)
    for event in log.events:
        place = event.notes.get("array")
        count = event.notes.get("arrays")
        if place is None or count is None:
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
    return tuple(f"{event.notes.get('name', '')} {event.shape}" for event in events)


def _by_model(events: Sequence[Event], task: Task) -> dict[int, int]:
    """Return place of an array -> number of the model's parameter; empty if they do not fit."""
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


def _by_habit(group: Sequence[_Arrays]) -> dict[int, int]:
    """Return place of an array -> number, for all arrays but those that look like buffers."""
    _, events = group[0]
    others = {k for k, event in enumerate(events) if _is_named_buffer(event)}
    if not any("name" in event.notes for event in events):
        others |= _unnamed_statistics(group)
    others |= {k for k, event in enumerate(events) if event.dtype not in FLOATS}
    rest = [k for k in range(len(events)) if k not in others]
    return {k: number for number, k in enumerate(rest)}


def _unnamed_statistics(group: Sequence[_Arrays]) -> set[int]:
    """Return the places of mean, variance and counter of normalisation layers."""
    # Their state is weight, bias, mean, variance >= 0, all (c,), and a counter ().
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


def only_trained(logs: Sequence[RankLog], names: Sequence[str]) -> tuple[RankLog, ...]:
    """Number parameters among the trained ones, if these have such names."""
    # Hooks number all parameters of a model. One whose frozen parameters are constants, such as a
    # torch.export program, consists of the others.
    places = _places(logs, names)
    return tuple(
        replace(log, events=tuple(_numbered(event, places) for event in log.events)) for log in logs
    )


def _places(logs: Sequence[RankLog], names: Sequence[str]) -> Mapping[str, dict[int, int]]:
    """Return, for each stream, the place of a parameter among all -> its place in `names`."""
    found: dict[str, dict[int, int]] = {}
    for log in logs:
        for event in log.events:
            everything = event.notes.get("names")
            frozen = event.notes.get("frozen")
            if everything is None or not frozen:
                continue
            trained = [k for k, name in enumerate(everything) if name not in frozen]
            if [everything[k] for k in trained] == list(names):
                lane = str(event.notes.get("lane", ""))
                found[lane] = {k: place for place, k in enumerate(trained)}
    return found


def _numbered(event: Event, places: Mapping[str, dict[int, int]]) -> Event:
    place = places.get(str(event.notes.get("lane", "")))
    held = event.notes.get("parameters")
    if place is None or held is None or not all(k in place for k in held):
        return event
    notes: dict[str, Any] = dict(event.notes)
    for name in ABOUT_ALL:
        noted = notes.get(name)
        if noted is not None and len(noted) > max(place):
            notes[name] = [noted[k] for k in place]
    notes.pop("frozen", None)
    notes |= {"parameters": [place[k] for k in held], "of": len(place)}
    return replace(event, notes=notes)
