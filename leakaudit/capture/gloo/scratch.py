"""The folder in which the processes of one run meet.

Its run holds it locked; the next run removes a folder that nobody holds.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from leakaudit._util.files import explained
from leakaudit._util.locking import lock as lock_folder

PREFIX = ".gloo-"


@contextmanager
def scratch(path: Path | str | None) -> Iterator[Path]:
    """Create the folder of a run beside its output, and remove it at the end."""
    beside = None if path is None else Path(path).parent
    if beside is not None:
        clear(beside)
    with explained(f"cannot write beside {path}", "; choose another output"):
        folder, lock = _held(beside)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def clear(beside: Path) -> None:
    """Remove the folders of runs that were killed."""
    for folder in beside.glob(f"{PREFIX}*"):
        with suppress(OSError):
            lock = lock_folder(folder, wait=False)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _held(beside: Path | None) -> tuple[Path, int | None]:
    """Create a folder and lock it; the descriptor is None if this system cannot lock folders.

    Another run may take it for that of a killed run and remove it; then there is a new one.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=beside))
        lock = None
        with suppress(OSError):
            lock = lock_folder(folder, wait=True)
        if folder.exists():
            return folder, lock
        if lock is not None:
            os.close(lock)
