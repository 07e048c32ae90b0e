"""From events to messages: which tensors of a channel form a model and belong together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from leakaudit.capture.fitting.sketch import ROWS, WIDTH
from leakaudit.capture.tap.hooks.training import START
from leakaudit.capture.tap.log.capture import HOOK
from leakaudit.capture.tap.log.layers import REST, SEED, SKETCH, WHOLE
from leakaudit.capture.tap.log.reading import Event, RankLog
from leakaudit.capture.tap.log.writing import LEFT_OUT
from leakaudit.capture.tap.messages.layouts import ParameterPlace
from leakaudit.core.errors import LeakauditError

FLOATS = ("float16", "bfloat16", "float32", "float64")
POINT = ("send", "gather", "reduce", "scatter", "alltoall")  # operations with one receiver
POSITION = "position"  # the note of the position on a channel, if messages may be missing
SHOWN = 8  # operations in one line
MODELS = ("model", START)  # operations that stand for a model, which need not travel
GRADIENTS = ("ddp", "fsdp", "opacus", "model")  # logged together, with their places in one model


class LogChannel(NamedTuple):
    """One channel of a log."""

    src: int  # rank that sends
    dst: int | None  # rank that receives; None if all others do
    op: str
    # what keeps messages apart that are otherwise alike, such as a process group or one of several
    # models; empty if there is nothing
    lane: str = ""


@dataclass(frozen=True)
class LoggedMessage:
    """One vector of a model's length on one channel."""

    src: int
    dst: int | None  # None if all others receive it
    op: str  # the operation that sent it
    index: int  # its position among the messages of its channel; as noted by an import
    tag: int
    log: RankLog
    # the tensors of which it consists. A note `parameters` of a piece lists the parameters in it;
    # pieces without the note contain all parameters in order.
    pieces: tuple[Event, ...]
    slices: Sequence[ParameterPlace]  # of each parameter, in the order of the message
    # what is recorded of the parameters that were left out (`layers.REST`)
    rest: tuple[Event, ...] = ()

    @property
    def kept(self) -> bool:
        """Whether the complete message is in the log."""
        return all(piece.kept for piece in self.pieces)

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the message, in which its `value` is exact."""
        kinds: list[torch.dtype] = []
        for piece in self.pieces:
            if not piece.numel:
                continue
            kinds.append(getattr(torch, piece.dtype or "float32"))
            if _factor(piece) != 1:
                kinds.append(torch.float32)  # holds a product with the number of ranks
        return reduce(torch.promote_types, kinds)

    @property
    def group(self) -> tuple[int, ...] | None:
        """Ranks of its process group; None for all ranks."""
        noted = self.note("group")
        return None if noted is None else tuple(noted)

    @property
    def covers(self) -> tuple[int, ...] | None:
        """Places of the parameters that it contains, in order; None for all of them."""
        places = set(_listed(self.pieces))
        if not places or len(places) == self.note("of"):
            return None
        return tuple(sorted(places))

    @property
    def place(self) -> tuple[Any, ...]:
        """Location of its payload; equal for messages with the same bytes of a log as payload."""
        return (self.log.path, *(piece.offset for piece in self.pieces))

    @property
    def lane(self) -> str:
        """What keeps it apart from other messages on its channel."""
        return str(self.note("lane") or "")

    def note(self, name: str) -> Any:
        """Return a note about the message; None if there is none."""
        return self.pieces[0].notes.get(name)

    @property
    def value(self) -> Tensor:
        """The vector (d,)."""
        return self._filled(self.pieces)

    @property
    def whole(self) -> Tensor | None:
        """The vector (d,) with what was left out; None if some of it is not in the log."""
        others = [piece for piece in self.rest if piece.notes[REST] == WHOLE and piece.kept]
        held = {*(self.covers or range(len(self.slices))), *_listed(others)}
        if len(held) != len(self.slices):
            return None
        return self._filled((*self.pieces, *others))

    def sketched(self) -> tuple[Tensor, int, tuple[int, ...]] | None:
        """Return the sketch (ROWS, WIDTH) of what was left out, its seed and places, or None."""
        sketches = [piece for piece in self.rest if piece.notes[REST] == SKETCH and piece.kept]
        if len(sketches) != 1:
            return None
        notes = sketches[0].notes
        total = self.log.tensor(sketches[0]).double()
        return total, notes[SEED], tuple(notes["parameters"])

    def _filled(self, pieces: Sequence[Event]) -> Tensor:
        slices = self.slices
        tensors = [_restored(self.log.tensor(piece), piece) for piece in pieces]
        noted = "parameters" in pieces[0].notes
        if len(tensors) == 1 and not noted and _in_order(slices):
            return tensors[0]
        flat = torch.cat(tensors)
        out = torch.zeros(max(s.stop for s in slices), dtype=self.dtype)
        at = 0
        for parameter in self._parameters(pieces):
            target = slices[parameter]
            width = target.stop - target.start
            out[target.start : target.stop] = target.arranged(flat[at : at + width])
            at += width
        return out

    def _parameters(self, pieces: Sequence[Event]) -> Sequence[int]:
        count = len(self.slices)
        numbers = _listed(pieces)
        if not numbers:
            return range(count)
        if len(set(numbers)) != len(numbers) or not set(numbers) <= set(range(count)):
            raise LeakauditError(
                f"message {self.index} of rank {self.src} does not hold each of {count} parameters "
                "at most once"
            )
        return numbers


def _listed(pieces: Sequence[Event]) -> list[int]:
    return [place for piece in pieces for place in piece.notes.get("parameters", ())]


def _restored(tensor: Tensor, piece: Event) -> Tensor:
    """Return a piece as a vector, in the units of the rank that divided it before it was sent."""
    factor = _factor(piece)
    flat = tensor.reshape(-1)
    if factor == 1:
        return flat
    return flat.to(torch.promote_types(flat.dtype, torch.float32)) * factor


def _factor(piece: Event) -> int:
    noted: int = piece.notes.get("factor", 1)
    return noted if 0 < noted < 1 << 31 else 1


def _in_order(slices: Sequence[ParameterPlace]) -> bool:
    """Return whether places follow each other from 0 on without gaps, in the model's own axes."""
    end = 0
    for part in slices:
        if part.start != end or part.axes:
            return False
        end = part.stop
    return True


