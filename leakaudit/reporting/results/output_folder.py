"""The folder of a run: made, and checked, before any work."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leakaudit._util.files import private_folder
from leakaudit.core.errors import LeakauditError
from leakaudit.reporting.results import progress_file


@contextmanager
def ready(folder: Path) -> Iterator[None]:
    """Create the output folder and check that it is writable before any work.

    The work inside writes its progress there. If it fails, the folders that were made and are
    still empty are removed.
    """
    new = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        private_folder(folder)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as e:
        raise LeakauditError(
            f"output folder {folder} cannot be written: {e.strerror}; choose another with --output"
        ) from e
    try:
        with progress_file.kept(folder):
            yield
    except BaseException:
        for made in new:
            if made.is_dir() and not any(made.iterdir()):
                made.rmdir()
        raise
