"""A sweep's folder: plan.json, one file per cell, and timings, on which no result depends.

Timings have a line per cell; incomplete ones are ignored. All other files are written atomically.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import structs

from leakaudit._util.decoding import TypeMismatch, decoded
from leakaudit._util.files import PRIVATE, replacing, unfinished
from leakaudit._util.uncollected import read_json
from leakaudit.core.errors import LeakauditError
from leakaudit.reporting.results import model, provenance
from leakaudit.reporting.results.cell_files import CellResult, Status
from leakaudit.runs.sweeping import cells, tables
from leakaudit.runs.sweeping.plan import SweepPlan

S = TypeVar("S", bound=msgspec.Struct)

FORMAT: Literal["leakaudit.sweep"] = "leakaudit.sweep"
VERSION: Literal[1] = 1
PLAN = "plan.json"
CELLS = "cells"
ERRORS = "errors"
TIMES = "times-{}.jsonl"  # of one part
# A link is never followed, also if it appears while the sweep runs.
APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)


class _PlanFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: Literal["leakaudit.sweep"]
    version: Literal[1]
    plan: Mapping[str, model.Free]  # as `leakaudit.runs.sweeping.tables` reads and writes it
    versions: dict[str, str | None]  # versions of the packages that results depend on


class _Timing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cell: str
    seconds: float  # wall-clock time
    cpu: float  # processor time in seconds
    status: str  # how the cell ended
    worker: int  # number of its process


@dataclass(frozen=True)
class StoredPlan:
    """The plan of a folder, and the versions that name its cells."""

    plan: SweepPlan
    # versions of the packages that results depend on
    versions: Mapping[str, str | None] = field(default_factory=provenance.decisive_versions)

    def __post_init__(self) -> None:
        """State which files of weights are meant."""
        object.__setattr__(self, "plan", self.plan.pinned())

    @property
    def digest(self) -> str:
        """Digest of both: folders with the same digest can be merged."""
        return provenance.digest(
            {"plan": tables.to_json(self.plan), "versions": dict(self.versions)}
        )

    @cached_property
    def keyed(self) -> dict[str, cells.PlannedCell]:
        """All cells by the names of their results, in order."""
        return {cell.key(self.versions): cell for cell in cells.expand(self.plan)}


@dataclass(frozen=True)
class Store:
    """One folder of a sweep."""

    folder: Path

    def refuse_links(self) -> None:
        """Refuse a folder in which a link leads outside."""
        for name in (CELLS, ERRORS):
            path = self.folder / name
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                _refuse_place(path, "a folder")
        for path in self.folder.glob(TIMES.format("*")):
            if path.is_symlink() or not path.is_file():
                _refuse_place(path, "a file")

    def begin(self, planned: StoredPlan) -> None:
        """Write the plan; results that an earlier plan shares are reused."""
        about = _PlanFile(
            format=FORMAT,
            version=VERSION,
            plan=tables.to_json(planned.plan),
            versions=dict(planned.versions),
        )
        _write(self.folder / PLAN, about)

    def planned(self) -> StoredPlan:
        """Return what `begin` wrote."""
        path = self.folder / PLAN
        found = _read(path, _PlanFile, "expected the folder of a sweep, with its plan.json")
        return StoredPlan(tables.of_json(found.plan), found.versions)

    def save(self, key: str, result: CellResult) -> None:
        """Store a result; if the machine fails soon after, the cell is run again."""
        stored = structs.replace(result, sha256=_digest(key, result))
        _write(self._file(key), stored, durable=False)

    def load(self, key: str) -> CellResult | None:
        """Return the result of a cell, None if it does not exist."""
        path = self._file(key)
        if not path.is_file():
            return None
        result = _read(path, CellResult, "expected the result of a cell")
        if result.sha256 != _digest(key, result):
            raise LeakauditError(
                f"{path} was changed or renamed after it was written; "
                "delete it, and run the sweep again"
            )
        return result

    def statuses(self, keys: Iterable[str]) -> dict[str, Status]:
        """Return how the stored cells ended; damaged files are written again."""
        found = {}
        for key in keys:
            try:
                result = self.load(key)
            except LeakauditError:
                continue
            if result is not None:
                found[key] = result.status
        return found

    def clean(self, keys: Iterable[str]) -> None:
        """Remove partial files of these cells that a killed process left."""
        mine = {self._file(key).name for key in keys}
        for path, name in unfinished(self.folder / CELLS).items():
            if name in mine:
                path.unlink(missing_ok=True)

    def explain(self, key: str, text: str | None) -> None:
        """Store the traceback of a failed cell, or remove that of an earlier attempt."""
        path = self.folder / ERRORS / f"{key}.txt"
        if text is None:
            path.unlink(missing_ok=True)
            return
        with replacing(path) as file:
            file.write(text.encode("utf-8", "backslashreplace"))

    def timed(
        self, shard: str, cell: str, seconds: float, cpu: float, status: Status, worker: int
    ) -> None:
        """Append the wall-clock and processor time in seconds of one cell in one write."""
        path = self.folder / TIMES.format(shard)
        timing = _Timing(
            cell=cell,
            seconds=round(seconds, 4),
            cpu=round(cpu, 4),
            status=status,
            worker=worker,
        )
        line = json.dumps(model.plain(timing)).encode() + b"\n"
        try:
            handle = os.open(path, APPEND, PRIVATE)
            try:
                os.write(handle, line)
            finally:
                os.close(handle)
        except OSError as error:
            raise LeakauditError(
                f"cannot write {path}: {error.strerror}; choose another place with --output"
            ) from None

    def times(self) -> Iterator[_Timing]:
        """Yield the timings of all shards that wrote here."""
        for path in sorted(self.folder.glob(TIMES.format("*"))):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    yield decoded(read_json(line), _Timing)
                except (ValueError, RecursionError, TypeMismatch):
                    continue

    def _file(self, key: str) -> Path:
        return self.folder / CELLS / f"{key}.json"


def _refuse_place(path: Path, expected: str) -> None:
    raise LeakauditError(
        f"{path}: expected {expected} of this sweep, found a link or something else, through which "
        "other files could be changed; choose another folder with --output"
    )


def _digest(key: str, result: CellResult) -> str:
    """Return the digest of a result and its name, without which two could be exchanged."""
    return provenance.digest(
        {"cell": key, "result": model.plain(structs.replace(result, sha256=""))}
    )


def _write(path: Path, content: msgspec.Struct, durable: bool = True) -> None:
    text = json.dumps(model.plain(content), indent=1, ensure_ascii=False, allow_nan=False)
    with replacing(path, durable) as file:
        file.write(text.encode("utf-8", "backslashreplace") + b"\n")


def _read(path: Path, kind: type[S], expected: str) -> S:
    try:
        found = read_json(path.read_bytes())
    except OSError as error:
        raise LeakauditError(f"{path}: {expected}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise LeakauditError(f"{path}: {expected}, got invalid JSON") from None
    try:
        return decoded(found, kind)
    except TypeMismatch as error:
        raise LeakauditError(f"{path}: {expected}: {error}") from None
