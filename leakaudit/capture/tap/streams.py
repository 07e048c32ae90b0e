"""From events to messages: which tensors of a wire make up a model, and which of them belong together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from leakaudit.capture.tap.reading import Event, RankLog
from leakaudit.errors import LeakauditError

FLOATS = ("float16", "bfloat16", "float32", "float64")
POINT = ("send", "gather", "reduce", "scatter")  # operations with one receiver


@dataclass(frozen=True)
class Message:
    """One vector of a model's length on one wire.

    dst: None where all others get it. index: its place among those of its wire. pieces: the tensors that it is made of, with, for each,
    the parameters that it holds, None where it holds the next ones in order.
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
        """Whether all of it is in the log."""
        return all(p.kept for p in self.pieces)

    @property
    def dtype(self) -> torch.dtype:
        """Number format on the wire."""
        found: torch.dtype = getattr(torch, self.pieces[0].dtype or "float32")
        return found

    @property
    def place(self) -> tuple[Any, ...]:
        """Equal for messages whose payload is the same bytes of a log."""
        return (self.log.path, *(p.offset for p in self.pieces))

    def note(self, name: str) -> Any:
        """Return what the program itself said of the message, None where it said nothing."""
        return self.pieces[0].notes.get(name)

    def value(self, slices: Sequence[slice]) -> Tensor:
        """Return the vector (d,); slices: where each parameter, in the order of the wire, lies in it.

        Raises LeakauditError where its pieces are not the model's parameters.
        """
        tensors = [self.log.tensor(p).reshape(-1) for p in self.pieces]
        if (
            len(tensors) == 1
            and "parameters" not in self.pieces[0].notes
            and all(a.stop == b.start for a, b in _pairs(slices))
        ):
            return tensors[0]
        numbers = [k for p in self.pieces for k in p.notes.get("parameters", ())] or range(
            len(slices)
        )
        if sorted(numbers) != list(range(len(slices))):
            raise LeakauditError(
                f"message {self.index} of rank {self.src} does not hold each of {len(slices)} parameters once"
            )
        out, flat, at = (
            torch.empty(max(s.stop for s in slices), dtype=self.dtype),
            torch.cat(tensors),
            0,
        )
        for k in numbers:
            width = slices[k].stop - slices[k].start
            out[slices[k]] = flat[at : at + width]
            at += width
        return out


def _pairs(slices: Sequence[slice]) -> Iterable[tuple[slice, slice]]:
    return zip([slice(0, 0), *slices[:-1]], slices, strict=True)


@dataclass
class Streams:
    """All messages of a log, by (src, dst, op), in the order in which they were sent; others: tensors that are no part of a model."""

    messages: dict[tuple[int, int | None, str], list[Message]] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Any:
        """All messages."""
        return (m for stream in self.messages.values() for m in stream)


def assemble(
    logs: Iterable[RankLog],
    sizes: Sequence[int],
    tags: frozenset[int] | None = None,
    by_tag: bool = False,
) -> Streams:
    """Put tensors together into models.

    sizes: lengths of the parameters as they are sent one by one, the model's own last. tags: of the messages that count, None for all.
    by_tag: whether each tag is a stream of its own.
    """
    out, open_ = Streams(), defaultdict[Any, list[Event]](list)
    streams: dict[Any, list[Message]] = defaultdict(list)
    for log in logs:
        for event in log.events:
            wire = (log.rank, event.peer if event.op in POINT else None, event.op)
            if event.op == "recv" and event.peer is not None:
                wire = (event.peer, log.rank, "recv")
            if event.dtype not in FLOATS or (
                tags is not None and event.tag not in tags and event.op in ("send", "recv")
            ):
                out.others[f"{event.op} {event.dtype or event.notes.get('left_out', '')}"] += 1
                continue
            key = (*wire, event.tag) if by_tag else wire
            done = _next(open_[key], event, sizes)
            if done is None:
                out.others[f"{event.op} of {event.numel} numbers"] += 1
            elif done:
                index = len(streams[key])
                streams[key].append(Message(*wire, index, event.tag, log, tuple(open_.pop(key))))
    for key, found in streams.items():
        out.messages.setdefault(key[:3], []).extend(found)
    return out


def _next(held: list[Event], event: Event, sizes: Sequence[int]) -> bool | None:
    """Add an event to what is held of a message; returns whether the message is whole, None where the event is no part of one."""
    parts, whole = sizes[:-1], sizes[-1]
    if "parameters" in event.notes:
        held.append(event)
        if event.op == "model" or event.notes.get("last"):
            if sum(e.numel for e in held) == whole:
                return True
            held.clear()
        return False
    if event.numel == whole:
        held[:] = [event]
        return True
    if len(held) < len(parts) and event.numel == parts[len(held)]:
        held.append(event)
        return len(held) == len(parts)
    if event.numel == parts[0]:
        held[:] = [event]
        return False
    return None
