"""Read raw logs; whoever wrote the folder may have been killed, or may be a stranger."""

from __future__ import annotations

import mmap
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit.capture.tap import event as lines
from leakaudit.capture.tap.event import Event
from leakaudit.capture.tap.log import LEFT_OUT
from leakaudit.errors import LeakauditError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NAME", "Event", "RankLog", "read_logs"]

NAME = re.compile(r"rank(\d{1,6})\.(\d{1,3})\.jsonl", re.ASCII)
LINE, MOST = 1 << 20, 20_000_000  # bytes of a line, events of a log


@dataclass(frozen=True)
class RankLog:
    """The events of one process. about: its first line. closed: whether it ended in order. torn: whether the last event was cut off.

    seconds: between its first line and its last. spent: of them, in the tap.
    """

    rank: int
    attempt: int
    path: Path
    about: Mapping[str, Any]
    events: tuple[Event, ...]
    closed: bool
    torn: bool
    seconds: float
    spent: float

    def tensor(self, event: Event) -> Tensor:
        """Return an event's payload, mapped and not read; writing to it does not reach the file.

        Raises LeakauditError where it was left out.
        """
        import torch

        if not event.kept or event.dtype is None:
            raise LeakauditError(
                f"event {event.seq} of rank {self.rank} has no payload: {event.notes.get(LEFT_OUT, 'left out')}"
            )
        dtype = getattr(torch, event.dtype)
        if not event.numel:
            return torch.empty(event.shape, dtype=dtype)
        return torch.frombuffer(
            self._map, dtype=dtype, count=event.numel, offset=event.offset
        ).view(event.shape)

    @cached_property
    def _map(self) -> mmap.mmap:
        fd = os.open(self.path.with_suffix(".bin"), os.O_RDONLY | os.O_NOFOLLOW)
        try:
            return mmap.mmap(
                fd,
                os.fstat(fd).st_size,
                flags=mmap.MAP_PRIVATE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )
        finally:
            os.close(fd)


def read_logs(folder: str | os.PathLike[str]) -> tuple[RankLog, ...]:
    """Read all logs of a folder, by rank, then by restart; files of other names are left alone.

    Raises LeakauditError, in one line, where there is no log, or one that no program of ours wrote.
    """
    folder = Path(folder)
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise LeakauditError(
            f"cannot read {folder}: {error.strerror}; expected the folder of a tap"
        ) from None
    found = [(int(m[1]), int(m[2]), folder / n) for n in names if (m := NAME.fullmatch(n))]
    if not found:
        raise LeakauditError(f"{folder} holds no log of a tap (rank0.0.jsonl, rank0.0.bin, …)")
    return tuple(_read(rank, attempt, path) for rank, attempt, path in sorted(found))


def _read(rank: int, attempt: int, path: Path) -> RankLog:
    size = _size(path.with_suffix(".bin"))
    _size(path)
    events: list[Event] = []
    about: Mapping[str, Any] | None = None
    closed, torn, last, spent = False, False, 0.0, 0.0
    for number, line in enumerate(_lines(path)):
        if about is None:
            about = lines.first(line, rank, path)
            last = lines.number(about.get("time"))
        elif (value := lines.values(line)) is None or closed:
            torn = True
            break
        elif value.get("end") is True:
            closed, last, spent = (
                True,
                lines.number(value.get("time")),
                lines.number(value.get("spent")),
            )
        else:
            event = lines.event(value, rank, path, number)
            if event.offset + event.nbytes > size:
                torn = True
                break
            events.append(event)
            last, spent = event.time, lines.number(value.get("spent"))
    if about is None:
        about, torn = {}, True
    return RankLog(
        rank,
        attempt,
        path,
        about,
        tuple(events),
        closed,
        torn,
        max(0.0, last - lines.number(about.get("time"))),
        spent,
    )


def _size(path: Path) -> int:
    """Bytes of a regular file."""
    try:
        status = os.lstat(path)
    except OSError as error:
        raise LeakauditError(f"cannot read {path}: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise LeakauditError(f"{path} is refused: it is not a regular file")
    return status.st_size


def _lines(path: Path) -> Iterator[bytes]:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(fd, "rb") as file:
        for _ in range(MOST):
            line = file.readline(LINE)
            if not line:
                return
            yield line
    raise LeakauditError(f"{path} is refused: more than {MOST} events")
