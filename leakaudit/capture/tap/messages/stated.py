"""What a program states about its training between two messages (`hooks.training` watches it)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct, ValidationError, convert
from msgspec.structs import asdict

from leakaudit.capture.fitting.replay import Constant, GroupConstants, OptimiserStep
from leakaudit.capture.tap.hooks.training import OPTIMISER, PARTS, TRAINED
from leakaudit.capture.tap.log.layers import REST
from leakaudit.capture.tap.log.reading import Event, RankLog
from leakaudit.capture.tap.messages.streams import LoggedMessage
from leakaudit.core.errors import LeakauditError


class _Group(Struct, frozen=True):
    """The notes of one group of parameters, from a step on."""

    number: int
    kind: str
    after: int
    place: int
    groups: int
    size: int
    constants: list[str]
    values: list[Constant]
    members: list[int] = []


class _Trained(Struct, frozen=True):
    """The notes of what happened since the last message."""

    backwards: int = 0
    numbers: list[int] = []
    taken: list[int] = []
    batches: list[int] = []
    roots: list[int] = []
    root_sizes: list[int] = []
    record: list[int] = []
    outputs: int = 0
    distinct: int = 0
    losses: list[str] = []
    usual: bool = True
    counts: list[int] = []
    clip_norm: float = 0.0
    norm_type: float = 2.0
    clip_value: float = 0.0
    clipped: int = 0
    clip_scaled: bool = (
        False  # whether gradients were those of a scaled loss when they were clipped
    )
    loss_scale: float = 1.0
    why: str = ""


NOTHING = asdict(_Trained())


@dataclass(frozen=True)
class Interval:
    """What a rank did before one of its messages, and after the one before it."""

    steps: tuple[OptimiserStep, ...] = ()
    seen: tuple[_Trained, ...] = ()

    @property
    def batches(self) -> list[int]:
        """First dimensions of the inputs of the model whose outputs a gradient reached."""
        return [batch for one in self.seen for batch in one.batches]

    @property
    def backwards(self) -> int:
        """Backward passes."""
        return sum(one.backwards for one in self.seen)

    @property
    def last(self) -> _Trained:
        """Every fact as it is stated last; other messages, such as a norm, may lie between them."""
        stated: dict[str, Any] = {}
        for one in self.seen:
            held = asdict(one)
            stated |= {name: held[name] for name in held if held[name] != NOTHING[name]}
        return _Trained(**stated)


@dataclass
class _Reading:
    groups: dict[int, list[list[_Group]]] = field(default_factory=lambda: defaultdict(list))
    taken: dict[int, int] = field(default_factory=lambda: defaultdict(int))


def intervals(stream: Sequence[LoggedMessage]) -> list[Interval]:
    """Return what a rank did before each message of a channel, and after the last one.

    That is since the message before it in the log, which may not have been kept.
    """
    if not stream:
        return []
    log = stream[0].log
    begins = {message.pieces[0].seq: place for place, message in enumerate(stream)}
    found = [Interval() for _ in range(len(stream) + 1)]
    reading = _Reading()
    pending: list[Event] = []
    for event in log.events:
        if event.op in (OPTIMISER, TRAINED):
            pending.append(event)
        elif REST in event.notes:
            continue  # a part of a message, which may precede the others
        elif (event.op, event.notes.get("lane")) == (stream[0].op, stream[0].note("lane")):
            done = _interval(pending, reading, log)
            pending = []
            if event.seq in begins:
                found[begins[event.seq]] = done
    found[-1] = _interval(pending, reading, log)
    return found


def states_training(logs: Sequence[RankLog]) -> bool:
    """Return whether a log states what its program did between messages."""
    return any(event.op == TRAINED for log in logs for event in log.events)


def holds_parts(logs: Sequence[RankLog]) -> bool:
    """Return whether a log states that each process computes with a part of the model."""
    events = (event for log in logs for event in log.events)
    return any(event.op == TRAINED and PARTS in event.notes for event in events)


def _interval(events: Sequence[Event], reading: _Reading, log: RankLog) -> Interval:
    steps: list[OptimiserStep] = []
    seen: list[_Trained] = []
    for event in events:
        if event.op == OPTIMISER:
            group = _noted(event, _Group, log)
            held = reading.groups[group.number]
            if group.place == 0:
                held.append([])
            if (
                not held
                or len(held[-1]) != group.place
                or len(group.constants) != len(group.values)
            ):
                raise _damaged(event, log)
            held[-1].append(group)
        else:
            trained = _noted(event, _Trained, log)
            seen.append(trained)
            for number, count in zip(trained.numbers, trained.taken, strict=False):
                steps += _steps(reading, number, count)
    return Interval(tuple(steps), tuple(seen))


def _steps(reading: _Reading, number: int, count: int) -> Iterator[OptimiserStep]:
    begun = reading.taken[number]
    reading.taken[number] = begun + count
    for index in range(begun, begun + min(count, 1 << 20)):
        known = [one for one in reading.groups[number] if one and one[0].after <= index]
        if known:
            groups = known[-1]
            yield OptimiserStep(number, groups[0].kind, tuple(map(_constants, groups)))


def _constants(group: _Group) -> GroupConstants:
    held: Mapping[str, Constant] = dict(zip(group.constants, group.values, strict=True))
    return GroupConstants(group.size, held, tuple(group.members))


def _noted(event: Event, kind: Any, log: RankLog) -> Any:
    try:
        return convert(dict(event.notes), kind)
    except ValidationError:
        raise _damaged(event, log) from None


def _damaged(event: Event, log: RankLog) -> LeakauditError:
    return LeakauditError(
        f"event {event.seq} of rank {log.rank} does not state what a program did; the log is "
        "damaged"
    )
