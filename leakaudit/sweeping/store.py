"""A sweep's folder: plan.json, one file a cell, and timings apart from results, so that results are the same whenever they were made.

Every file but the timings appears whole or not at all; the timings are one line a cell, and a line that was cut short is passed over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from leakaudit._util.files import replacing
from leakaudit._util.schema import ANY, departure
from leakaudit.errors import LeakauditError
from leakaudit.results.provenance import digest
from leakaudit.sweeping import cells, tables
from leakaudit.sweeping.plan import SweepPlan
from leakaudit.trace import Json

PLAN, CELLS, ERRORS = "plan.json", "cells", "errors"
FORMAT, VERSION = "leakaudit.sweep", 1
DONE, FAILED, DIED = "done", "failed", "died"
_PLAN = {
    "format": frozenset({FORMAT}),
    "version": frozenset({VERSION}),
    "plan": {str: ANY},
    "versions": {str: (str, None)},
}
_CELL = {
    "config": {str: ANY},
    "status": frozenset({DONE, FAILED, DIED}),
    "says": str,
    "constants": {str: ANY},
    "records": int,
    "findings": [{str: ANY}],
    "refused": [
        {str: ANY}
    ],  # a cell without this entry was counted by an earlier rule, and is run again
    "reasons": {str: str},
}


@dataclass(frozen=True)
class Planned:
    """The plan of a folder, and the versions that name its cells."""

    plan: SweepPlan
    versions: Mapping[str, str | None]

    @property
    def digest(self) -> str:
        """Of both: folders with the same one can be merged."""
        return digest({"plan": tables.to_json(self.plan), "versions": dict(self.versions)})

    @cached_property
    def keyed(self) -> dict[str, cells.Cell]:
        """Return all cells by the names of their results, in the order of the plan."""
        return {cell.key(self.versions): cell for cell in cells.expand(self.plan)}


@dataclass(frozen=True)
class Store:
    """One folder."""

    folder: Path

    def begin(self, planned: Planned) -> None:
        """Write the plan; results of cells that an earlier plan had too are kept and found again."""
        about = {
            "format": FORMAT,
            "version": VERSION,
            "plan": tables.to_json(planned.plan),
            "versions": dict(planned.versions),
        }
        _write(self.folder / PLAN, about)

    def planned(self) -> Planned:
        """Return what `begin` wrote; raises LeakauditError where the folder holds no sweep."""
        path = self.folder / PLAN
        found = _read(path, _PLAN, "expected the folder of a sweep, with its plan.json")
        return Planned(tables.of_json(found["plan"]), found["versions"])

    def save(self, key: str, record: Mapping[str, Json]) -> None:
        """Keep the result of one cell."""
        _write(self._file(key), record)

    def load(self, key: str) -> dict[str, Json] | None:
        """Return the result of a cell, None where it is not there; raises LeakauditError for a damaged file."""
        path = self._file(key)
        return _read(path, _CELL, "expected the result of a cell") if path.is_file() else None

    def statuses(self, keys: Iterable[str]) -> dict[str, str]:
        """Return how the cells ended that are there; a damaged file counts as none, and is written anew."""
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
        """Remove what a process that was killed left of these cells' files."""
        mine = set(keys)
        for path in (self.folder / CELLS).glob(".*.tmp"):
            if path.name[1:].split(".", 1)[0] in mine:
                path.unlink(missing_ok=True)

    def explain(self, key: str, text: str | None) -> None:
        """Keep the traceback of a cell that failed, or remove that of an earlier try."""
        path = self.folder / ERRORS / f"{key}.txt"
        if text is None:
            path.unlink(missing_ok=True)
            return
        with replacing(path) as file:
            file.write(text.encode("utf-8", "backslashreplace"))

    def timed(self, shard: str, line: Mapping[str, Json]) -> None:
        """Append the timing of one cell in one write."""
        handle = os.open(
            self.folder / f"times-{shard}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        try:
            os.write(handle, json.dumps(line).encode() + b"\n")
        finally:
            os.close(handle)

    def times(self) -> Iterator[dict[str, Json]]:
        """Return the timings of all shards that wrote here."""
        for path in sorted(self.folder.glob("times-*.jsonl")):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    found = json.loads(line)
                except ValueError:
                    continue
                if (
                    isinstance(found, dict)
                    and departure(
                        found,
                        {"cell": str, "seconds": float, "cpu": float, "status": str, "worker": int},
                    )
                    is None
                ):
                    yield found

    def _file(self, key: str) -> Path:
        return self.folder / CELLS / f"{key}.json"


def _write(path: Path, record: Mapping[str, Json]) -> None:
    with replacing(path) as file:
        file.write(
            json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False).encode(
                "utf-8", "backslashreplace"
            )
            + b"\n"
        )


def _read(path: Path, spec: Mapping[str, Json], expected: str) -> dict[str, Json]:
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise LeakauditError(f"{path}: {expected}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise LeakauditError(f"{path}: {expected}, got no JSON") from None
    if wrong := departure(found, spec):
        raise LeakauditError(f"{path}: {expected}: {wrong}")
    kept: dict[str, Json] = found
    return kept
