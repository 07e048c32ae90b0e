"""Reports of runs, rendered by processes of their own when they are requested."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
from msgspec import Struct

from leakaudit._util import forks
from leakaudit.core.errors import LeakauditError
from leakaudit.reporting.findings.comparison import ResultsComparison
from leakaudit.reporting.viewing.summaries import RECORD

# What every report needs. Charts, which only audits have, load matplotlib when they are drawn.
PRELOADED = ("leakaudit.reporting.viewing.worker", "leakaudit.reports.html", "networkx")
SECONDS = 120.0  # longest time that one report may take
PAGE = 1 << 26  # bytes of one report
KEPT = 1 << 25  # bytes of all reports that are kept
BESIDE = 10_000  # files of a folder whose state decides whether a report is rendered again

Key = tuple[object, ...]


class _Page(Struct, frozen=True):
    """A report."""

    html: str
    policy: str  # content security policy of the page


class _Changes(Struct, frozen=True):
    against: ResultsComparison
    more: int  # number of checks that are left out


class _Failed(Struct, frozen=True):
    """Why there is no outcome."""

    failed: str | None = None


class Reports:
    """Reports of the runs in one folder; the latest are kept in memory."""

    def __init__(self, root: Path, seconds: float = SECONDS) -> None:
        """Prepare; no process is started before the first report."""
        self._root = root
        self._seconds = seconds
        self._kept: OrderedDict[Key, _Page] = OrderedDict()
        self._size = 0
        self._warm = False
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Start the process that loads what reports need, without waiting for it."""
        with self._lock:
            if not self._warm:
                self._warm = True
                forks.context(PRELOADED)

    def page(self, folder: Path) -> _Page:
        """Return the report of a run."""
        key = _state(folder)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = msgspec.json.decode(self._ask("page", (folder,)), type=_Page)
        self._keep(key, made)
        return made

    def changes(self, now: Path, before: Path) -> tuple[ResultsComparison, int]:
        """Compare two runs; return also the number of checks that are left out."""
        made = msgspec.json.decode(self._ask("changes", (now, before)), type=_Changes)
        return made.against, made.more

    def _keep(self, key: Key, made: _Page) -> None:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self._size += _size(made)
            while self._size > KEPT and self._kept:
                _, dropped = self._kept.popitem(last=False)
                self._size -= _size(dropped)

    def _ask(self, job: str, folders: Sequence[Path]) -> bytes:
        context = forks.context(PRELOADED)
        here, there = context.Pipe(duplex=False)
        arguments = (there, job, tuple(folders), self._root)
        process = context.Process(target=_work, args=arguments, daemon=True)
        process.start()
        there.close()
        try:
            if not here.poll(self._seconds):
                raise LeakauditError(
                    f"the report took longer than {self._seconds:g} s; use 'leakaudit report'"
                )
            answer = here.recv_bytes(PAGE)
        except (EOFError, OSError):
            raise LeakauditError(
                "the process that renders the report ended without an answer; the record may be "
                "too large or damaged: try 'leakaudit report'"
            ) from None
        finally:
            process.kill()
            process.join()
            process.close()
            here.close()
        failed = msgspec.json.decode(answer, type=_Failed).failed
        if failed is not None:
            raise LeakauditError(failed)
        return answer


def _work(
    answer: Connection[object, object], job: str, folders: tuple[Path, ...], root: Path
) -> None:
    """Do one job in a process of its own; the server imports this module without torch."""
    from leakaudit.reporting.viewing import worker

    worker.work(answer, job, folders, root)


def _size(page: _Page) -> int:
    return len(page.html)


def _state(folder: Path) -> Key:
    found: list[tuple[str, int, int]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if len(found) >= BESIDE:
                    break
                facts = entry.stat(follow_symlinks=False)
                found.append((entry.name, facts.st_size, facts.st_mtime_ns))
    except OSError:
        raise LeakauditError(f"{folder / RECORD} cannot be read any more") from None
    return (folder, *sorted(found))
