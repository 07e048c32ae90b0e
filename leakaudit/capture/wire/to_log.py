"""Log imported messages as a tap would have logged them, for whatever reads such a log."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from leakaudit.capture.tap.guessing.observed import ChannelVectors
from leakaudit.capture.tap.log.writing import Log
from leakaudit.capture.tap.merge import IMPORTED
from leakaudit.capture.tap.messages import layouts
from leakaudit.capture.tap.messages.arranged import ArrangedLog
from leakaudit.capture.tap.messages.description import MessageDescription
from leakaudit.capture.tap.messages.streams import POSITION
from leakaudit.capture.wire.folder import Folder, FolderMessage, listed
from leakaudit.core.errors import LeakauditError, suggest
from leakaudit.traces.vocabulary import Vocabulary


def write(
    folder: Folder, logs: Path, description: MessageDescription | None = None
) -> tuple[str, ...]:
    """Write one log for each sending node; `description` is None if it is to be inferred."""
    chosen: dict[tuple[str | None, int], Sequence[int]] = {}
    extra: set[str] = set()
    if description is not None:
        for message in folder.messages:
            key = (message.line.kind, message.line.tag)
            if key not in chosen and _is_used(description, message):
                chosen[key] = parameters(description, message)
                names = message.payload.names
                extra.update(names[k] for k in range(len(names)) if k not in chosen[key])

    ordered = sorted(folder.messages, key=_sender)
    for src, sent in groupby(ordered, key=_sender):
        log = Log(logs, src, world=folder.nodes, **{IMPORTED: True})
        for message in sent:
            every = range(len(message.payload.shapes))
            held = chosen.get((message.line.kind, message.line.tag), every)
            _log(log, message, held, message.line.round - folder.first)
        if src in folder.cut_nodes:
            log.abandon()
        else:
            log.close()
        if log.trouble:
            raise LeakauditError(f"cannot copy the messages to {logs}: {log.trouble}")
    return tuple(sorted(extra))


def _sender(message: FolderMessage) -> int:
    return message.line.src


def _is_used(description: MessageDescription, message: FolderMessage) -> bool:
    return description.tags is None or message.line.tag in description.tags


def _log(log: Log, message: FolderMessage, held: Sequence[int], position: int) -> None:
    try:
        tensors = message.payload.read()
    except LeakauditError as error:
        raise LeakauditError(f"{message.where}: {error}") from None
    notes: dict[str, str | int] = {POSITION: position}
    if message.line.kind:
        notes["kind"] = message.line.kind
    for dst in message.dst:
        for k in held:
            log.write("send", tensors[k], peer=dst, tag=message.line.tag, **notes)


def parameters(description: MessageDescription, message: FolderMessage) -> Sequence[int]:
    """Return the tensors of a message that are the model's parameters, in the described order."""
    layout = description.task.layout
    names = message.payload.names
    shapes = message.payload.shapes
    named = set(layout.names) & set(names)
    if named and not description.order:
        missing = [name for name in layout.names if name not in names]
        if missing:
            raise LeakauditError(
                f"{message.where}: the message lacks {missing[0]!r} and {len(missing) - 1} other "
                "parameters of the model; record complete messages"
            )
        chosen: Sequence[int] = [names.index(name) for name in layout.names]
    else:
        chosen = range(len(shapes))
    if len(chosen) == 1 and len(layout.names) > 1:
        _check_length(description, message)
        return chosen
    if names and not named and not description.order:
        raise LeakauditError(
            f"{message.where}: tensors {listed(message.payload)} do not have the names of the "
            f"model's parameters ({', '.join(layout.names)}); state which is which: "
            f"{_example(description, shapes)}"
        )
    if len(chosen) != len(layout.names):
        raise LeakauditError(
            f"{message.where}: {len(chosen)} tensors {listed(message.payload)}, but the model has "
            f"{len(layout.names)} parameters; record complete messages of one tensor, or of one "
            "for each parameter"
        )
    _check_shapes(description, message, chosen)
    return chosen


