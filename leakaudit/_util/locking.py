"""Locks of folders, which the operating system releases when their holder ends, however it ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if sys.platform != "win32":
    import fcntl


def lock(folder: Path, wait: bool) -> int | None:
    """Lock a folder for as long as the returned descriptor is open; None if this system cannot."""
    if sys.platform == "win32":
        return None
    fd = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd
