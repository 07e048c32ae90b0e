"""The messages that a protocol declares, and in what a recording differs from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakaudit.adversary import Adversary
from leakaudit.protocols.declared import protocol_of
from leakaudit.relations import Relations
from leakaudit.trace import Trace
from leakaudit.traces import gaps

Key = tuple[int, int, int, str]  # round, src, dst, kind
Finding = tuple[str, str]  # what it is about, and the sentence

LONG = 64  # rounds that are declared one by one; of a protocol whose rounds are alike, later ones are compared with the last of them
LOOKED, PART = 64, 1 << 16  # payloads whose number format is looked at, and how much of one
FEW = 64  # numbers from which on a format is recognised: one float32 in 2^13 is a float16 by chance
ROWS = 1 << 32  # more than a part of a trace has payloads
NARROW = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Message:
    """One declared message. dst: its receivers, None for a public board. secure: closed to a tap by the protocol itself."""

    round: int
    src: int
    dst: tuple[int, ...] | None
    kind: str
    secure: bool


@dataclass(frozen=True)
class Expected:
    """What a protocol sends.

    Attributes:
        messages: all of them, over the rounds that were declared.
        last: the last of these rounds.
        repeats: whether each later round sends what the last one does.
        relations: the declaration itself.
        coarse: kinds whose channel is declared to round, so that few distinct numbers are no surprise.
    """

    messages: tuple[Message, ...]
    last: int
    repeats: bool
    relations: Relations
    coarse: frozenset[str]

    @classmethod
    def of(cls, trace: Trace) -> Expected:
        """Return what the protocol of a trace sends at the constants and the schedule that the trace names.

        Raises:
            LeakauditError: the protocol is not registered, or cannot be declared with these constants.
        """
        protocol = protocol_of(trace, trace.rounds)
        repeats = protocol.victim.stationary and trace.rounds > LONG
        relations = (
            protocol.victim.relations(trace.graph, LONG, trace.public)
            if repeats
            else protocol.whole
        )
        sent = [v for v in relations.vectors if v.kind == "message"]
        messages = tuple(Message(v.round, v.owner or 0, v.dst, v.name, v.secure) for v in sent)
        return cls(
            messages,
            LONG if repeats else trace.rounds,
            repeats,
            relations,
            frozenset(v.name for v in sent if v.std),
        )


def differences(
    trace: Trace, expected: Expected, adversaries: Sequence[Adversary], secure: Sequence[str]
) -> Iterator[Finding]:
    """Yield in what a recording differs from what its protocol sends, whatever the messages hold.

    Args:
        trace: the recording.
        expected: of the same protocol, constants and schedule.
        adversaries: a recording may leave out what none of them hears.
        secure: kinds of messages that somebody says are encrypted.
    """
    sent = _sent(trace)
    if not sent and (expected.messages or trace.rounds < 1):
        yield (
            "empty",
            "no message was recorded, so nobody was shown anything; call recorder.send for everything that travels",
        )
        return
    yield from _undeclared(sent, expected)
    yield from _missing(sent, expected, adversaries)
    yield from _later(sent, expected)
    if again := sorted(key for key, count in sent.items() if count > 1):
        yield (
            "repeated",
            f"{len(again)} messages were recorded more than once, the first is {_named(again[0])}",
        )
    yield from _copies(trace, expected)
    planned = trace.provenance.get("planned")
    if isinstance(planned, int) and trace.rounds < planned:
        yield (
            "rounds",
            f"the recording ends after round {trace.rounds} of {planned} that it announces; record all of them",
        )
    for said in gaps.sentences(trace)[:1]:
        yield "gaps", said
    yield from _closed(trace, expected, secure)
    yield from _payloads(trace, expected)


def _sent(trace: Trace) -> Counter[Key]:
    """Count messages by (round, src, dst, kind)."""
    found = Counter[Key]()
    for m in trace.messages:
        columns = (c.tolist() for c in (m.round, m.src, m.dst, m.kind))
        found.update((t, i, j, m.kinds[k]) for t, i, j, k in zip(*columns, strict=True))
    return found


def _named(key: Key) -> str:
    round, src, dst, kind = key
    return f"{kind!r} {src} -> {dst} of round {round}"


def _undeclared(sent: Counter[Key], expected: Expected) -> Iterator[Finding]:
    """Find messages that the protocol does not send."""
    boards = {(m.round, m.src, m.kind) for m in expected.messages if m.dst is None}
    allowed = {(m.round, m.src, j, m.kind) for m in expected.messages for j in m.dst or ()}
    extra = [key for key in sent if key not in allowed and (key[0], key[1], key[3]) not in boards]
    if expected.repeats:
        extra = [key for key in extra if key[0] <= expected.last]
    if extra:
        kinds = ", ".join(sorted({repr(m.kind) for m in expected.messages}))
        says = f"{len(extra)} of {len(sent)} recorded messages are not of the declared protocol, the first is {_named(min(extra))}"
        yield (
            "undeclared",
            f"{says}; it sends {kinds} in rounds {_rounds(expected)}: check kinds, rounds, ends and constants",
        )


def _rounds(expected: Expected) -> str:
    return f"{min((m.round for m in expected.messages), default=0)} to {expected.last}"


def _missing(
    sent: Counter[Key], expected: Expected, adversaries: Sequence[Adversary]
) -> Iterator[Finding]:
    """Find messages that the protocol sends, that an adversary of the check hears, and that the recording does not hold."""
    there = {(t, i, k) for t, i, _, k in sent}
    lost: list[Key] = []
    for m in expected.messages:
        if m.dst is None:
            if (m.round, m.src, m.kind) not in there:
                lost.append((m.round, m.src, m.src, m.kind))
            continue
        for j in m.dst:
            key = (m.round, m.src, j, m.kind)
            if key not in sent and any(
                who.observes(m.src, j, secure=m.secure) for who in adversaries
            ):
                lost.append(key)
    if lost:
        says = f"{len(lost)} messages that the protocol sends were not recorded, the first is {_named(min(lost))}"
        yield (
            "missing",
            f"{says}; an attack on the rest tells nothing of a program that sends all of them",
        )


def _later(sent: Counter[Key], expected: Expected) -> Iterator[Finding]:
    """Compare the rounds after those that were declared with the last of these."""
    if not expected.repeats:
        return
    found: dict[int, set[tuple[int, int, str]]] = {}
    for t, i, j, k in sent:
        if t >= expected.last:
            found.setdefault(t, set()).add((i, j, k))
    wanted = found.get(expected.last, set())
    if wrong := sorted(t for t, some in found.items() if some != wanted):
        yield (
            "rounds",
            f"round {wrong[0]} has other messages than round {expected.last}, and the protocol's rounds are alike",
        )


def _copies(trace: Trace, expected: Expected) -> Iterator[Finding]:
    """Find a vector that the protocol sends to several receivers, and of which they got different copies."""
    groups: dict[Key, int] = {}  # message -> the declared vector that it carries, by its place
    boards: dict[tuple[int, int, str], int] = {}
    for place, m in enumerate(expected.messages):
        if m.dst is None:
            boards[m.round, m.src, m.kind] = place
        elif len(m.dst) > 1:
            groups.update({(m.round, m.src, j, m.kind): place for j in m.dst})
    first: dict[tuple[int, int], tuple[Key, int, Tensor]] = {}
    for part, sent in enumerate(trace.messages):
        columns = (c.tolist() for c in (sent.round, sent.src, sent.dst, sent.kind, sent.row))
        for t, i, j, k, row in zip(*columns, strict=True):
            round = min(t, expected.last) if expected.repeats else t
            key, kind = (t, i, j, sent.kinds[k]), sent.kinds[k]
            found = groups.get((round, i, j, kind), boards.get((round, i, kind)))
            if found is None:
                continue
            other, where, payload = first.setdefault(
                (t, found), (key, part * ROWS + row, sent.payload[row])
            )
            if where != part * ROWS + row and not torch.equal(payload, sent.payload[row]):
                says = f"{_named(other)} and {_named(key)} hold different numbers, and the protocol sends one vector to both"
                yield (
                    "copies",
                    f"{says}; record what each of them gets, and declare a protocol that sends it",
                )
                return


def _closed(trace: Trace, expected: Expected, secure: Sequence[str]) -> Iterator[Finding]:
    """Find messages that are marked as encrypted, by the program alone."""
    allowed = {m.kind for m in expected.messages if m.secure} | set(secure)
    marked = set[str]()
    for m in trace.messages:
        marked |= {m.kinds[k] for k in m.kind[m.secure].unique().tolist()}
    if undeclared := sorted(marked - allowed):
        says = f"messages of kind {undeclared[0]!r} are recorded as encrypted, so they were kept from everybody who taps a wire"
        yield (
            "secure",
            f"{says}; no recording can show that: if they are, say so with secure = {undeclared} in the check",
        )


def _payloads(trace: Trace, expected: Expected) -> Iterator[Finding]:
    """Find numbers that are none, and numbers in a narrower format than the recording's."""
    for m in trace.messages:
        bad = (~torch.isfinite(m.payload)).any(dim=1)
        if bool(bad.any()):
            yield (
                "values",
                f"{int(bad.sum())} of {len(bad)} payloads hold NaN or infinity, which no attack can use",
            )
            return
    if expected.coarse:
        return
    numbers = torch.cat([_some(m.payload) for m in trace.messages])
    if len(numbers) < FEW:
        return
    for narrow in NARROW:
        if narrow.itemsize < trace.dtype.itemsize and bool(
            (numbers.to(narrow).to(numbers.dtype) == numbers).all()
        ):
            names = [str(d).removeprefix("torch.") for d in (narrow, trace.dtype)]
            says = f"all messages hold {names[0]} numbers and are recorded as {names[1]}: what is heard is rounded more than declared"
            yield "values", f"{says}; record with dtype=torch.{names[0]} if they travel so"
            return


def _some(payload: Tensor) -> Tensor:
    """Return numbers of some payloads, without those that every format holds: 0, whole numbers, multiples of 1/256."""
    rows = payload[:: max(1, len(payload) // LOOKED)][:LOOKED, :PART].flatten()
    return rows[rows * 256 != (rows * 256).round()]
