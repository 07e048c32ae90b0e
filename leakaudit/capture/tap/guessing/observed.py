"""The messages of a log without a description, as vectors by channel."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

import torch

from leakaudit.capture.fitting.sketch import ModelSketch, RecordedPart
from leakaudit.capture.tap.log.layers import NOTE
from leakaudit.capture.tap.log.reading import Event, RankLog
from leakaudit.capture.tap.messages.layouts import ParameterPlace
from leakaudit.capture.tap.messages.skipped import without_skipped
from leakaudit.capture.tap.messages.states import sort_out
from leakaudit.capture.tap.messages.streams import (
    FLOATS,
    MODELS,
    POINT,
    LogChannel,
    LoggedMessage,
    assemble,
    is_of_hook,
    one_kind,
    one_lane,
    operations,
)
from leakaudit.core.errors import LeakauditError, NotUnderstood
from leakaudit.core.trace import Graph, Layout
from leakaudit.tasks.task import Task

HOOKS = {  # operation in a log -> whose hook records it
    "ddp": "the hook of DistributedDataParallel",
    "fsdp": "the hook of FSDP2",
    "opacus": "the hook of Opacus",
}
_ByNeighbour = dict[int, list[LoggedMessage]]
LONGEST = 500  # maximum number of tensors per message for which a period is searched
LARGEST_RANK = 100_000  # of a log, whose numbers a stranger may have changed


@dataclass(frozen=True)
class ChannelVectors:
    """Messages by channel, as vectors."""

    streams: Mapping[LogChannel, list[LoggedMessage]]  # the messages with payloads, by channel
    # the place of each parameter in a vector, in the order of a message
    slices: Sequence[ParameterPlace]
    graph: Graph  # the graph of the ranks that exchange messages one to one
    lane: str | None = None  # the lane of the messages; None if there is only one
    names: tuple[str, ...] = ()  # names of the parameters, if a hook noted them
    notes: tuple[str, ...] = ()  # remarks for the reader

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of the parameters in the model's order, followed by the model's own length."""
        ordered = sorted(self.slices, key=lambda place: place.start)
        return (*(place.stop - place.start for place in ordered), ordered[-1].stop)

    @property
    def missing(self) -> list[str]:
        """Parameters that do not travel, by name, or by number if their names are unknown."""
        count = len(self.sizes) - 1
        absent: set[int] = set()
        for stream in self.streams.values():
            covers = stream[0].covers
            if covers is not None:
                absent |= set(range(count)) - set(covers)
        if len(self.names) == count:
            return [self.names[k] for k in sorted(absent)]
        return [f"number {k}" for k in sorted(absent)]

    @property
    def chosen(self) -> bool:
        """Whether the user chose the parameters that were recorded."""
        return any(stream[0].note(NOTE) for stream in self.streams.values())

    def part(self, message: LoggedMessage) -> RecordedPart | None:
        """Return what is recorded of a message; None without a sketch, or with other axes."""
        sketched = message.sketched()
        if sketched is None or any(place.axes for place in self.slices):
            return None
        total, seed, others = sketched
        kept = torch.zeros(self.sizes[-1], dtype=torch.bool)
        for place in message.covers or ():
            kept[self.slices[place].start : self.slices[place].stop] = True
        lengths = [place.stop - place.start for place in self.slices]
        columns = {k: slice(self.slices[k].start, self.slices[k].stop) for k in others}
        return RecordedPart(kept, columns, ModelSketch(lengths, seed), total)

    @property
    def own(self) -> dict[int, list[LoggedMessage]]:
        """Rank -> its messages to its first receiver, or to all."""

        def key(wire: LogChannel) -> tuple[int, int]:
            return wire.src, -1 if wire.dst is None else wire.dst

        out: dict[int, list[LoggedMessage]] = {}
        for wire in sorted(self.streams, key=key):
            if wire.op not in ("recv", *MODELS):
                out.setdefault(wire.src, self.streams[wire])
        return out

    def around(self, node: int) -> tuple[_ByNeighbour, _ByNeighbour, int]:
        """Return what a node sends to its neighbours and receives, and for how many rounds."""
        near = self.graph.neighbours[node]
        out = {j: self.streams.get(LogChannel(node, j, "send"), []) for j in near}
        back = {j: self.streams.get(LogChannel(j, node, "send"), []) for j in near}
        return out, back, min(map(len, (*out.values(), *back.values())), default=0)

    @property
    def hooked(self) -> str:
        """Which hook recorded gradients, so that they are nothing else; empty if none did."""
        ops = {wire.op for wire in self.streams}
        return next((name for op, name in HOOKS.items() if op in ops), "")

    @property
    def sends(self) -> str:
        """What the program sends, as it states for all messages; empty if it does not."""
        own = [stream for wire, stream in self.streams.items() if wire.op not in MODELS]
        words = {message.note("sends") for stream in own for message in stream}
        return str(words.pop() or "") if len(words) == 1 else ""

    @property
    def broken(self) -> LoggedMessage | None:
        """The first message, by its position on its channel, that contains NaN or infinity."""
        for message in sorted(
            chain.from_iterable(self.streams.values()), key=lambda one: one.index
        ):
            if not bool(message.value.isfinite().all()):
                return message
        return None

    @property
    def centre(self) -> int | None:
        """The rank to which all others are connected, and nobody else; None if there is none."""
        if len(self.graph.edges) < 2:
            return None
        shared = set.intersection(*map(set, self.graph.edges))
        return min(shared, default=None)

    @property
    def same_start(self) -> bool:
        """Whether all ranks start with the same message."""
        starts = [stream[0] for stream in self.own.values()]
        firsts = [message.value for message in starts if message.index == 0]
        return len(firsts) > 1 and all(torch.equal(firsts[0], value) for value in firsts)


