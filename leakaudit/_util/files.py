"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from leakaudit.errors import LeakauditError


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
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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
