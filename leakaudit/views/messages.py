"""The messages that a protocol declares, and how a recording differs from them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from leakaudit.core import mapping
from leakaudit.core.adversary import Adversary
from leakaudit.core.trace import Messages, Trace
from leakaudit.protocols.declared import protocol_of
from leakaudit.theory.relations import Relations, Vector
from leakaudit.traces import gaps
from leakaudit.views.deviation import Deviation

# Subjects that explain why little is observed, but contradict nothing: messages marked as
# encrypted, and losses that the recording states itself.
STATED = ("secure", "gaps")
# Rounds that are declared individually. If all rounds of a protocol are alike, later ones are
# compared with the last of these. A choice.
LONG = 64
SUMMED = 1e-5  # relative error of a sketch; tests measure less than 1e-6
# Payloads per part of a trace, and numbers per payload, whose number format is examined: a choice,
# at most four million numbers.
LOOKED = 64
PART = 1 << 16
CHUNK = 1 << 24  # numbers that are tested for NaN at once, which limits the memory
# Bytes of payloads above which only some of them are examined, about as many bytes as this: all of
# them would take minutes. `leakaudit trace verify` examines all. A choice.
LARGE = 4 << 30
FEW = 64  # least numbers to recognise a format: by chance, one float32 in 2^13 is a float16
NARROW = (torch.float16, torch.bfloat16, torch.float32)

# Returns whether messages from src to dst are observed; dst is None for a public board.
Observes: TypeAlias = Callable[[int, int | None, bool], bool]


class MessageKey(NamedTuple):
    """What identifies a message."""

    round: int
    src: int
    dst: int
    kind: str  # its name in the protocol

    def __str__(self) -> str:
        return f"{self.kind!r} {self.src} -> {self.dst} of round {self.round}"

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes in its name."""
        return self.src, self.dst

    @property
    def post(self) -> tuple[int, int, str]:
        """What identifies it on a public board, regardless of its receivers."""
        return self.round, self.src, self.kind


def _copies_of(message: Vector) -> list[MessageKey]:
    """Return what identifies each copy of a declared message; of one on a board, its post."""
    src = message.owner or 0
    receivers = (src,) if message.dst is None else message.dst
    return [MessageKey(message.round, src, dst, message.name) for dst in receivers]


@dataclass(frozen=True)
class ExpectedMessages:
    """The messages that a protocol sends."""

    messages: tuple[Vector, ...]  # all messages in the declared rounds
    last: int  # the last of these rounds
    repeats: bool  # whether each later round sends the same messages as the last one
    relations: Relations  # the declaration itself

    @classmethod
    def of(cls, trace: Trace) -> ExpectedMessages:
        """Return what the protocol of a trace sends with the trace's constants and schedule."""
        protocol = protocol_of(trace, trace.rounds)
        repeats = protocol.victim.stationary and trace.rounds > LONG
        last = LONG if repeats else trace.rounds
        relations = replace(protocol, rounds=last).whole
        sent = (vector for vector in relations.vectors if vector.kind == "message")
        return cls(tuple(sent), last, repeats, relations)


def differences(
    trace: Trace, expected: ExpectedMessages, observes: Observes, secure: Sequence[str]
) -> Iterator[Deviation]:
    """Yield how a recording differs from what its protocol sends."""
    sent = Counter(itertools.chain.from_iterable(map(keys, trace.messages)))
    if not sent and (expected.messages or trace.rounds < 1):
        says = (
            "no message was recorded, so there is nothing to observe; "
            "call recorder.send for every message"
        )
        yield Deviation("empty", says)
        return
    yield from _not_finite(trace)
    yield from _undeclared(sent, expected)
    yield from _missing(sent, expected, observes)
    yield from _later(sent, expected)
    yield from _repeated(sent)
    yield from _copies(trace, expected)
    yield from _cut_short(trace)
    for said in gaps.sentences(trace)[:1]:
        yield Deviation("gaps", said)
    yield from _closed(trace, expected, secure)
    yield from _coarse(trace, expected)


def observed(trace: Trace, expected: ExpectedMessages, adversary: Adversary) -> Iterator[Deviation]:
    """Yield how the messages that an adversary observes differ from those of the protocol.

    What the recording states itself is not a difference: that it contains only some channels
    (``record --wires``), or that it was cut short after a round.
    """
    channels: set[tuple[int, int]] | None = None
    if trace.provenance.get("wires") is not None:
        channels = {key[1:3] for table in trace.messages for key in keys(table)}

    def observes(src: int, dst: int | None, secure: bool) -> bool:
        if channels is not None and dst is not None and (src, dst) not in channels:
            return False
        return adversary.observes(src, dst, secure=secure)

    first = first_round(adversary)
    late = tuple(message for message in expected.messages if message.round >= first)
    for one in differences(trace, replace(expected, messages=late), observes, ()):
        # Rounds before the first one that is observed were left out.
        if one.about == "cut short" and (first > 0 or not trace.complete):
            continue
        if one.about == "empty" and channels is not None:
            continue
        yield one


