"""The committed baseline: what every cell measured when somebody last accepted it, with a reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from leakaudit._util.files import replacing
from leakaudit._util.schema import Pattern, departure
from leakaudit.errors import LeakauditError
from leakaudit.gate import measures
from leakaudit.trace import Json

FORMAT, VERSION = "leakaudit.baseline", 1
DIGITS = 6  # significant ones of a sample
_CELL = {
    "digest": Pattern("a sha256 in hexadecimal", r"[0-9a-f]{64}"),
    "seeds": [int],
    "samples": {str: [float]},
}
_SCHEMA = {
    "format": frozenset({FORMAT}),
    "version": frozenset({VERSION}),
    "updated": str,
    "reason": str,
    "versions": {str: (str, None)},
    "cells": {str: _CELL},
}


@dataclass(frozen=True)
class Block:
    """One cell. samples: one number a seed under each measure."""

    digest: str
    seeds: tuple[int, ...]
    samples: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Baseline:
    """All cells by name, and who changed them last, why and with which versions."""

    cells: Mapping[str, Block] = field(default_factory=dict)
    reason: str = ""
    updated: str = ""
    versions: Mapping[str, str | None] = field(default_factory=dict)

    def merged(
        self, cells: Mapping[str, Block], reason: str, versions: Mapping[str, str | None]
    ) -> Baseline:
        """Return the baseline with some cells anew; the others stay."""
        if not reason.strip():
            raise LeakauditError("a baseline changes for a reason: say it with --reason TEXT")
        return Baseline(
            {**self.cells, **cells},
            reason.strip(),
            datetime.now(UTC).isoformat(timespec="seconds"),
            versions,
        )

    def write(self, path: Path) -> None:
        """Write whole or not at all, keys sorted and one line a measure, so that a pull request shows the change."""
        with replacing(path) as file:
            file.write(self.text().encode())

    def text(self) -> str:
        """Return the file's text."""
        head = {
            "format": FORMAT,
            "version": VERSION,
            "updated": self.updated,
            "reason": self.reason,
            "versions": dict(self.versions),
        }
        lines = [
            f'  "{k}": {json.dumps(v, sort_keys=True, allow_nan=False)}' for k, v in head.items()
        ]
        blocks = [f"    {json.dumps(name)}: {_block(b)}" for name, b in sorted(self.cells.items())]
        cells = "{\n" + ",\n".join(blocks) + "\n  }" if blocks else "{}"
        return "{\n" + ",\n".join(sorted([*lines, f'  "cells": {cells}'])) + "\n}\n"


def read(path: Path) -> Baseline:
    """Read a baseline; raises LeakauditError where it is not there or not what it should be."""
    try:
        values: Json = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        why = (
            "it is not there"
            if isinstance(error, FileNotFoundError)
            else str(error)[:200] or type(error).__name__
        )
        raise LeakauditError(
            f"baseline {path}: {why}; write one with 'leakaudit baseline update --reason TEXT'"
        ) from None
    if wrong := departure(values, _SCHEMA):
        raise LeakauditError(
            f"baseline {path}: {wrong}; restore it from version control, or update it"
        )
    for name, cell in values["cells"].items():
        if any(len(s) != len(cell["seeds"]) for s in cell["samples"].values()):
            raise LeakauditError(
                f"baseline {path}: {name}: expected one sample a seed, {len(cell['seeds'])} each"
            )
    cells = {
        n: Block(c["digest"], tuple(c["seeds"]), {m: tuple(s) for m, s in c["samples"].items()})
        for n, c in values["cells"].items()
    }
    return Baseline(cells, values["reason"], values["updated"], values["versions"])


def block(digest: str, seeds: list[int], samples: Mapping[str, list[float]]) -> Block:
    """Return a cell as it is stored: samples rounded to 6 significant digits."""
    return Block(
        digest, tuple(seeds), {m: tuple(rounded(v) for v in s) for m, s in samples.items()}
    )


def rounded(value: float) -> float:
    """Round to the digits that are stored."""
    return float(f"{value:.{DIGITS}g}")


def shown(base: Baseline) -> str:
    """Return the means of all cells as text."""
    lines = [f"updated {base.updated}: {base.reason}"]
    for name, cell in sorted(base.cells.items()):
        means = ", ".join(
            f"{m} {measures.text(m, fmean(s))}" for m, s in sorted(cell.samples.items()) if s
        )
        lines.append(f"{name} ({len(cell.seeds)} seeds): {means}")
    return "\n".join(lines) + "\n"


def difference(old: Baseline, new: Baseline) -> str:
    """Return what changed from one to the other, one line a measure, means before and after; "" where nothing did."""
    lines = [f"- {name}" for name in sorted(old.cells.keys() - new.cells.keys())]
    for name, cell in sorted(new.cells.items()):
        before = old.cells.get(name)
        if before is None:
            lines.append(f"+ {name}")
            continue
        if before.digest != cell.digest:
            lines.append(f"~ {name}: measured in another way, not comparable")
            continue
        for measure, samples in sorted(cell.samples.items()):
            was = before.samples.get(measure)
            if was is None:
                lines.append(f"+ {name} {measure}")
            elif was != samples or before.seeds != cell.seeds:
                means = " -> ".join(measures.text(measure, fmean(s)) for s in (was, samples))
                seeds = "" if before.seeds == cell.seeds else ", other seeds"
                lines.append(f"~ {name} {measure}: {means}{seeds}")
    return "".join(line + "\n" for line in lines)


def _block(cell: Block) -> str:
    lines = [f'      "digest": {json.dumps(cell.digest)}']
    rows = [
        f"        {json.dumps(m)}: {json.dumps(list(s), allow_nan=False)}"
        for m, s in sorted(cell.samples.items())
    ]
    lines.append('      "samples": {\n' + ",\n".join(rows) + "\n      }")
    lines.append(f'      "seeds": {json.dumps(list(cell.seeds))}')
    return "{\n" + ",\n".join(lines) + "\n    }"