def _check_length(description: MessageDescription, message: FolderMessage) -> None:
    (shape,) = message.payload.shapes
    length = math.prod(shape)
    size = description.task.layout.size
    if length != size:
        raise LeakauditError(
            f"{message.where}: {length} numbers, but the model has {size}; record complete "
            "messages, and select other messages by [messages] tags"
        )


def _check_shapes(
    description: MessageDescription, message: FolderMessage, chosen: Sequence[int]
) -> None:
    entries = description.order or description.task.layout.names
    for entry, k, place in zip(entries, chosen, description.places, strict=True):
        shape = message.payload.shapes[k]
        if shape == place.shape or shape == (place.stop - place.start,):
            continue
        what = repr(message.payload.names[k]) if message.payload.names else f"number {k + 1}"
        raise LeakauditError(
            f"{message.where}: tensor {what} has shape {list(shape)}, but {entry} has shape "
            f"{list(place.shape)}; {_example(description, message.payload.shapes)}"
        )


def _example(description: MessageDescription, shapes: Sequence[tuple[int, ...]]) -> str:
    """Return an order that fits the shapes; a general example if there is none."""
    layout = description.task.layout
    found = layouts.arrangements(shapes)
    if len(found) == 1 and len(shapes) == len(layout.names):
        order = layouts.renamed(found[0][1], layout.names)
        with_axes = layouts.places(order, layout)
        if [place.shape for place in with_axes] == list(shapes):
            entries = ", ".join(f'"{entry}"' for entry in order)
            return f"the shapes fit [messages] order = [{entries}]"
    return (
        "list the parameters in the order of the message, e.g. [messages] order = "
        '["layer1.bias", "layer1.weight.T"], where .T means stored as (in, out)'
    )


def check_complete(folder: Folder, seen: ChannelVectors, description: MessageDescription) -> None:
    """Reject messages that would be ignored because they do not have the size of the model."""
    held: set[tuple[object, ...]] = set()
    for stream in seen.streams.values():
        held.update((m.src, m.dst, m.index, m.tag, m.note("kind") or "") for m in stream)
    for message in folder.messages:
        line = message.line
        if not _is_used(description, message):
            continue
        for dst in message.dst:
            if (line.src, dst, line.round - folder.first, line.tag, line.kind or "") not in held:
                raise LeakauditError(
                    f"{message.where}: tensors {listed(message.payload)} are not a model of "
                    f"{seen.sizes[-1]} numbers; leave such messages out, or give them another tag "
                    "and select the others by [messages] tags"
                )


def check_kinds(folder: Folder, plan: ArrangedLog) -> None:
    """Reject kinds that the protocol does not send, or sends elsewhere."""
    description = plan.description
    vocabulary = Vocabulary(description.protocol, description.params, plan.graph, None, {})
    known = vocabulary.kinds
    first: dict[str, FolderMessage] = {}
    for message in folder.messages:
        if message.line.kind and _is_used(description, message):
            first.setdefault(message.line.kind, message)
    for kind, message in first.items():
        if known is not None and kind not in known:
            raise LeakauditError(
                f"{message.where}: {description.protocol} does not send messages of kind "
                f"{kind!r}{suggest(kind, known)}"
            )
    _check_directions(plan, known or {})


def _check_directions(plan: ArrangedLog, known: Mapping[str, bool]) -> None:
    """Reject messages whose kind the protocol sends only from other nodes."""
    for sent in plan.sent:
        noted = sent.message.note("kind")
        if noted in known and noted != sent.kind:
            raise LeakauditError(
                f"messages.jsonl: a message of round {sent.message.index} (counted from the "
                f"first) from node {sent.message.src} has kind {noted!r}, but such a message of "
                f"{plan.description.protocol} has kind {sent.kind!r}"
            )
