"""Atomic writing of files: the new content appears completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from zipfile import ZipFile

from leakaudit.errors import LeakauditError

if TYPE_CHECKING:
    import numpy as np

UNFINISHED = ".tmp"  # suffix of files that have not been moved to their final place


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write to a temporary file and move it to its final place at the end.

    If an exception is raised inside, the old file is kept. The folder is created if missing.

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


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file, which may come from a stranger: nothing is unpickled.

    Args:
        path: The file.

    Returns:
        Its arrays by name; other content is left out.

    Raises:
        LeakauditError: The file cannot be read; the message is the reason.
    """
    import numpy as np

    found = {}
    try:
        # np.load by itself would accept a bare .npy file as well.
        with ZipFile(path), np.load(path, allow_pickle=False) as file:
            for name in file.files:
                value = file[name]
                if isinstance(value, np.ndarray):
                    found[name] = value
    except Exception as error:  # a damaged archive may raise anything
        raise LeakauditError(f"{type(error).__name__}: {error}") from None
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