def within(trace: Trace, adversary: Adversary) -> Trace:
    """Return the rounds of a recording that an adversary observes."""
    if adversary.window is None:
        return trace
    first = first_round(adversary)
    last = min(trace.rounds, adversary.window.stop - 1)
    parts = tuple(gaps.between(messages, first, last) for messages in trace.messages)
    return replace(trace, rounds=last, messages=parts)


def first_round(adversary: Adversary) -> int:
    """Return the first round that an adversary observes, 0 if it observes a run from its start."""
    if adversary.window is None or adversary.window.start <= 1:
        return 0
    return adversary.window.start


# --- which messages -------------------------------------------------------------------------------


def keys(messages: Messages) -> Iterator[MessageKey]:
    """Yield what identifies each message of a part of a trace, in its order."""
    kinds = [messages.kinds[kind] for kind in messages.kind.tolist()]
    columns = (messages.round.tolist(), messages.src.tolist(), messages.dst.tolist(), kinds)
    return map(MessageKey, *columns)


def undeclared(sent: Iterable[MessageKey], declared: Iterable[Vector]) -> list[MessageKey]:
    """Return the messages that no declared one explains."""
    allowed: set[MessageKey] = set()
    boards: set[tuple[int, int, str]] = set()
    for message in declared:
        if message.kind == "message":
            copies = _copies_of(message)
            allowed.update(copies)
            if message.dst is None:
                boards.add(copies[0].post)
    return [key for key in sent if key not in allowed and key.post not in boards]


def _undeclared(sent: Counter[MessageKey], expected: ExpectedMessages) -> Iterator[Deviation]:
    extra = undeclared(sent, expected.messages)
    if expected.repeats:
        extra = [key for key in extra if key.round <= expected.last]
    if not extra:
        return
    first = min(extra)
    kinds = ", ".join(sorted({repr(message.name) for message in expected.messages}))
    begin = min((message.round for message in expected.messages), default=0)
    says = (
        f"{len(extra)} of {len(sent)} recorded messages do not belong to the declared protocol; "
        f"the first is {first}. The protocol sends {kinds} in rounds {begin} to {expected.last}: "
        "check kinds, rounds, senders, receivers and constants"
    )
    yield Deviation("undeclared", says, first.nodes)


def _missing(
    sent: Counter[MessageKey], expected: ExpectedMessages, observes: Observes
) -> Iterator[Deviation]:
    posted = {key.post for key in sent}
    lost: list[MessageKey] = []
    for message in expected.messages:
        for key in _copies_of(message):
            if message.dst is None:
                arrived = key.post in posted
            else:
                arrived = key in sent or not observes(key.src, key.dst, message.secure)
            if not arrived:
                lost.append(key)
    if lost:
        first = min(lost)
        says = (
            f"{len(lost)} messages that the protocol sends were not recorded; the first is "
            f"{first}. Attacks on the other messages do not represent a program that sends all"
        )
        yield Deviation("missing", says, first.nodes)


def _later(sent: Counter[MessageKey], expected: ExpectedMessages) -> Iterator[Deviation]:
    """Compare the rounds after the declared ones with the last declared round."""
    if not expected.repeats:
        return
    found: dict[int, set[tuple[int, int, str]]] = {}
    for key in sent:
        if key.round >= expected.last:
            found.setdefault(key.round, set()).add(key[1:])
    wanted = found.get(expected.last, set())
    wrong = sorted(round for round, some in found.items() if some - wanted)
    if wrong:
        says = (
            f"the messages of round {wrong[0]} differ from those of round {expected.last}, "
            "but all rounds of the protocol are alike"
        )
        yield Deviation("rounds", says)
    short = sorted(round for round, some in found.items() if wanted - some)
    if short:
        says = (
            f"{len(wanted - found[short[0]])} of the messages of round {expected.last} were not "
            f"recorded in round {short[0]}, but all rounds of the protocol are alike"
        )
        yield Deviation("missing", says)


def _repeated(sent: Counter[MessageKey]) -> Iterator[Deviation]:
    again = [key for key, count in sent.items() if count > 1]
    if again:
        first = min(again)
        says = f"{len(again)} messages were recorded more than once; the first is {first}"
        yield Deviation("repeated", says, first.nodes)


def _cut_short(trace: Trace) -> Iterator[Deviation]:
    planned = trace.provenance.get("planned")
    if isinstance(planned, int) and trace.rounds < planned:
        says = (
            f"the recording ends after round {trace.rounds}, but {planned} rounds were planned; "
            "record all of them"
        )
        yield Deviation("cut short", says)


