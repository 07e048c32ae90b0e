"""All runs of a folder, looked through at each request; unchanged files are not read again."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from leakaudit._util.files import resolved
from leakaudit.core.errors import LeakauditError
from leakaudit.reporting.findings.wording import clean
from leakaudit.reporting.viewing import files, running
from leakaudit.reporting.viewing.running import Progress
from leakaudit.reporting.viewing.summaries import RECORD, RunSummary, identifier, summarise

# Folders inside a run with files that are no runs of their own.
PARTS = frozenset({"cells", "errors", "unfinished", "node_modules", "__pycache__"})
RUNS = 20_000  # most runs of a list; a choice

Stamp = tuple[int, int, int, int]  # device, number, size and time of a file


@dataclass(frozen=True)
class _BrokenRun:
    """A folder whose results.json cannot be read."""

    place: str  # the folder, relative to the folder that is shown
    why: str


@dataclass(frozen=True)
class FolderListing:
    """What a folder contains at one time."""

    runs: Sequence[RunSummary] = ()  # the runs, in the order of their places
    progress: Sequence[Progress] = ()
    broken: Sequence[_BrokenRun] = ()  # folders whose results.json cannot be read
    # folders of runs and of progress, by identifier
    paths: dict[str, Path] = field(default_factory=dict)
    cut: bool = False  # whether there are more than `RUNS` runs

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.runs or self.progress or self.broken)


class RunIndex:
    """The runs of one folder."""

    def __init__(self, root: Path) -> None:
        """Prepare to look through a folder."""
        if not root.is_dir():
            raise LeakauditError(f"{root}: expected a folder with runs, found none")
        self.root = resolved(root)
        self._known: dict[Path, tuple[Stamp, RunSummary | _BrokenRun]] = {}
        self._lock = threading.Lock()

    def listing(self) -> FolderListing:
        """Look through the folder."""
        with self._lock:
            return self._looked()

    def _looked(self) -> FolderListing:
        runs: list[RunSummary] = []
        progress: list[Progress] = []
        broken: list[_BrokenRun] = []
        paths: dict[str, Path] = {}
        kept: dict[Path, tuple[Stamp, RunSummary | _BrokenRun]] = {}
        cut = False
        for folder, names in files.folders(self.root, PARTS):
            place = os.path.relpath(folder, self.root)
            seen: RunSummary | _BrokenRun | None = None
            if RECORD in names:
                if len(kept) >= RUNS:
                    cut = True
                    break
                stamp, seen = self._summary(folder / RECORD, place)
                kept[folder] = stamp, seen
            if isinstance(seen, RunSummary):
                runs.append(seen)
                paths[seen.id] = folder
            elif isinstance(seen, _BrokenRun):
                broken.append(seen)
            found = running.progress(folder, place, names, seen)
            if found is not None:
                progress.append(found)
                paths[identifier(place)] = folder
        self._known = kept
        return FolderListing(runs, progress, broken, paths, cut)

    def _summary(self, file: Path, place: str) -> tuple[Stamp, RunSummary | _BrokenRun]:
        """Return what the list shows of one file, and the state of the file that it belongs to."""
        facts = files.facts(file)
        if facts is None:
            return (0, 0, 0, 0), _BrokenRun(clean(place), "results.json is not a regular file")
        stamp = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
        known = self._known.get(file.parent)
        if known is not None and known[0] == stamp:
            return known
        try:
            return stamp, summarise(file, place, facts)
        except LeakauditError as error:
            return stamp, _BrokenRun(clean(place), clean(error))
