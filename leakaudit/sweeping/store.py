"""A sweep's folder: plan.json, one file per cell, and timings.

Timings are kept apart from results, so that results are the same whenever they were made. Every
file but the timings appears whole or not at all; the timings are one line per cell, and a line that
was cut short is passed over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

from msgspec import Struct

from leakaudit._util.decoding import Misfit, decoded
from leakaudit._util.files import replacing
from leakaudit.errors import LeakauditError
from leakaudit.results.provenance import digest
from leakaudit.sweeping import cells, tables
from leakaudit.sweeping.plan import SweepPlan
from leakaudit.trace import Json

T = TypeVar("T")

PLAN = "plan.json"
CELLS = "cells"
ERRORS = "errors"
FORMAT = "leakaudit.sweep"
VERSION = 1


class _Plan(Struct, frozen=True, forbid_unknown_fields=True):
    """The values of plan.json."""

    format: Literal["leakaudit.sweep"]
    version: Literal[1]
    plan: dict[str, object]
    versions: dict[str, str | None]


class _Cell(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of a cell."""

    config: dict[str, object]
    status: Literal["died", "done", "failed"]
    says: str
    constants: dict[str, object]
    records: int
    findings: tuple[dict[str, object], ...]
    # A cell without this entry was counted by an earlier rule, and is run again.
    refused: tuple[dict[str, object], ...]
    reasons: dict[str, str]


class Timing(Struct, frozen=True, forbid_unknown_fields=True):
    """How long one cell took.

    Attributes:
        cell: The name of its result.
        seconds: Time that passed.
        cpu: Time of a processor.
        status: How it ended.
        worker: The process that computed it.
    """

    cell: str
    seconds: float
    cpu: float
    status: str
    worker: int


@dataclass(frozen=True)
class Planned:
    """The plan of a folder, and the versions that name its cells.

    Attributes:
        plan: The sweep.
        versions: Versions of the packages that results depend on.
    """

    plan: SweepPlan
    versions: Mapping[str, str | None]

    @property
    def digest(self) -> str:
        """Digest of both: folders with the same one can be merged."""
        return digest({"plan": tables.to_json(self.plan), "versions": dict(self.versions)})

    @cached_property
    def keyed(self) -> dict[str, cells.Cell]:
        """All cells by the names of their results, in the order of the plan."""
        return {cell.key(self.versions): cell for cell in cells.expand(self.plan)}


@dataclass(frozen=True)
class Store:
    """One folder of a sweep.

    Attributes:
        folder: Where it is.
    """

    folder: Path

    def begin(self, planned: Planned) -> None:
        """Write the plan; results of cells that an earlier plan had too are kept and found again.

        Args:
            planned: The plan.
        """
        about = {
            "format": FORMAT,
            "version": VERSION,
            "plan": tables.to_json(planned.plan),
            "versions": dict(planned.versions),
        }
        _write(self.folder / PLAN, about)

    def planned(self) -> Planned:
        """Return what `begin` wrote.

        Raises:
            LeakauditError: The folder holds no sweep.
        """
        path = self.folder / PLAN
        expected = "expected the folder of a sweep, with its plan.json"
        found = _fitted(path, _read(path, expected), _Plan, expected)
        return Planned(tables.of_json(found.plan), found.versions)

    def save(self, key: str, record: Mapping[str, Json]) -> None:
        """Keep the result of one cell.

        Args:
            key: Its name.
            record: The result.
        """
        _write(self._file(key), record)

    def load(self, key: str) -> dict[str, Json] | None:
        """Return the result of a cell, None if it is not there.

        Args:
            key: Its name.

        Raises:
            LeakauditError: The file is damaged.
        """
        path = self._file(key)
        if not path.is_file():
            return None
        expected = "expected the result of a cell"
        found = _read(path, expected)
        _fitted(path, found, _Cell, expected)
        kept: dict[str, Json] = found
        return kept

    def statuses(self, keys: Iterable[str]) -> dict[str, str]:
        """Return how the cells ended that are there.

        A damaged file counts as none, and is written anew.

        Args:
            keys: Names of cells.
        """
        found = {}
        for key in keys:
            try:
                record = self.load(key)
            except LeakauditError:
                continue
            if record is not None:
                found[key] = str(record["status"])
        return found

    def clean(self, keys: Iterable[str]) -> None:
        """Remove what a process that was killed left of these cells' files.

        Args:
            keys: Names of cells.
        """
        mine = set(keys)
        for path in (self.folder / CELLS).glob(".*.tmp"):
            if path.name[1:].split(".", 1)[0] in mine:
                path.unlink(missing_ok=True)

    def explain(self, key: str, text: str | None) -> None:
        """Keep the traceback of a cell that failed, or remove that of an earlier try.

        Args:
            key: The cell's name.
            text: The traceback, None if there is none.
        """
        path = self.folder / ERRORS / f"{key}.txt"
        if text is None:
            path.unlink(missing_ok=True)
            return
        with replacing(path) as file:
            file.write(text.encode("utf-8", "backslashreplace"))

    def timed(self, shard: str, line: Mapping[str, Json]) -> None:
        """Append the timing of one cell in one write.

        Args:
            shard: The part of the sweep, which has a file of its own.
            line: The timing.
        """
        path = self.folder / f"times-{shard}.jsonl"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, json.dumps(line).encode() + b"\n")
        finally:
            os.close(handle)

    def times(self) -> Iterator[Timing]:
        """Yield the timings of all shards that wrote here."""
        for path in sorted(self.folder.glob("times-*.jsonl")):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    yield decoded(json.loads(line), Timing)
                except (ValueError, Misfit):
                    continue

    def _file(self, key: str) -> Path:
        return self.folder / CELLS / f"{key}.json"


def _write(path: Path, record: Mapping[str, Json]) -> None:
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace") + b"\n")


def _read(path: Path, expected: str) -> Json:
    """Return the JSON of a file."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise LeakauditError(f"{path}: {expected}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise LeakauditError(f"{path}: {expected}, got no JSON") from None


def _fitted(path: Path, found: Json, kind: type[T], expected: str) -> T:
    """Return what a file holds as a type."""
    try:
        return decoded(found, kind)
    except Misfit as error:
        raise LeakauditError(f"{path}: {expected}: {error}") from None
