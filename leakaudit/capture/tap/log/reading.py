"""Read raw logs; the process that wrote them may have been killed, and is not trusted."""

from __future__ import annotations

import json
import math
import mmap
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from leakaudit._util.files import explained
from leakaudit._util.plain import is_number
from leakaudit.capture.tap.log.writing import DTYPES, FORMAT, LEFT_OUT, VERSION
from leakaudit.core import mapping
from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from torch import Tensor

NAME = re.compile(r"rank(\d{1,6})\.(\d{1,3})\.jsonl", re.ASCII)
LINE = 1 << 20  # maximum bytes per line: enough for two notes of the largest size
MOST = 20_000_000  # maximum lines of a log, several gigabytes: arbitrary
FIELDS = frozenset(
    {"seq", "time", "rank", "op", "peer", "tag", "dtype", "shape", "offset", "nbytes", "spent"}
)
# Limits far above what a tap writes. They prevent a malformed file from using up memory or
# overflowing torch's 64-bit numbers; below that they are arbitrary.
COUNT = 1 << 48  # of ranks, offsets, bytes and tags
LENGTH = 1 << 40  # of one dimension
DIMENSIONS = 16
KEY = 40  # characters of a note's name
TEXT = 500_000  # characters of a note
SHOWN = 40  # characters of a note in a message: a choice

Whole = Annotated[int, Meta(ge=0, lt=COUNT)]
Integer = Annotated[int, Meta(gt=-COUNT, lt=COUNT)]
Length = Annotated[int, Meta(ge=0, lt=LENGTH)]
Word = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_.]{0,39}\Z")]

# The notes that a tap writes, by their type and what it is called. Notes of other names are those
# of a program, which may hold anything that is flat.
_TYPES: tuple[tuple[Any, str, str], ...] = (
    (str, "text", "content filter hook kind lane left_out mod name node rest sends to way why"),
    (list[str], "a list of texts", "beside filters frozen holds names trained_by"),
    (Whole, "a whole number from 0", "array arrays factor of position seed server"),
    (Integer, "an integer", "examples partition records round steps"),
    (list[Whole], "a list of whole numbers from 0", "group parameters sizes within"),
    (int | float, "a number", "divisor max_grad_norm noise noise_multiplier"),
    (bool, "true or false", "by_layer last layers"),
)
TYPES: Mapping[str, tuple[Any, str]] = {
    name: (kind, called) for kind, called, names in _TYPES for name in names.split()
}


@dataclass(frozen=True)
class Event:
    """One message or mark that a rank logged."""

    seq: Whole  # its position in the log
    time: float  # seconds since the epoch
    rank: int  # rank of the process that logged it
    op: Word  # send, recv, allreduce, broadcast or another word
    tag: Integer
    shape: Annotated[tuple[Length, ...], Meta(max_length=DIMENSIONS)]
    offset: Whole  # offset of the payload in the file of payloads
    nbytes: Whole  # bytes of the payload; 0 if it was omitted
    peer: Whole | None = None  # the other rank, None if there is none
    dtype: str | None = None  # number format of the tensor, None if there is none or it is unknown
    notes: Mapping[str, Any] = field(default_factory=dict)  # all other values of the line

    @property
    def numel(self) -> int:
        """Numbers in the tensor."""
        return math.prod(self.shape)

    @property
    def kept(self) -> bool:
        """Whether the complete tensor is in the log."""
        if self.dtype is None or LEFT_OUT in self.notes:
            return False
        return self.nbytes == self.numel * DTYPES[self.dtype]


@dataclass(frozen=True)
class RankLog:
    """The events of one process."""

    rank: int
    attempt: int  # number of earlier starts of the rank
    path: Path  # the file of lines; the payloads are beside it
    about: Mapping[str, Any]  # values of its first line, empty if that was truncated
    events: tuple[Event, ...]  # in the order in which they were logged
    closed: bool  # whether the process ended normally
    trouble: str  # an error of the disk, after which messages are missing; empty if there was none
    seconds: float  # time between its first line and its last
    spent: float  # seconds of this time that the tap used

    def tensor(self, event: Event) -> Tensor:
        """Return an event's payload, mapped rather than read; the file is never modified."""
        import torch

        if not event.kept or event.dtype is None:
            reason = event.notes.get(LEFT_OUT, "omitted")
            raise LeakauditError(f"event {event.seq} of rank {self.rank} has no payload: {reason}")
        dtype = getattr(torch, event.dtype)
        if not event.numel:
            return torch.empty(event.shape, dtype=dtype)
        flat = torch.frombuffer(self._map, dtype=dtype, count=event.numel, offset=event.offset)
        mapping.use(flat)
        return flat.view(event.shape)

    @cached_property
    def _map(self) -> mmap.mmap:
        payloads = self.path.with_suffix(".bin")
        fd = os.open(payloads, os.O_RDONLY | os.O_NOFOLLOW)
        # torch accepts only writable buffers; with a private mapping, writes do not reach the file.
        writable = mmap.PROT_READ | mmap.PROT_WRITE
        try:
            size = os.fstat(fd).st_size
            data = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=writable)
            mapping.register(data, payloads)
            return data
        finally:
            os.close(fd)


