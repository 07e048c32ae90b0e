"""The progress of a run in its own folder, for other programs that watch it.

progress.json is replaced about every second and removed at the end; it stays if the run is killed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from leakaudit._util.decoding import from_json
from leakaudit._util.files import replacing
from leakaudit.core import progress
from leakaudit.core.errors import LeakauditError

NAME = "progress.json"
FORMAT = "leakaudit.progress"
VERSION = 1
EVERY = 1.0  # seconds between two writes; a choice


class _StageEntry(Struct, frozen=True, kw_only=True):
    """One kind of work that is counted."""

    what: str  # what is counted, such as `cells`
    done: int  # how many are finished
    total: int  # how many there are


class _ProgressFile(Struct, frozen=True, kw_only=True):
    """The content of progress.json."""

    format: str
    version: int
    started: float  # time of the start in seconds since 1970
    updated: float  # time at which the file was written
    stages: tuple[_StageEntry, ...]  # what was counted so far, in the order of the first reports


def parsed(raw: bytes) -> _ProgressFile | None:
    """Return the content of progress.json; None if it is none."""
    try:
        noted = from_json(raw, _ProgressFile)
    except (ValueError, RecursionError):
        return None
    return noted if noted.format == FORMAT else None


@contextmanager
def kept(folder: Path) -> Iterator[None]:
    """Write the progress of the work inside to its folder."""
    path = folder / NAME
    started = time.time()
    written = time.monotonic()
    stages: dict[str, _StageEntry] = {}

    def listen(what: str, done: int, total: int) -> None:
        nonlocal written
        stages[what] = _StageEntry(what=what, done=done, total=total)
        if time.monotonic() - written < EVERY:
            return
        written = time.monotonic()
        content = _ProgressFile(
            format=FORMAT,
            version=VERSION,
            started=started,
            updated=time.time(),
            stages=tuple(stages.values()),
        )
        # A disk without space ends the run itself, with a message of its own.
        with suppress(LeakauditError), replacing(path, durable=False) as file:
            file.write(json.dumps(msgspec.to_builtins(content)).encode() + b"\n")

    try:
        with progress.heard(listen):
            yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
