"""The entry of the processes that render reports; the server can import it without torch."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path


def run(
    answer: Connection[object, object], job: str, folders: tuple[Path, ...], root: Path
) -> None:
    """Do one job of `leakaudit.reporting.viewing.worker`."""
    from leakaudit.reporting.viewing import worker

    worker.work(answer, job, folders, root)
