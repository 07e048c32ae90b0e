"""The messages that a protocol declares, and how a recording differs from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from leakaudit.core import mapping
from leakaudit.core.adversary import Adversary
from leakaudit.core.trace import Messages, Trace
from leakaudit.protocols.declared import protocol_of
from leakaudit.protocols.deviation import Deviation
from leakaudit.theory.relations import Relations
from leakaudit.theory.relations.declare import outline
from leakaudit.traces import gaps

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


class Observer(Protocol):
    """Whoever observes some messages, such as an adversary."""

    def observes(self, src: int, dst: int | None, *, secure: bool = False) -> bool:
        """Return whether messages from src to dst are observed."""


class MessageKey(NamedTuple):
    """What identifies a message."""

    round: int
    src: int
    dst: int
    kind: str  # its name in the protocol

    def __str__(self) -> str:
        """The name of the message in a sentence."""
        return f"{self.kind!r} {self.src} -> {self.dst} of round {self.round}"

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes in its name."""
        return self.src, self.dst


class BoardKey(NamedTuple):
    """What identifies a message on a public board, which has no receivers."""

    round: int
    src: int
    kind: str  # its name in the protocol


@dataclass(frozen=True)
class DeclaredMessage:
    """One declared message."""

    round: int
    src: int
    dst: tuple[int, ...] | None  # receivers, None for a public board
    kind: str  # its name in the protocol
    secure: bool  # whether the protocol itself encrypts it

    @property
    def post(self) -> BoardKey:
        """What identifies it regardless of its receivers."""
        return BoardKey(self.round, self.src, self.kind)

    @property
    def keys(self) -> list[MessageKey]:
        """What identifies each copy; empty for a public board."""
        return [MessageKey(self.round, self.src, dst, self.kind) for dst in self.dst or ()]


@dataclass(frozen=True)
class ExpectedMessages:
    """The messages that a protocol sends."""

    messages: tuple[DeclaredMessage, ...]  # all messages in the declared rounds
    last: int  # the last of these rounds
    repeats: bool  # whether each later round sends the same messages as the last one
    relations: Relations  # the declaration itself
    # kinds of messages that are declared to be rounded, so that few distinct numbers are expected
    coarse: frozenset[str]

    @classmethod
    def of(cls, trace: Trace) -> ExpectedMessages:
        """Return what the protocol of a trace sends with the trace's constants and schedule."""
        return cls._declared(trace)

    @classmethod
    def outlined(cls, trace: Trace) -> ExpectedMessages:
        """Return the same without the content of the messages, which is much faster."""
        with outline():
            return cls._declared(trace)

    @classmethod
    def _declared(cls, trace: Trace) -> ExpectedMessages:
        protocol = protocol_of(trace, trace.rounds)
        repeats = protocol.victim.stationary and trace.rounds > LONG
        last = LONG if repeats else trace.rounds
        relations = replace(protocol, rounds=last).whole
        sent = [vector for vector in relations.vectors if vector.kind == "message"]
        messages = [
            DeclaredMessage(vector.round, vector.owner or 0, vector.dst, vector.name, vector.secure)
            for vector in sent
        ]
        coarse = frozenset(vector.name for vector in sent if vector.std)
        return cls(tuple(messages), last, repeats, relations, coarse)

    @property
    def boards(self) -> set[BoardKey]:
        """Messages on public boards."""
        return {message.post for message in self.messages if message.dst is None}


def differences(
    trace: Trace, expected: ExpectedMessages, adversaries: Sequence[Observer], secure: Sequence[str]
) -> Iterator[Deviation]:
    """Yield how a recording differs from what its protocol sends.

    Args:
        adversaries: a recording may omit messages that none of them observes.
    """
    sent = _sent(trace)
    if not sent and (expected.messages or trace.rounds < 1):
        says = (
            "no message was recorded, so there is nothing to observe; "
            "call recorder.send for every message"
        )
        yield Deviation("empty", says)
        return
    yield from _not_finite(trace)
    yield from _undeclared(sent, expected)
    yield from _missing(sent, expected, adversaries)
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
    channels: frozenset[tuple[int, int]] | None = None
    if trace.provenance.get("wires") is not None:
        recorded: set[tuple[int, int]] = set()
        for table in trace.messages:
            recorded.update(zip(table.src.tolist(), table.dst.tolist(), strict=True))
        channels = frozenset(recorded)
    first = first_round(adversary)
    late = [message for message in expected.messages if message.round >= first]
    some = replace(expected, messages=tuple(late))
    for one in differences(trace, some, [_Heard(adversary, channels)], ()):
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


