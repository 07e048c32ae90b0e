"""Reading files of a folder that may come from a stranger.

Links are not followed, only regular files are read, and never more than a given number of bytes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from leakaudit.core.errors import LeakauditError

ENTRIES = 200_000  # entries of all folders that are looked at; a choice
DEPTH = 16  # folders inside each other; a choice


def facts(path: Path) -> os.stat_result | None:
    """Return what the file system says about a regular file."""
    try:
        found = path.lstat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found


def head(path: Path, limit: int) -> bytes:
    """Read the beginning of a regular file."""
    return _read(path, 0, limit)


def tail(path: Path, limit: int) -> bytes:
    """Read the end of a regular file."""
    known = facts(path)
    size = 0 if known is None else known.st_size
    return _read(path, max(0, size - limit), limit)


def _read(path: Path, start: int, limit: int) -> bytes:
    # O_NONBLOCK: opening a pipe that replaced the file would wait for a writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "the name cannot be used"
        raise LeakauditError(f"it cannot be read: {reason}") from None
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise LeakauditError("it is not a regular file")
        try:
            file.seek(start)
            return file.read(limit)
        except OSError as error:
            raise LeakauditError(f"it cannot be read: {error.strerror}") from None


def folders(root: Path, skipped: frozenset[str]) -> Iterator[tuple[Path, frozenset[str]]]:
    """Walk through a folder, in the order of the names.

    Links and hidden folders are left out, and so is what exceeds `DEPTH` and `ENTRIES`.
    """
    left = ENTRIES
    waiting = [(root, 0)]
    while waiting:
        folder, depth = waiting.pop()
        names = []
        inner = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        break
                    names.append(entry.name)
                    hidden = entry.name.startswith(".") or entry.name in skipped
                    if not hidden and entry.is_dir(follow_symlinks=False):
                        inner.append(entry.name)
        except OSError:
            continue
        yield folder, frozenset(names)
        if depth < DEPTH:
            for name in sorted(inner, reverse=True):
                waiting.append((folder / name, depth + 1))