def collect(
    logs: Sequence[RankLog], task: Task | None, places: Sequence[ParameterPlace] = ()
) -> ChannelVectors:
    """Combine the log's tensors into messages.

    task: of the model that is sent; None uses the sizes of tensors that repeat. places: of each
    parameter in the order of a message; empty for the model's own.
    """
    logs, notes = sort_out(logs, task)
    if not places:
        lengths = _lengths(logs) if task is None else lengths_of(task.layout)
        ends = accumulate(lengths, initial=0)
        places = [ParameterPlace(start, stop) for start, stop in pairwise(ends)]
    streams: dict[LogChannel, list[LoggedMessage]] = {}
    for wire, stream in assemble(logs, places).messages.items():
        kept = [message for message in stream if message.kept]
        if kept:
            streams[wire] = kept
    streams, dropped = one_lane(streams)
    streams, _ = without_skipped(one_kind(streams)[0])
    size = max(place.stop for place in places)
    if not streams:
        raise NotUnderstood(
            f"the log contains no message of the model's size ({size} numbers), but "
            f"{operations(logs)}; specify the model that was trained"
        )
    lane = next(iter(streams.values()))[0].lane if dropped else None
    return ChannelVectors(streams, places, _graph(streams), lane, _names(streams), notes)


def lengths_of(layout: Layout) -> tuple[int, ...]:
    """Return the lengths of a model's parameters."""
    return tuple(math.prod(shape) for shape in layout.shapes)


def shapes(logs: Sequence[RankLog], task: Task | None) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors of a message; empty if they do not repeat."""
    logs, _ = sort_out(logs, task)
    wanted = list(_lengths(logs))
    for log in logs:
        events = [event for event in log.events if event.dtype in FLOATS]
        for begin, event in enumerate(events):
            if event.numel != wanted[0]:
                continue
            run = events[begin : begin + len(wanted)]
            if [piece.numel for piece in run] == wanted:
                return [piece.shape for piece in run]
    return []


def _names(streams: Mapping[LogChannel, list[LoggedMessage]]) -> tuple[str, ...]:
    for stream in streams.values():
        noted = stream[0].note("names")
        if noted is not None:
            return tuple(noted)
    return ()


def _graph(wires: Iterable[LogChannel]) -> Graph:
    last = 0
    edges: set[tuple[int, int]] = set()
    for src, dst, op, _ in wires:
        last = max(last, src)
        if dst is None:
            continue
        last = max(last, dst)
        if op in POINT and src != dst:
            edges.add((min(src, dst), max(src, dst)))
    if last > LARGEST_RANK:
        raise LeakauditError(f"the log names rank {last}; expected at most {LARGEST_RANK}")
    return Graph(1 + last, tuple(sorted(edges)))


def _lengths(logs: Sequence[RankLog]) -> tuple[int, ...]:
    """Return the lengths of the tensors that repeat on most channels."""
    # Each channel votes for its shortest period, with one vote per number that was sent. The sizes
    # that a hook noted count twice.
    wires: dict[Any, list[int]] = defaultdict(list)
    votes = Counter[tuple[int, ...]]()
    for log in logs:
        for event in log.events:
            noted = event.notes.get("sizes")
            if noted:
                votes[tuple(noted)] += 2 * sum(noted)
            elif _may_repeat(event):
                lane = event.notes.get("lane", "")
                wires[event.rank, event.peer, event.op, lane].append(event.numel)
    for numels in wires.values():
        period = _period(numels)
        if period:
            votes[tuple(numels[:period])] += sum(numels)
    if not votes:
        raise NotUnderstood(
            "the log contains no floating-point tensors that may be models or gradients, but "
            f"{operations(logs)}"
        )
    return votes.most_common(1)[0][0]


def _may_repeat(event: Event) -> bool:
    """Return whether a tensor may be a part of a message whose parts nobody noted."""
    if is_of_hook(event) or "parameters" in event.notes:
        return False
    return event.dtype in FLOATS and bool(event.shape)


def _period(numels: Sequence[int]) -> int:
    """Return the period of a sequence of lengths, 0 if there is none up to LONGEST."""
    for period in range(1, min(len(numels), LONGEST) + 1):
        if all(a == b for a, b in zip(numels, numels[period:], strict=False)):
            return period
    return 0