@dataclass(frozen=True)
class _Heard:
    """An adversary of a recording that contains only some channels; None stands for all."""

    adversary: Observer
    channels: frozenset[tuple[int, int]] | None

    def observes(self, src: int, dst: int | None, *, secure: bool = False) -> bool:
        """Return whether messages from src to dst are observed and recorded."""
        if self.channels is not None and dst is not None and (src, dst) not in self.channels:
            return False
        return self.adversary.observes(src, dst, secure=secure)


# --- which messages -------------------------------------------------------------------------------


def _sent(trace: Trace) -> Counter[MessageKey]:
    """Count messages by what identifies them."""
    found = Counter[MessageKey]()
    for messages in trace.messages:
        found.update(_keys(messages))
    return found


def _keys(messages: Messages) -> Iterator[MessageKey]:
    """Yield what identifies each message of a part of a trace, in its order."""
    rounds = messages.round.tolist()
    sources = messages.src.tolist()
    receivers = messages.dst.tolist()
    kinds = messages.kind.tolist()
    for round, src, dst, kind in zip(rounds, sources, receivers, kinds, strict=True):
        yield MessageKey(round, src, dst, messages.kinds[kind])


def _undeclared(sent: Counter[MessageKey], expected: ExpectedMessages) -> Iterator[Deviation]:
    """Find messages that the protocol does not send."""
    boards = expected.boards
    allowed = {key for message in expected.messages for key in message.keys}
    extra = [
        key
        for key in sent
        if key not in allowed and BoardKey(key.round, key.src, key.kind) not in boards
    ]
    if expected.repeats:
        extra = [key for key in extra if key.round <= expected.last]
    if not extra:
        return
    first = min(extra)
    kinds = ", ".join(sorted({repr(message.kind) for message in expected.messages}))
    begin = min((message.round for message in expected.messages), default=0)
    says = (
        f"{len(extra)} of {len(sent)} recorded messages do not belong to the declared protocol; "
        f"the first is {first}. The protocol sends {kinds} in rounds {begin} to {expected.last}: "
        "check kinds, rounds, senders, receivers and constants"
    )
    yield Deviation("undeclared", says, first.nodes)


def _missing(
    sent: Counter[MessageKey], expected: ExpectedMessages, adversaries: Sequence[Observer]
) -> Iterator[Deviation]:
    """Find messages that the protocol sends, but that are missing in the recording.

    Messages that no adversary of the check observes may be missing.
    """
    posted = {BoardKey(key.round, key.src, key.kind) for key in sent}
    lost: list[MessageKey] = []
    for message in expected.messages:
        if message.dst is None:
            if message.post not in posted:
                lost.append(MessageKey(message.round, message.src, message.src, message.kind))
            continue
        for key in message.keys:
            heard = any(
                who.observes(key.src, key.dst, secure=message.secure) for who in adversaries
            )
            if heard and key not in sent:
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
            found.setdefault(key.round, set()).add((key.src, key.dst, key.kind))
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
    """Find messages that were recorded more than once."""
    again = [key for key, count in sent.items() if count > 1]
    if again:
        first = min(again)
        says = f"{len(again)} messages were recorded more than once; the first is {first}"
        yield Deviation("repeated", says, first.nodes)


def _cut_short(trace: Trace) -> Iterator[Deviation]:
    """Find a recording that ends before the last planned round."""
    planned = trace.provenance.get("planned")
    if isinstance(planned, int) and trace.rounds < planned:
        says = (
            f"the recording ends after round {trace.rounds}, but {planned} rounds were planned; "
            "record all of them"
        )
        yield Deviation("cut short", says)


