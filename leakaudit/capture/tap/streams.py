"""From events to messages: which tensors of a channel form a model and belong together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from leakaudit.capture.tap.layouts import Place
from leakaudit.capture.tap.log import LEFT_OUT
from leakaudit.capture.tap.reading import Event, RankLog
from leakaudit.errors import LeakauditError

FLOATS = ("float16", "bfloat16", "float32", "float64")
POINT = ("send", "gather", "reduce", "scatter")  # operations with one receiver
POSITION = "position"  # the note of the position on a channel, if messages may be missing
Wire: TypeAlias = tuple[int, int | None, str]  # src, dst (None: all others), op


@dataclass(frozen=True)
class LoggedMessage:
    """One vector of a model's length on one channel.

    Attributes:
        src: rank that sent it.
        dst: rank that receives it; None if all others do.
        op: the operation that sent it.
        index: its position among the messages of its channel; as noted by an import.
        tag: tag of the message.
        log: the log that contains it.
        pieces: the tensors of which it consists. A note ``parameters`` of a piece lists the
            parameters in it; pieces without the note contain all parameters in order.
    """

    src: int
    dst: int | None
    op: str
    index: int
    tag: int
    log: RankLog
    pieces: tuple[Event, ...]

    @property
    def kept(self) -> bool:
        """Whether the complete message is in the log."""
        return all(piece.kept for piece in self.pieces)

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the message."""
        found: torch.dtype = getattr(torch, self.pieces[0].dtype or "float32")
        return found

    @property
    def place(self) -> tuple[Any, ...]:
        """Location of its payload; equal for messages with the same bytes of a log as payload."""
        return (self.log.path, *(piece.offset for piece in self.pieces))

    def note(self, name: str) -> Any:
        """Return a note of the program about the message.

        Args:
            name: name of the note.

        Returns:
            Its value, None if there is no such note.
        """
        return self.pieces[0].notes.get(name)

    def value(self, slices: Sequence[Place]) -> Tensor:
        """Return the vector (d,).

        Args:
            slices: place of each parameter in the vector, in the order of the message.

        Raises:
            LeakauditError: its pieces are not the model's parameters.
        """
        tensors = [self.log.tensor(piece).reshape(-1) for piece in self.pieces]
        noted = "parameters" in self.pieces[0].notes
        if len(tensors) == 1 and not noted and _in_order(slices):
            return tensors[0]
        flat = torch.cat(tensors)
        out = torch.empty(max(s.stop for s in slices), dtype=self.dtype)
        at = 0
        for parameter in self._parameters(len(slices)):
            target = slices[parameter]
            width = target.stop - target.start
            out[target.start : target.stop] = target.arranged(flat[at : at + width])
            at += width
        return out

    def _parameters(self, count: int) -> Sequence[int]:
        """Return the indices of the parameters in the order of the message."""
        numbers: list[int] = []
        for piece in self.pieces:
            numbers.extend(piece.notes.get("parameters", ()))
        if not numbers:
            return range(count)
        if sorted(numbers) != list(range(count)):
            raise LeakauditError(
                f"message {self.index} of rank {self.src} does not hold each of {count} parameters "
                "once"
            )
        return numbers


def _in_order(slices: Sequence[Place]) -> bool:
    """Return whether places follow each other from 0 on without gaps, in the model's own axes."""
    end = 0
    for part in slices:
        if part.start != end or part.axes:
            return False
        end = part.stop
    return True


@dataclass(frozen=True)
class Streams:
    """All messages of a log.

    Attributes:
        messages: by channel, in the order in which they were sent.
        others: description -> number, for tensors that are not part of a model.
    """

    messages: dict[Wire, list[LoggedMessage]]
    others: Counter[str]

    def __iter__(self) -> Iterator[LoggedMessage]:
        """All messages."""
        for stream in self.messages.values():
            yield from stream


def assemble(
    logs: Iterable[RankLog],
    sizes: Sequence[int],
    tags: frozenset[int] | None = None,
    by_tag: bool = False,
) -> Streams:
    """Combine tensors into models.

    Args:
        logs: one per rank.
        sizes: lengths of the parameters if sent one by one, followed by the model's own length.
        tags: tags of the messages to use; None for all.
        by_tag: whether each tag is a separate stream, so that models on several tags may overlap.
    """
    others = Counter[str]()
    pending: dict[tuple[Wire, int | None], list[Event]] = defaultdict(list)
    streams: dict[tuple[Wire, int | None], list[LoggedMessage]] = defaultdict(list)
    for log in logs:
        for event in log.events:
            if not _may_be_model(event, tags):
                what = event.dtype or event.notes.get(LEFT_OUT, "")
                others[f"{event.op} {what}"] += 1
                continue
            wire = _wire(log, event)
            key = (wire, event.tag if by_tag else None)
            whole = _add(pending[key], event, sizes)
            if whole is None:
                others[f"{event.op} of {event.numel} numbers"] += 1
            elif whole:
                pieces = tuple(pending.pop(key))
                index = _position(pieces[0], len(streams[key]))
                streams[key].append(LoggedMessage(*wire, index, event.tag, log, pieces))
    messages: dict[Wire, list[LoggedMessage]] = {}
    for (wire, _), found in streams.items():
        messages.setdefault(wire, []).extend(found)
    return Streams(messages, others)


def _position(event: Event, counted: int) -> int:
    """Return the position of a message on its channel: as noted by an import, else as counted."""
    noted = event.notes.get(POSITION)
    if type(noted) is int and 0 <= noted < 1 << 31:
        return noted
    return counted


def _may_be_model(event: Event, tags: frozenset[int] | None) -> bool:
    """Return whether an event contains floating-point numbers, with a tag in use."""
    if event.dtype not in FLOATS:
        return False
    if tags is None or event.op not in ("send", "recv"):
        return True
    return event.tag in tags


def _wire(log: RankLog, event: Event) -> Wire:
    """Return the channel of an event; a received message belongs to the channel of its sender."""
    if event.op == "recv" and event.peer is not None:
        return event.peer, log.rank, "recv"
    if event.op in POINT:
        return log.rank, event.peer, event.op
    return log.rank, None, event.op


def _add(held: list[Event], event: Event, sizes: Sequence[int]) -> bool | None:
    """Add an event to the pieces of the current message.

    A model is sent as one tensor, as its parameters one by one, or in buckets that list their
    parameters. A tensor that does not continue the pieces begins a new message if it can be its
    first piece.

    Returns:
        Whether the message is complete; None if the event is not part of one.
    """
    parameters = sizes[:-1]
    whole = sizes[-1]
    if "parameters" in event.notes:
        held.append(event)
        if event.op != "model" and not event.notes.get("last"):
            return False
        if sum(piece.numel for piece in held) == whole:
            return True
        held.clear()
        return False
    if event.numel == whole:
        held[:] = [event]
        return True
    if len(held) < len(parameters) and event.numel == parameters[len(held)]:
        held.append(event)
        return len(held) == len(parameters)
    if event.numel == parameters[0]:
        held[:] = [event]
        return False
    return None
