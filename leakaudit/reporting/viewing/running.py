"""Runs in progress: how far a sweep, an audit or an attack is, from the files that it writes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from leakaudit._util.decoding import from_json
from leakaudit.core.errors import LeakauditError
from leakaudit.reporting.findings.measured import best
from leakaudit.reporting.findings.wording import clean
from leakaudit.reporting.results import progress_file
from leakaudit.reporting.results.cell_files import DONE, CellResult
from leakaudit.reporting.viewing import files
from leakaudit.reporting.viewing.summaries import identifier

PLAN = "plan.json"
CELLS = "cells"
ERRORS = "errors"
# A run that wrote nothing for so many seconds is shown as stopped: cells may take minutes.
QUIET = 900.0
LATEST = 12  # cells of a sweep that are shown
SMALL = 1 << 16  # bytes of a progress file
MOST = 1 << 53  # a count beyond this is none of this program's
CELL = 1 << 20  # bytes of a cell's file


@dataclass(frozen=True)
class _StageProgress:
    """One kind of work that is counted."""

    what: str  # what is counted, such as `cells`
    done: int  # how many are finished
    total: int  # how many there are, 0 if that is not known

    @property
    def share(self) -> str:
        """The finished part in per cent, "" if it is not known."""
        if not self.total:
            return ""
        return f"{min(self.done, self.total) / self.total:.0%}"


@dataclass(frozen=True)
class Progress:
    """A run in progress, or one that was interrupted."""

    id: str  # as `leakaudit.reporting.viewing.summaries.RunSummary.id`
    place: str
    kind: str  # `sweep` or `run`
    stages: Sequence[_StageProgress]  # what is counted
    failed: int  # number of cells without a result
    quiet: float  # seconds since a file was written
    left: float | None  # estimated seconds that are left, None if they cannot be estimated

    @property
    def active(self) -> bool:
        """Whether a file was written recently."""
        return self.quiet < QUIET


@dataclass(frozen=True)
class _FinishedCell:
    """A finished cell of a sweep."""

    victim: str
    attack: str
    adversary: str
    epsilon: str  # epsilon, "" for the constants of the scenario
    seed: str
    status: str  # how it ended
    says: str  # why it has no result
    psnr: str  # best PSNR in dB, "" if there is none
    ago: float  # seconds since it ended


def progress(folder: Path, place: str, names: frozenset[str], seen: object) -> Progress | None:
    """Return how far the run of a folder is."""
    noted = None
    if progress_file.NAME in names:
        with suppress(LeakauditError):
            noted = progress_file.parsed(files.head(folder / progress_file.NAME, SMALL))
    sweep = PLAN in names and CELLS in names
    if noted is None and (not sweep or seen is not None):
        return None
    stages = []
    times: list[float] = []
    failed = 0
    spent = None  # seconds that progress.json counts
    if noted is not None:
        for stage in noted.stages[:8]:
            stages.append(
                _StageProgress(clean(stage.what)[:40], max(0, stage.done), max(0, stage.total))
            )
        times.append(noted.updated)
        spent = max(0.0, noted.updated - noted.started)
    if sweep:
        ended = sorted(written for written, _ in _dated(folder / CELLS))
        failed = len(_some(folder / ERRORS, ".txt"))
        times += ended
        total = max((stage.total for stage in stages if stage.what == CELLS), default=0)
        # A part of a sweep counts its own cells, but the folder may hold those of other parts.
        others = [stage for stage in stages if stage.what != CELLS]
        stages = [
            _StageProgress(CELLS, len(ended), max(total, len(ended)) if total else 0),
            *others,
        ]
    now = time.time()
    quiet = max(0.0, now - max(times, default=now))
    return Progress(
        id=identifier(place),
        place=clean(place),
        kind="sweep" if sweep else "run",
        stages=stages,
        failed=failed,
        quiet=quiet,
        left=_left(stages, times if sweep else [], spent),
    )


def _dated(folder: Path) -> list[tuple[float, Path]]:
    """The files of the cells of a sweep, with the times at which they were written."""
    dated = []
    for path in _some(folder, ".json"):
        facts = files.facts(path)
        if facts is not None:
            dated.append((facts.st_mtime, path))
    return dated


def _some(folder: Path, suffix: str) -> list[Path]:
    found: list[Path] = []
    if folder.is_symlink():
        return found
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if len(found) >= files.ENTRIES:
                    break
                if entry.name.endswith(suffix) and not entry.name.startswith("."):
                    found.append(Path(entry.path))
    except OSError:
        return []
    return found


def _left(
    stages: Sequence[_StageProgress], times: Sequence[float], spent: float | None
) -> float | None:
    if not stages or not stages[0].total:
        return None
    first = stages[0]
    missing = float(min(MOST, max(0, first.total - first.done)))
    recent = sorted(times)[-50:]
    if len(recent) > 1 and recent[-1] > recent[0]:
        return missing * (recent[-1] - recent[0]) / (len(recent) - 1)
    if spent is None or not first.done:
        return None
    return missing * spent / min(MOST, first.done)


def latest(folder: Path) -> list[_FinishedCell]:
    """Return the cells of a sweep that ended last."""
    cells = []
    now = time.time()
    for written, path in sorted(_dated(folder / CELLS), reverse=True)[:LATEST]:
        try:
            result = from_json(files.head(path, CELL), CellResult)
        except (LeakauditError, ValueError, RecursionError):
            continue
        cells.append(_cell(result, max(0.0, now - written)))
    return cells


def _cell(result: CellResult, ago: float) -> _FinishedCell:
    config = result.config
    epsilon = ""
    if config.epsilon is not None:
        epsilon = str(config.epsilon.epsilon)
    found = []
    for finding in result.findings:
        value = None if finding.scores is None else best(finding.scores.psnr, max)
        if value is not None:
            found.append(value)
    psnr = f"{max(found):.1f}" if found and result.status == DONE else ""
    return _FinishedCell(
        victim=clean(config.scenario.get("victim", ""))[:80],
        attack=clean(config.attack)[:80],
        adversary=clean(config.adversary)[:80],
        epsilon=epsilon,
        seed=clean(config.scenario.get("seed", ""))[:20],
        status=result.status,
        says=clean(result.says)[:300],
        psnr=psnr,
        ago=ago,
    )