@dataclass(frozen=True)
class _LogStreams:
    messages: dict[
        LogChannel, list[LoggedMessage]
    ]  # by channel, in the order in which they were sent
    others: Counter[str]  # description -> number, for tensors that are not part of a model
    # (operation, lane) -> number, for tensors that are parts of another model
    models: Counter[tuple[str, str]]
    vectors: int  # number of all tensors that would be part of a model of another size


def assemble(
    logs: Iterable[RankLog],
    places: Sequence[ParameterPlace],
    tags: frozenset[int] | None = None,
    by_tag: bool = False,
) -> _LogStreams:
    """Combine tensors into models.

    places: of the parameters, in the order of a message; tags: of the messages to use, None for
    all; by_tag: whether models on several tags may overlap.
    """
    sizes = [place.stop - place.start for place in places]
    others = Counter[str]()
    models = Counter[tuple[str, str]]()
    vectors = 0
    pending: dict[tuple[LogChannel, int | None], list[Event]] = defaultdict(list)
    streams: dict[tuple[LogChannel, int | None], list[LoggedMessage]] = defaultdict(list)
    for log in logs:
        for event in log.events:
            if not _may_be_model(event, tags):
                what = event.dtype or event.notes.get(LEFT_OUT, "")
                others[f"{event.op} {what}".strip()] += 1
                continue
            wire = _wire(log, event)
            key = (wire, event.tag if by_tag else None)
            complete = _add(pending[key], event, sizes)
            if complete is None:  # it is not part of a message
                vectors += 1
                if "parameters" in event.notes:
                    models[event.op, wire.lane] += 1
                    others[f"{event.op} of {event.notes.get('lane', 'another model')}"] += 1
                else:
                    others[f"{event.op} of {event.numel} numbers"] += 1
            elif complete:
                events = pending.pop(key)
                pieces = tuple(one for one in events if REST not in one.notes)
                rest = tuple(one for one in events if REST in one.notes)
                index = _position(pieces[0], len(streams[key]))
                src, dst, op, _ = wire
                found = LoggedMessage(src, dst, op, index, event.tag, log, pieces, places, rest)
                streams[key].append(found)
    messages: dict[LogChannel, list[LoggedMessage]] = {}
    for (wire, _), stream in streams.items():
        messages.setdefault(wire, []).extend(stream)
    return _LogStreams(messages, others, models, vectors)


def is_of_hook(event: Event) -> bool:
    """Return whether a communication hook sent an event in a form of its own."""
    return HOOK in event.notes and "parameters" not in event.notes


def operations(logs: Iterable[RankLog]) -> str:
    """Return which operations a log contains, with the numbers of their tensors, in words."""
    counts = Counter[str]()
    for log in logs:
        for event in log.events:
            reason = event.notes.get(LEFT_OUT)
            hook = event.notes.get(HOOK)
            what = event.op
            if event.dtype is not None:
                what += f" {event.dtype}"
            if hook is not None:
                what += f" of {hook}"
            if reason is not None:
                what += f" ({reason})"
            counts[what] += 1
    shown = [f"{what}: {count} tensors" for what, count in counts.most_common(SHOWN)]
    if len(counts) > SHOWN:
        shown.append("...")
    return ", ".join(shown) or "nothing"