def _closed(trace: Trace, expected: ExpectedMessages, secure: Sequence[str]) -> Iterator[Deviation]:
    allowed = {message.name for message in expected.messages if message.secure} | set(secure)
    marked = set[str]()
    for messages in trace.messages:
        kinds = messages.kind[messages.secure].unique().tolist()
        marked |= {messages.kinds[kind] for kind in kinds}
    undeclared = sorted(marked - allowed)
    if undeclared:
        says = (
            f"messages of kind {undeclared[0]!r} are recorded as encrypted and therefore hidden "
            "from eavesdroppers, which a recording cannot prove; if they are encrypted, set "
            f"secure = {undeclared} in the check of a gate"
        )
        yield Deviation("secure", says)


# --- what they hold -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Copy:
    """A recorded message that contains a declared vector; part and row locate its payload."""

    key: MessageKey
    part: int
    row: int
    payload: Tensor


def _copies(trace: Trace, expected: ExpectedMessages) -> Iterator[Deviation]:
    """Find a vector for several receivers that was sent in different copies."""
    vectors: dict[MessageKey, int] = {}  # copy -> index of its declared message
    boards: dict[tuple[int, int, str], int] = {}
    for place, message in enumerate(expected.messages):
        copies = _copies_of(message)
        if message.dst is None:
            boards[copies[0].post] = place
        elif len(copies) > 1:
            vectors.update(dict.fromkeys(copies, place))
    first: dict[tuple[int, int], _Copy] = {}  # round and index -> the first copy
    compared = 0
    for part, sent in enumerate(trace.messages):
        for key, row in zip(keys(sent), sent.row.tolist(), strict=True):
            declared = key
            if expected.repeats:
                declared = key._replace(round=min(key.round, expected.last))
            place_found = vectors.get(declared, boards.get(declared.post))
            if place_found is None:
                continue
            copy = _Copy(key, part, row, sent.payload[row])
            other = first.setdefault((key.round, place_found), copy)
            if (other.part, other.row) == (part, row):
                continue
            compared += copy.payload.nbytes
            if compared > LARGE:  # the first rounds show whether copies differ
                return
            if not _same(trace, other, copy):
                says = (
                    f"{other.key} and {key} contain different numbers, but the protocol sends one "
                    "vector to both; record what each receiver gets, "
                    "or declare a protocol that sends different vectors"
                )
                yield Deviation("copies", says, (*other.key.nodes, *key.nodes))
                return


def _same(trace: Trace, one: _Copy, other: _Copy) -> bool:
    if not _equal(one.payload, other.payload):
        return False
    if trace.kept is None:
        return True
    stored = []
    for copy in (one, other):
        rows = trace.messages[copy.part].stored
        assert rows is not None
        stored.append(rows[copy.row])
    raw = trace.kept.raw
    if not _equal(stored[0][:raw], stored[1][:raw]):
        return False
    # Sketches of equal vectors are equal up to the rounding of their sums.
    here, there = (row[raw : trace.kept.linear].double() for row in stored)
    return bool((here - there).norm() <= SUMMED * here.norm())


def _equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two payloads are equal; NaN equals NaN."""
    for mine, theirs in zip(one.split(CHUNK), other.split(CHUNK), strict=True):
        equal = torch.equal(mine.nan_to_num(), theirs.nan_to_num())
        mapping.release(mine)
        mapping.release(theirs)
        if not equal:
            return False
    return True


def _not_finite(trace: Trace) -> Iterator[Deviation]:
    share = max(1, -(-trace.payload_bytes // LARGE))
    for messages in trace.messages:
        if share == 1 and bool(torch.isfinite(messages.payload.sum())):  # so every number is finite
            continue
        used = messages.row.unique()[::share].tolist()
        bad = sum(not _is_finite(messages.payload[row]) for row in used)
        if bad:
            says = f"{bad} of {len(used)} payloads contain NaN or infinity, which no attack can use"
            yield Deviation("values", says)
            return


def _is_finite(payload: Tensor) -> bool:
    for part in payload.split(CHUNK):
        finite = bool(torch.isfinite(part).all())
        mapping.release(part)
        if not finite:
            return False
    return True


def _coarse(trace: Trace, expected: ExpectedMessages) -> Iterator[Deviation]:
    vectors = expected.relations.vectors
    if any(vector.std for vector in vectors if vector.kind == "message"):  # declared to be rounded
        return
    formats = [narrow for narrow in NARROW if narrow.itemsize < trace.dtype.itemsize]
    looked_at = 0
    for messages in trace.messages:
        payload = messages.payload
        for row in payload[:: max(1, len(payload) // LOOKED)][:LOOKED, :PART]:
            # Multiples of 1/256 are exact in any format.
            numbers = row[row * 256 != (row * 256).round()]
            looked_at += len(numbers)
            formats = [
                one for one in formats if torch.equal(numbers.to(one).to(row.dtype), numbers)
            ]
            if not formats:
                return
    if looked_at < FEW:
        return
    short, recorded = (str(dtype).removeprefix("torch.") for dtype in (formats[0], trace.dtype))
    says = (
        f"all messages contain {short} numbers, but are recorded as "
        f"{recorded}: they are rounded more than declared; "
        f"record with dtype=torch.{short} if they are sent in this format"
    )
    yield Deviation("format", says)
