"""The record of a sweep from the results of its cells, wherever these were made; the same cells give the same bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from leakaudit._util.files import replacing
from leakaudit.errors import LeakauditError
from leakaudit.rendering import pictures
from leakaudit.results import record_file
from leakaudit.sweeping import panels, points, tables, words
from leakaudit.sweeping.cells import Cell
from leakaudit.sweeping.store import DONE, Planned, Store
from leakaudit.trace import Json

FIGURE, REPORT = "sweep.png", "report.md"


def write(folders: Sequence[Path], path: Path) -> dict[str, Json]:
    """Put the parts of a sweep together: results.json at `path`, sweep.png and report.md beside it; returns the record.

    Raises LeakauditError for folders of different sweeps, and for a damaged file.
    """
    planned, found = collect(folders)
    record = build(planned, found)
    pictures.save(panels.figure(record), path.parent / FIGURE)
    with replacing(path.parent / REPORT) as file:
        file.write(words.markdown(record).encode())
    record_file.write(path, record)
    return record


def collect(folders: Sequence[Path]) -> tuple[Planned, dict[str, dict[str, Json]]]:
    """Return the plan of all folders, and the results that are there, by key in the order of the plan."""
    planned = Store(folders[0]).planned()
    for folder in folders[1:]:
        if Store(folder).planned().digest != planned.digest:
            raise LeakauditError(
                f"{folder} holds another sweep than {folders[0]}, or one of other versions; merge parts of one sweep"
            )
    found: dict[str, dict[str, Json]] = {}
    for key in planned.keyed:
        tried = [record for folder in folders if (record := Store(folder).load(key)) is not None]
        if tried:
            found[key] = next((r for r in tried if r["status"] == DONE), tried[0])
    return planned, found


def build(planned: Planned, found: Mapping[str, Mapping[str, Json]]) -> dict[str, Json]:
    """Return everything that results.json holds of a sweep."""
    plan, keyed = planned.plan, planned.keyed
    cells = [_cell(keyed[key], key, record, plan.psnr) for key, record in found.items()]
    made = points.points([c for c in cells if c["status"] == DONE])
    whole = len(found) == len(keyed)
    return {
        "schema": record_file.SCHEMA,
        "version": record_file.VERSION,
        "kind": "sweep",
        "complete": whole,
        "summary": words.sentence(cells, made, len(keyed) - len(found)),
        "sweep": {
            "digest": planned.digest,
            "plan": tables.to_json(plan),
            "versions": dict(planned.versions),
            "axes": {name: list(values) for name, values in plan.axes.items()},
            "across": points.across(plan),
            "psnr": plan.psnr,
            "cells": cells,
            "missing": len(keyed) - len(found),
            "points": made,
            "figure": FIGURE,
        },
    }


def _cell(cell: Cell, key: str, record: Mapping[str, Json], psnr: float) -> dict[str, Json]:
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
        "columns": points.columns(
            record["findings"], int(record["records"]), psnr, record["refused"]
        ),
    }


def beside(path: Path) -> Path:
    """Return the file to write: `path`, or results.json in a folder."""
    return path / "results.json" if path.is_dir() or str(path).endswith(os.sep) else path
