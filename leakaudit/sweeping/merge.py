"""The record of a sweep, from the results of its cells, wherever these were made.

The same cells give the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from leakaudit._util.files import replacing
from leakaudit.errors import LeakauditError
from leakaudit.rendering import plots
from leakaudit.results import record_file
from leakaudit.sweeping import panels, points, tables, words
from leakaudit.sweeping.cells import Cell
from leakaudit.sweeping.status import DONE
from leakaudit.sweeping.store import Planned, Store
from leakaudit.trace import Json

FIGURE = "sweep.png"
REPORT = "report.md"


def write(folders: Sequence[Path], path: Path) -> dict[str, Json]:
    """Put the parts of a sweep together.

    Args:
        folders: The parts.
        path: Where results.json goes; sweep.png and report.md go beside it.

    Returns:
        What results.json holds.

    Raises:
        LeakauditError: The folders belong to different sweeps, or a file is damaged.
    """
    planned, found = collect(folders)
    record = build(planned, found)
    plots.save(panels.figure(record), path.parent / FIGURE)
    with replacing(path.parent / REPORT) as file:
        file.write(words.markdown(record).encode())
    record_file.write(path, record)
    return record


def collect(folders: Sequence[Path]) -> tuple[Planned, dict[str, dict[str, Json]]]:
    """Read the parts of a sweep.

    Args:
        folders: The parts.

    Returns:
        The plan of all folders, and the results that are there, by key in the order of the plan.

    Raises:
        LeakauditError: The folders belong to different sweeps, or a file is damaged.
    """
    planned = Store(folders[0]).planned()
    for folder in folders[1:]:
        if Store(folder).planned().digest != planned.digest:
            raise LeakauditError(
                f"{folder} holds another sweep than {folders[0]}, or one of other versions; "
                "merge parts of one sweep"
            )
    found: dict[str, dict[str, Json]] = {}
    for key in planned.keyed:
        result = _best(folders, key)
        if result is not None:
            found[key] = result
    return planned, found


def _best(folders: Sequence[Path], key: str) -> dict[str, Json] | None:
    """Return the first result of a cell that is done, else the first; None if no folder has one."""
    tried = []
    for folder in folders:
        record = Store(folder).load(key)
        if record is not None:
            tried.append(record)
    for record in tried:
        if record["status"] == DONE:
            return record
    return tried[0] if tried else None


def build(planned: Planned, found: Mapping[str, Mapping[str, Json]]) -> dict[str, Json]:
    """Return everything that results.json holds of a sweep.

    Args:
        planned: The plan.
        found: Results of cells by key, as from `collect`.
    """
    plan, keyed = planned.plan, planned.keyed
    cells = [_cell(keyed[key], key, record, plan.psnr) for key, record in found.items()]
    made = points.points([c for c in cells if c["status"] == DONE])
    missing = len(keyed) - len(found)
    return {
        "schema": record_file.SCHEMA,
        "version": record_file.VERSION,
        "kind": "sweep",
        "complete": missing == 0,
        "summary": words.sentence(cells, made, missing),
        "sweep": {
            "digest": planned.digest,
            "plan": tables.to_json(plan),
            "versions": dict(planned.versions),
            "axes": {name: list(values) for name, values in plan.axes.items()},
            "across": points.across(plan),
            "psnr": plan.psnr,
            "cells": cells,
            "missing": missing,
            "points": made,
            "figure": FIGURE,
        },
    }


def _cell(cell: Cell, key: str, record: Mapping[str, Json], psnr: float) -> dict[str, Json]:
    """Return what results.json holds of one cell."""
    records = int(record["records"])
    columns = points.columns(record["findings"], records, psnr, record["refused"])
    return {
        "key": key,
        "attack": cell.attack,
        "adversary": cell.adversary,
        "at": dict(cell.at),
        "seed": cell.scenario.seed,
        "status": record["status"],
        "says": record["says"],
        "constants": record["constants"],
        "records": record["records"],
        "reasons": record["reasons"],
        "columns": columns,
    }


def beside(path: Path) -> Path:
    """Return the file to write: results.json if the path is a folder, else the path.

    Args:
        path: A file, or a folder, which need not exist if the path ends in a separator.
    """
    return path / "results.json" if path.is_dir() or str(path).endswith(os.sep) else path
