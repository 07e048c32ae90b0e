"""The committed baseline: the last accepted measurements of every cell, with a reason."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct, to_builtins

from leakaudit._util import averages
from leakaudit._util.decoding import Sha256, TypeMismatch, decoded
from leakaudit._util.files import replacing
from leakaudit._util.uncollected import read_json
from leakaudit.core.errors import LeakauditError
from leakaudit.reporting.findings import wording

FORMAT: Literal["leakaudit.baseline"] = "leakaudit.baseline"
VERSION: Literal[1] = 1
DIGITS = 6  # significant digits of a sample
LARGEST = 1e300  # a sample; sums of larger ones are beyond all floats
_NUMBERS = re.compile(r"\[\n([^\]]*)\]")
Change: TypeAlias = tuple[str, Mapping[str, str | float | bool | None]]  # in words, and as JSON
SEEDS = 10_000  # most seeds of a cell; a choice, a comparison of so many takes seconds


class CellMeasurements(Struct, frozen=True, forbid_unknown_fields=True):
    """The measurements of one cell, in memory and in the file."""

    check: str
    digest: Sha256  # of how it was measured
    seeds: tuple[int, ...]
    samples: dict[str, tuple[float, ...]]  # measure -> one number per seed


class _Stored(Struct, frozen=True, forbid_unknown_fields=True):
    format: Literal["leakaudit.baseline"]
    version: Literal[1]
    updated: str
    reason: str
    versions: dict[str, str | None]
    cells: dict[str, CellMeasurements]


@dataclass(frozen=True)
class Baseline:
    """All cells, and their last change."""

    cells: Mapping[str, CellMeasurements] = field(default_factory=dict)  # by name
    reason: str = ""  # reason of the last change
    updated: str = ""  # time of the last change, in ISO format
    # package -> version used for the measurements, None if it was not installed
    versions: Mapping[str, str | None] = field(default_factory=dict)

    def merged(
        self, cells: Mapping[str, CellMeasurements], reason: str, versions: Mapping[str, str | None]
    ) -> Baseline:
        """Return the baseline with some cells replaced or added; the others stay."""
        if not reason.strip():
            raise LeakauditError("changing a baseline requires a reason: use --reason TEXT")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return Baseline({**self.cells, **cells}, reason.strip(), now, versions)

    def write(self, path: Path) -> None:
        """Write the file atomically."""
        with replacing(path) as file:
            file.write(self.text().encode())

    def text(self) -> str:
        """Return the file's text, sorted and with one line per measure, for readable diffs."""
        stored = _Stored(
            format=FORMAT,
            version=VERSION,
            updated=self.updated,
            reason=self.reason,
            versions=dict(self.versions),
            cells=dict(self.cells),
        )
        text = json.dumps(to_builtins(stored), sort_keys=True, indent=2, allow_nan=False)
        # Only lists of numbers begin with a line break: those in text are escaped.
        return _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def read(path: Path) -> Baseline:
    """Read a baseline."""
    try:
        values: object = read_json(path.read_bytes())
    except FileNotFoundError:
        raise _unreadable(path, "the file does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, str(error)[:200] or type(error).__name__) from None
    try:
        stored = decoded(values, _Stored)
    except TypeMismatch as error:
        raise LeakauditError(
            f"baseline {path}: {error}; restore it from version control, or update it"
        ) from None
    for name, cell in stored.cells.items():
        check_samples(cell.seeds, cell.samples, f"baseline {path}: {name}")
    return Baseline(stored.cells, stored.reason, stored.updated, stored.versions)


def check_samples(seeds: Sequence[int], samples: Mapping[str, Sequence[float]], where: str) -> None:
    """Reject a cell without one sample per seed, or beyond `SEEDS` or `LARGEST`."""
    count = len(seeds)
    if not 1 <= count <= SEEDS:
        raise LeakauditError(f"{where}: expected from 1 to {SEEDS} seeds, got {count}")
    if any(len(values) != count for values in samples.values()):
        raise LeakauditError(f"{where}: expected one sample per seed, {count} per measure")
    if any(abs(value) > LARGEST for values in samples.values() for value in values):
        raise LeakauditError(f"{where}: expected samples up to {LARGEST:g} in size")


def _unreadable(path: Path, why: str) -> LeakauditError:
    hint = "create one with 'leakaudit check --update --reason TEXT'"
    return LeakauditError(f"baseline {path}: {why}; {hint}")


def block(
    check: str, digest: str, seeds: Sequence[int], samples: Mapping[str, Sequence[float]]
) -> CellMeasurements:
    """Return a cell in the form in which it is stored, with rounded samples."""
    stored = {measure: tuple(map(rounded, values)) for measure, values in samples.items()}
    return CellMeasurements(check, digest, tuple(seeds), stored)


def rounded(value: float) -> float:
    """Round to the stored number of digits."""
    return float(f"{value:.{DIGITS}g}")


def _change(
    kind: Literal["removed", "added", "changed", "not comparable"],
    cell: str,
    measure: str | None = None,
    before: float | None = None,
    after: float | None = None,
    other_seeds: bool = False,
) -> Change:
    """Describe one difference between two baselines, of means of a measure or of a whole cell."""
    values: dict[str, str | float | bool | None] = {
        "change": kind,
        "cell": cell,
        "measure": measure,
        "before": before,
        "after": after,
        "other_seeds": other_seeds,
    }
    if kind == "not comparable":
        return f"~ {cell}: measured in another way, not comparable", values
    name = " ".join(filter(None, (cell, measure)))
    if measure is None or before is None or after is None:
        return f"{'-' if kind == 'removed' else '+'} {name}", values
    was = wording.figure(measure, before)
    now = wording.figure(measure, after)
    return f"~ {name}: {was} -> {now}{', other seeds' * other_seeds}", values


def means(base: Baseline) -> dict[str, object]:
    """Return the means of all cells."""
    cells = {}
    for name, cell in sorted(base.cells.items()):
        found = {measure: averages.mean(samples) for measure, samples in cell.samples.items()}
        cells[name] = {"seeds": len(cell.seeds), "means": found}
    return {"updated": base.updated, "reason": base.reason, "cells": cells}


def changes(old: Baseline, new: Baseline) -> list[Change]:
    """Return what changed between two baselines."""
    found = [_change("removed", name) for name in sorted(old.cells.keys() - new.cells.keys())]
    for name, cell in sorted(new.cells.items()):
        before = old.cells.get(name)
        if before is None:
            found.append(_change("added", name))
        elif before.digest != cell.digest:
            found.append(_change("not comparable", name))
        else:
            found += _changed_measures(name, before, cell)
    return found


def _changed_measures(
    name: str, before: CellMeasurements, cell: CellMeasurements
) -> Iterator[Change]:
    for measure, samples in sorted(cell.samples.items()):
        was = before.samples.get(measure)
        if was is None:
            yield _change("added", name, measure, after=averages.mean(samples))
        elif was != samples or before.seeds != cell.seeds:
            other = before.seeds != cell.seeds
            then, now = averages.mean(was), averages.mean(samples)
            yield _change("changed", name, measure, then, now, other)