def _closed(trace: Trace, expected: ExpectedMessages, secure: Sequence[str]) -> Iterator[Deviation]:
    """Find messages that only the program, not the protocol or the check, marks as encrypted."""
    allowed = {message.kind for message in expected.messages if message.secure} | set(secure)
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
    vectors: dict[
        MessageKey, int
    ] = {}  # message -> index of the declared message that it is a copy of
    boards: dict[BoardKey, int] = {}
    for place, message in enumerate(expected.messages):
        if message.dst is None:
            boards[message.post] = place
        elif len(message.dst) > 1:
            vectors.update(dict.fromkeys(message.keys, place))
    first: dict[tuple[int, int], _Copy] = {}  # round and index -> the first copy
    compared = 0
    for part, sent in enumerate(trace.messages):
        for key, row in zip(_keys(sent), sent.row.tolist(), strict=True):
            round = key.round
            if expected.repeats:
                round = min(round, expected.last)
            place_found = vectors.get(MessageKey(round, key.src, key.dst, key.kind))
            if place_found is None:
                place_found = boards.get(BoardKey(round, key.src, key.kind))
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
    """Return whether two copies are equal in all that was recorded of them."""
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
    """Find NaN and infinity."""
    if trace.payload_bytes > LARGE:
        yield from _not_finite_in_large(trace)
        return
    for messages in trace.messages:
        if bool(torch.isfinite(messages.payload.sum())):  # so every number is finite
            continue
        rows = max(1, CHUNK // max(1, messages.payload.shape[1]))
        used = messages.row.unique().long()
        bad = 0
        for some in used.split(rows):
            bad += int((~torch.isfinite(messages.payload[some])).any(dim=1).sum())
        if bad:
            count = f"{bad} of {len(used)}"
            says = f"{count} payloads contain NaN or infinity, which no attack can use"
            yield Deviation("values", says)
            return


def _not_finite_in_large(trace: Trace) -> Iterator[Deviation]:
    """Find NaN and infinity in some payloads of a large trace, evenly spaced in its rounds."""
    share = -(-trace.payload_bytes // LARGE)
    for messages in trace.messages:
        for row in messages.row.unique().tolist()[::share]:
            for part in messages.payload[row].split(CHUNK):
                finite = bool(torch.isfinite(part.sum()))
                mapping.release(part)
                if not finite and not bool(torch.isfinite(part).all()):
                    says = f"payload {row} contains NaN or infinity, which no attack can use"
                    yield Deviation("values", says)
                    return


def _coarse(trace: Trace, expected: ExpectedMessages) -> Iterator[Deviation]:
    """Find numbers that have a narrower format than the recording."""
    if expected.coarse:
        return
    formats = [narrow for narrow in NARROW if narrow.itemsize < trace.dtype.itemsize]
    looked_at = 0
    for row in _some_rows(trace):
        numbers = _inexact(row)
        looked_at += len(numbers)
        formats = [narrow for narrow in formats if _fits(numbers, narrow)]
        if not formats:
            return
    if looked_at < FEW:
        return
    short = _dtype_name(formats[0])
    says = (
        f"all messages contain {short} numbers, but are recorded as "
        f"{_dtype_name(trace.dtype)}: they are rounded more than declared; "
        f"record with dtype=torch.{short} if they are sent in this format"
    )
    yield Deviation("format", says)


def _fits(numbers: Tensor, narrow: torch.dtype) -> bool:
    """Return whether a narrower format represents all numbers exactly."""
    return torch.equal(numbers.to(narrow).to(numbers.dtype), numbers)


def _dtype_name(dtype: torch.dtype) -> str:
    """Return the name without its module, as ``float32``."""
    return str(dtype).removeprefix("torch.")


def _some_rows(trace: Trace) -> Iterator[Tensor]:
    """Yield the first numbers of some payloads of every kind."""
    for messages in trace.messages:
        payload = messages.payload
        yield from payload[:: max(1, len(payload) // LOOKED)][:LOOKED, :PART]


def _inexact(row: Tensor) -> Tensor:
    """Return the numbers that are no multiples of 1/256, which are exact in any format."""
    return row[row * 256 != (row * 256).round()]
