"""Read raw logs; the process that wrote them may have been killed, and is not trusted."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit.capture.tap.log import event as lines
from leakaudit.capture.tap.log.event import Event
from leakaudit.capture.tap.log.nodes import numbered
from leakaudit.capture.tap.log.rank_log import RankLog
from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    pass

__all__ = ["NAME", "Event", "RankLog", "read_logs"]

NAME = re.compile(r"rank(\d{1,6})\.(\d{1,3})\.jsonl", re.ASCII)
LINE = 1 << 20  # maximum bytes per line: enough for two notes of the largest size
MOST = 20_000_000  # maximum lines of a log, several gigabytes: arbitrary


def read_logs(folder: str | os.PathLike[str]) -> tuple[RankLog, ...]:
    """Read all logs of a folder, ordered by rank, then by restart."""
    folder = Path(folder)
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise LeakauditError(
            f"cannot read {folder}: {error.strerror}; expected the folder of a tap"
        ) from None
    found: list[tuple[int, int, Path]] = []
    for name in names:
        match = NAME.fullmatch(name)
        if match:
            found.append((int(match[1]), int(match[2]), folder / name))
    if not found:
        raise LeakauditError(f"{folder} contains no log of a tap (rank0.0.jsonl, rank0.0.bin, …)")
    logs = tuple(_read(rank, attempt, path) for rank, attempt, path in sorted(found))
    return numbered(logs)


def _read(rank: int, attempt: int, path: Path) -> RankLog:
    """Read one log up to its last complete event."""
    size = _size(path.with_suffix(".bin"))
    _size(path)
    about: Mapping[str, Any] | None = None
    events: list[Event] = []
    closed = False
    torn = False
    trouble = ""
    last = 0.0
    spent = 0.0
    for place, line in enumerate(_lines(path)):
        if about is None:
            about = lines.first(line, rank, path)
            last = lines.number(about.get("time"))
            continue
        value = lines.parse(line)
        if value is None or closed:
            torn = True
            break
        if value.get("end") is True:
            closed = True
            trouble = str(value.get("trouble", ""))
            last = lines.number(value.get("time"))
        else:
            event = lines.event(value, rank, path, place)
            if event.offset + event.nbytes > size:
                torn = True
                break
            events.append(event)
            last = event.time
        spent = lines.number(value.get("spent"))
    if about is None:
        about = {}
        torn = True
    begun = lines.number(about.get("time"))
    seconds = max(0.0, last - begun)
    return RankLog(rank, attempt, path, about, tuple(events), closed, trouble, torn, seconds, spent)


def _size(path: Path) -> int:
    """Return the size of a regular file in bytes."""
    try:
        status = os.lstat(path)
    except OSError as error:
        raise LeakauditError(f"cannot read {path}: {error.strerror}") from None
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
