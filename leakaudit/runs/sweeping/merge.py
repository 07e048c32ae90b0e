"""The record of a sweep from the results of its cells; the same cells give the same bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from leakaudit._util.files import replacing
from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError
from leakaudit.reporting.figures import plots, sweep_figure
from leakaudit.reporting.findings.wording import sweep_headline
from leakaudit.reporting.results import model, record_file
from leakaudit.reporting.results.cell_files import DONE, CellResult
from leakaudit.reporting.results.model import SweepPart, SweepRecord, SweptCell
from leakaudit.runs.sweeping import points, tables
from leakaudit.runs.sweeping.cells import PlannedCell
from leakaudit.runs.sweeping.store import Store, StoredPlan

FIGURE = "sweep.png"
REPORT = "report.md"


def write(folders: Sequence[Path], path: Path) -> SweepRecord:
    """Merge the parts of a sweep into a file, with sweep.png and report.md beside it."""
    planned, found = collect(folders)
    record = build(planned, found)
    plots.save(sweep_figure.figure(record.sweep), path.parent / FIGURE)
    values = model.plain(record)
    page = registry.get("reports", "markdown")
    with replacing(path.parent / REPORT) as file:
        file.write(page(values).encode())
    record_file.write(path, values)
    return record


def collect(folders: Sequence[Path]) -> tuple[StoredPlan, dict[str, CellResult]]:
    """Read the parts of a sweep."""
    planned = Store(folders[0]).planned()
    for folder in folders[1:]:
        if Store(folder).planned().digest != planned.digest:
            raise LeakauditError(
                f"expected parts of one sweep, but {folder} and {folders[0]} differ in their plan "
                "or in the versions of packages"
            )
    found: dict[str, CellResult] = {}
    for key in planned.keyed:
        result = _best(folders, key)
        if result is not None:
            found[key] = result
    return planned, found


def _best(folders: Sequence[Path], key: str) -> CellResult | None:
    """Return the first completed result of a cell, otherwise the first, if any."""
    tried = []
    for folder in folders:
        result = Store(folder).load(key)
        if result is not None:
            tried.append(result)
    for result in tried:
        if result.status == DONE:
            return result
    return tried[0] if tried else None


def build(planned: StoredPlan, found: Mapping[str, CellResult]) -> SweepRecord:
    """Return the record of a sweep."""
    plan, keyed = planned.plan, planned.keyed
    cells = [_cell(keyed[key], key, result, plan.psnr) for key, result in found.items()]
    made = points.points([cell for cell in cells if cell.status == DONE])
    missing = len(keyed) - len(found)
    return SweepRecord(
        schema=model.SCHEMA,
        version=model.VERSION,
        complete=missing == 0,
        summary=sweep_headline(cells, made, missing),
        sweep=SweepPart(
            digest=planned.digest,
            plan=tables.to_json(plan),
            versions=dict(planned.versions),
            axes=dict(plan.axes),
            across=points.across(plan),
            psnr=plan.psnr,
            cells=tuple(cells),
            missing=missing,
            points=tuple(made),
            figure=FIGURE,
        ),
    )


def _cell(cell: PlannedCell, key: str, result: CellResult, psnr: float) -> SweptCell:
    return SweptCell(
        key=key,
        attack=cell.attack,
        adversary=cell.adversary,
        at=dict(cell.at),
        seed=cell.scenario.seed,
        status=result.status,
        says=result.says,
        constants=result.constants,
        records=result.records,
        reasons=result.reasons,
        columns=points.columns(result.findings, result.records, psnr, result.refused),
    )


def beside(path: Path) -> Path:
    """Return the file to write, results.json in a folder."""
    return path / "results.json" if path.is_dir() or str(path).endswith(os.sep) else path
