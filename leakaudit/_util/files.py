"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from leakaudit.errors import LeakauditError

UNFINISHED = ".tmp"  # how the name of a file ends that has not moved into its place


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write beside a file and move into its place at the end.

    An exception inside leaves the old file as it was. The folder is made if it is missing.

    Args:
        path: The file to write or replace.

    Yields:
        The open file.

    Raises:
        LeakauditError: The file cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with beside.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise LeakauditError(
            f"cannot write {path}: {reason}; choose another place with --output"
        ) from None


def unfinished(folder: Path) -> dict[Path, str]:
    """Find what `replacing` left behind when its process was killed.

    Args:
        folder: Where files were written.

    Returns:
        Files that never moved into their places, each with the name that it would have had.
    """
    found = {}
    for path in folder.glob(f".*{UNFINISHED}"):
        process = path.with_suffix("")  # ends in the number of the process
        found[path] = process.stem.removeprefix(".")
    return found
