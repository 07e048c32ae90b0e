"""Atomic writing of files: the new content appears completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from leakaudit.errors import LeakauditError

if TYPE_CHECKING:
    import numpy as np

UNFINISHED = ".tmp"  # suffix of files that have not been moved to their final place


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """Write to a temporary file and move it to its final place at the end.

    If an exception is raised inside, the old file is kept. The folder is created if missing.

    Args:
        path: The file to write or replace.
        durable: Whether the content is on the disk at the end, so that a failure of the machine
            cannot leave an empty file. This takes milliseconds.

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
                if durable:
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
    """Find the files that `replacing` left behind when its process was killed.

    Args:
        folder: Folder in which files were written.

    Returns:
        Files that were never moved to their final place, each with its intended name.
    """
    found = {}
    for path in folder.glob(f".*{UNFINISHED}"):
        process = path.with_suffix("")  # ends with the process number
        found[path] = process.stem.removeprefix(".")
    return found


def write_arrays(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
    """Write numbers as .npz.

    Args:
        file: An open file.
        arrays: Arrays of numbers, by name.
    """
    import numpy as np

    # numpy has an argument allow_pickle since 2.1; earlier versions would store it as an array.
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