def read_logs(folder: str | os.PathLike[str]) -> tuple[RankLog, ...]:
    """Read all logs of a folder by rank and restart, and number nodes that have names."""
    folder = Path(folder)
    with explained(f"cannot read {folder}", "; expected the folder of a tap"):
        files = sorted(os.listdir(folder))
    found: list[tuple[int, int, Path]] = []
    for name in files:
        match = NAME.fullmatch(name)
        if match:
            found.append((int(match[1]), int(match[2]), folder / name))
    if not found:
        raise LeakauditError(f"{folder} contains no log of a tap (rank0.0.jsonl, rank0.0.bin, …)")
    logs = [_read(rank, attempt, path) for rank, attempt, path in sorted(found)]
    number = {rank: place for place, rank in enumerate(node_names(logs))}
    return tuple(_numbered(log, number) if log.rank in number else log for log in logs)


def node_names(logs: Sequence[RankLog]) -> dict[int, str]:
    """Return rank -> what the program calls the node, in the order of the names."""
    found: dict[int, str] = {}
    for log in logs:
        for event in log.events:
            to = event.notes.get("to")
            node = event.notes.get("node")
            if to is not None and node is not None and event.peer is not None:
                found[log.rank] = node
                found[event.peer] = to
    return dict(sorted(found.items(), key=lambda item: (len(item[1]), item[1])))


def _numbered(log: RankLog, number: Mapping[int, int]) -> RankLog:
    events: list[Event] = []
    for event in log.events:
        peer = event.peer if event.peer is None else number.get(event.peer, event.peer)
        events.append(replace(event, rank=number.get(event.rank, event.rank), peer=peer))
    return replace(log, rank=number[log.rank], events=tuple(events))


def _read(rank: int, attempt: int, path: Path) -> RankLog:
    size = _size(path.with_suffix(".bin"))
    _size(path)
    about: Mapping[str, Any] | None = None
    events: list[Event] = []
    closed = False
    trouble = ""
    last = 0.0
    spent = 0.0
    for place, line in enumerate(_lines(path)):
        if about is None:
            about = _first(line, rank, path)
            last = number(about.get("time"))
            continue
        value = parse(line)
        if value is None or closed:
            break
        if value.get("end") is True:
            closed = True
            trouble = str(value.get("trouble", ""))
            last = number(value.get("time"))
        else:
            event = _event(value, rank, path, place)
            if event.offset + event.nbytes > size:
                break
            events.append(event)
            last = event.time
        spent = number(value.get("spent"))
    about = about or {}
    seconds = max(0.0, last - number(about.get("time")))
    return RankLog(rank, attempt, path, about, tuple(events), closed, trouble, seconds, spent)


def _size(path: Path) -> int:
    with explained(f"cannot read {path}"):
        status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise LeakauditError(f"{path}: not a regular file")
    return status.st_size


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; an overlong line is truncated."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(fd, "rb") as file:
        for _ in range(MOST + 1):
            line = file.readline(LINE)
            if not line:
                return
            yield line
    raise LeakauditError(f"{path}: more than {MOST} lines")


def parse(line: bytes) -> dict[str, Any] | None:
    """Return the values of a line; None if it was truncated."""
    if not line.endswith(b"\n"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _first(line: bytes, rank: int, path: Path) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        return {}
    value = parse(line) or {}
    found = (value.get("format"), value.get("version"), value.get("rank"))
    if found != (FORMAT, VERSION, rank):
        raise LeakauditError(
            f"{path}: expected the log of rank {rank} in version {VERSION} of {FORMAT}"
        )
    return _checked_notes(value, path, 0)


def _event(value: dict[str, Any], rank: int, path: Path, line: int) -> Event:
    held = {key: value[key] for key in FIELDS & value.keys()}
    try:
        event = msgspec.convert({**held, "time": number(value.get("time"))}, Event)
    except msgspec.ValidationError:
        event = None
    if event is None or event.rank != rank or not _payload_fits(event):
        raise LeakauditError(f"{path}: line {line + 1} does not describe an event")
    others = {key: held for key, held in value.items() if key not in FIELDS}
    notes = _checked_notes(others, path, line)
    if event.dtype in DTYPES:
        return replace(event, notes=notes)
    notes = {LEFT_OUT: "an unsupported number format", **notes}
    return replace(event, dtype=None, notes=notes)


def _payload_fits(event: Event) -> bool:
    """Return whether the payload, if there is one, is the complete tensor, and aligned."""
    if event.nbytes == 0:
        return True
    item = DTYPES.get(event.dtype or "")
    return item is not None and event.nbytes == event.numel * item and event.offset % item == 0


def _checked_notes(value: dict[str, Any], path: Path, line: int) -> dict[str, Any]:
    """Return notes unchanged; reject long and nested ones, and those of another type."""
    for key, held in value.items():
        entries = held if isinstance(held, list) else [held]
        flat = all(n is None or isinstance(n, bool | int | float | str) for n in entries)
        if not flat or len(key) > KEY or len(str(held)) > TEXT:
            raise LeakauditError(f"{path}: line {line + 1} contains more than short notes")
        kind, called = TYPES.get(key, (Any, ""))
        try:
            msgspec.convert(held, kind)
        except msgspec.ValidationError:
            found = str(held)[:SHOWN]
            raise LeakauditError(
                f"{path}: line {line + 1} notes {key} = {found!r}, expected {called}"
            ) from None
    return value


def number(value: Any) -> float:
    """Return a value as a float; 0 if it is not a finite number."""
    return float(value) if is_number(value) else 0.0
