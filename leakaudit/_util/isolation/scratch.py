"""Temporary folders in which code of strangers works.

`TemporaryDirectory` changed the permissions of what links name (before Python 3.11.8 and 3.12.1),
and recurses into folders.
"""

from __future__ import annotations

import itertools
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OWNER = stat.S_IRWXU


@contextmanager
def folder() -> Iterator[Path]:
    """Make a private temporary folder, and remove it with all that it then contains."""
    place = Path(tempfile.mkdtemp(prefix="leakaudit-")).resolve()
    try:
        yield place
    finally:
        remove(place)


def remove(place: Path) -> None:
    """Remove a folder. No link is followed, and what cannot be removed stays.

    Inner folders are moved to the top first: no depth exhausts paths or open folders.
    """
    with suppress(OSError):
        top = _opened(None, str(place))
        try:
            _empty(top)
        finally:
            os.close(top)
        place.rmdir()


def _empty(top: int) -> None:
    moved = (f".{secrets.token_hex(8)}-{number}" for number in itertools.count())
    waiting = _unlinked(top)
    while waiting:
        name = waiting.pop()
        inner = _opened(top, name)
        try:
            for child in _unlinked(inner):
                waiting.append(next(moved))
                os.rename(child, waiting[-1], src_dir_fd=inner, dst_dir_fd=top)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=top)


def _unlinked(open_folder: int) -> list[str]:
    """Remove all but folders from an open one, and return their names."""
    folders = []
    with os.scandir(open_folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if is_folder:
            folders.append(name)
        else:
            os.unlink(name, dir_fd=open_folder)
    return folders


def _opened(top: int | None, name: str) -> int:
    if hasattr(os, "O_PATH"):
        # A path can be opened without permissions, and cannot become a link afterwards.
        path = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
        try:
            os.chmod(f"/proc/self/fd/{path}", OWNER)
        finally:
            os.close(path)
    return os.open(name, FOLDER, dir_fd=top)