def one_lane(
    messages: dict[LogChannel, list[LoggedMessage]], wanted: str | None = None
) -> tuple[dict[LogChannel, list[LoggedMessage]], Counter[str]]:
    """Keep one lane if several carry messages of one kind on the same channel."""
    # That is the wanted one, or else the one with the most messages.
    lanes = sorted({wire.lane for wire in messages})
    if wanted is not None and wanted not in lanes:
        known = ", ".join(map(repr, lanes))
        raise LeakauditError(f"messages.stream: the log contains {known}, not {wanted!r}")
    rivals: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for wire, stream in messages.items():
        rivals[_channel(wire)][wire.lane] += len(stream)
    kept: dict[LogChannel, list[LoggedMessage]] = {}
    dropped = Counter[str]()
    for wire, stream in messages.items():
        counts = rivals[_channel(wire)]
        best = min(counts, key=lambda lane: (lane != wanted, -counts[lane], lane))
        if wire.lane == best:
            kept[wire._replace(lane="")] = stream
        else:
            dropped[wire.lane] += len(stream)
    return kept, dropped


def one_kind(
    messages: dict[LogChannel, list[LoggedMessage]], gradients: bool = True
) -> tuple[dict[LogChannel, list[LoggedMessage]], Counter[str]]:
    """Keep either the gradients that hooks logged or all other messages, if there are both."""
    noted = {wire: wire.op in GRADIENTS for wire in messages}
    dropped = Counter[str]()
    if len(set(noted.values())) < 2:
        return messages, dropped
    kept: dict[LogChannel, list[LoggedMessage]] = {}
    for wire, stream in messages.items():
        if noted[wire] == gradients:
            kept[wire] = stream
        else:
            dropped[wire.op] += len(stream)
    return kept, dropped


def _channel(wire: LogChannel) -> tuple[Any, ...]:
    """Return what channels share that must not be mixed: they differ only in their lane."""
    # Messages to all go to all ranks of a group, so those of several groups differ, too.
    if wire.dst is not None:
        return wire.src, wire.dst, wire.op
    return ("gradients" if wire.op in GRADIENTS else wire.op,)


def _position(event: Event, counted: int) -> int:
    """Return the position of a message on its channel: as noted by an import, else as counted."""
    noted: int | None = event.notes.get(POSITION)
    return counted if noted is None or noted >= 1 << 31 else noted


def _may_be_model(event: Event, tags: frozenset[int] | None) -> bool:
    """Return whether an event contains floating-point numbers, with a tag in use."""
    if event.dtype not in FLOATS or is_of_hook(event):
        return False
    if tags is None or event.op not in ("send", "recv"):
        return True
    return event.tag in tags


def _wire(log: RankLog, event: Event) -> LogChannel:
    """Return the channel of an event; a received message belongs to the channel of its sender."""
    lane = str(event.notes.get("lane", ""))
    if event.op == "recv" and event.peer is not None:
        return LogChannel(event.peer, log.rank, "recv", lane)
    if event.op in POINT:
        return LogChannel(log.rank, event.peer, event.op, lane)
    return LogChannel(log.rank, None, event.op, lane)


def _add(held: list[Event], event: Event, sizes: Sequence[int]) -> bool | None:
    """Add an event to the pieces of a message; return whether it is complete, None if not added."""
    # A model is sent as one tensor, as its parameters one by one, or in buckets that list their
    # parameters. A tensor that does not continue the pieces begins a new message if it can be its
    # first piece.
    if "parameters" in event.notes:
        return _add_noted(held, event, sizes)
    if REST in event.notes:  # what stands for other parameters lists them
        return None
    if event.numel == sum(sizes):
        held[:] = [event]
        return True
    if len(held) < len(sizes) and event.numel == sizes[len(held)]:
        held.append(event)
        return len(held) == len(sizes)
    if event.numel == sizes[0]:
        held[:] = [event]
        return False
    return None


def _add_noted(held: list[Event], event: Event, sizes: Sequence[int]) -> bool | None:
    """Add a piece that lists its parameters; a message need not contain all of them."""
    held.append(event)
    if not event.notes.get("last"):
        return False
    filled = any(piece.numel for piece in held if REST not in piece.notes)
    if filled and all(_fits(piece, sizes) for piece in held):
        return True
    held.clear()
    return None


def _fits(piece: Event, sizes: Sequence[int]) -> bool:
    places: list[int] | None = piece.notes.get("parameters")
    if places is None:  # a message without lists ended before it was complete
        return False
    if piece.notes.get("of", len(sizes)) != len(sizes):
        return False
    if not all(0 <= place < len(sizes) for place in places):
        return False
    if piece.notes.get(REST) == SKETCH:
        return piece.shape == (ROWS, WIDTH) and SEED in piece.notes
    return piece.numel == sum(sizes[place] for place in places)
