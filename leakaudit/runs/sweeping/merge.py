"""The record of a sweep from the results of its cells; the same cells give the same bytes."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import UNSET, UnsetType

from leakaudit._util import averages
from leakaudit._util.files import replacing
from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError
from leakaudit.core.quantities import Place, range_of, shown
from leakaudit.reporting.figures import curves, plots, sweep_figure
from leakaudit.reporting.findings.wording import sweep_headline
from leakaudit.reporting.results import intervals, model, record_file
from leakaudit.reporting.results.cell_files import DONE, CellResult
from leakaudit.reporting.results.model import (
    Extended,
    Number,
    Scores,
    SweepPart,
    SweepPoint,
    SweepRecord,
    SweptCell,
    SweptColumns,
    TrainedStatistics,
    decoded,
    encoded,
    given,
    summary,
    swept,
)
from leakaudit.runs.sweeping import records, tables
from leakaudit.runs.sweeping.cells import PlannedCell
from leakaudit.runs.sweeping.plan import SweepPlan
from leakaudit.runs.sweeping.store import Store, StoredPlan

FIGURE = "sweep.png"
REPORT = "report.md"


def write(folders: Sequence[Path], path: Path) -> SweepRecord:
    """Merge the parts of a sweep into a file, with sweep.png and report.md beside it."""
    planned, found = collect(folders)
    record = build(planned, found)
    plots.save(curves.on_screen(sweep_figure.content(record.sweep)), path.parent / FIGURE)
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
    made = points([cell for cell in cells if cell.status == DONE])
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
            across=across(plan),
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
        columns=columns(result, psnr),
        trained=_trained(result),
    )


def _trained(result: CellResult) -> dict[str, Extended] | UnsetType:
    """Return the last value of every curve, and the bounds of the worst view."""
    found: dict[str, Extended] = {}
    for name, values in given(result.curves, {}).items():
        if values:
            found[name] = values[-1]
    if not isinstance(result.bound, UnsetType):
        found["exact_epsilon"] = result.bound.epsilon
        found["claimed_epsilon"] = result.bound.claimed
    return found or UNSET


def beside(path: Path) -> Path:
    """Return the file to write, results.json in a folder."""
    return path / "results.json" if path.is_dir() or str(path).endswith(os.sep) else path


# --- cells become points --------------------------------------------------------------------------


def columns(result: CellResult, psnr: float) -> SweptColumns:
    """Return the metrics of a cell's reconstructions, and the number of recovered records.

    A record is recovered at `psnr` dB or more, or without images at -20 log10 of the relative
    error. All records of nodes without a reconstruction count with a blind guess.
    """
    scores = [one.scores for one in result.findings if one.scores is not None]
    labels = [float(one.labels_found) for one in scores if one.labels_found is not None]
    measured = {}
    for row in shown(Place.CURVE):
        measured[row.key] = tuple(records.per_record(result, row.key))
    if any(not isinstance(one.psnr, UnsetType) for one in scores):
        recovered = _count(result, "psnr", lambda value: value >= psnr)
    else:
        # -20 log10(error) >= psnr; a power beyond all floats would raise an error.
        largest = 10 ** min(-psnr / 20, sys.float_info.max_10_exp)
        recovered = _count(result, "relative_error", lambda value: value <= largest)
    return SweptColumns(
        attacked=len(result.findings) + len(result.refused),
        refused=len(result.refused),
        returned=sum(map(_returned, scores)),
        records=result.records,
        recovered=recovered,
        exact=_count(result, "exact", bool),
        certified=records.certified(result),
        labels=tuple(labels),
        **measured,
    )


def _count(result: CellResult, name: str, holds: Callable[[Number], bool]) -> int:
    return sum(map(holds, records.recovered(result, name).values()))


def _returned(scores: Scores) -> int:
    return sum(row is not None for row in scores.matched)


def points(cells: Sequence[SweptCell]) -> list[SweepPoint]:
    """Return one entry per point of the grid, attack and adversary, over its seeds.

    Nodes without a reconstruction count with a blind guess and no label; a mean of none is absent.
    """
    groups: dict[str, list[SweptCell]] = {}
    for cell in cells:
        # As text, 1, 1.0 and true are distinct.
        place = json.dumps([cell.adversary, cell.attack, cell.at])
        groups.setdefault(place, []).append(cell)
    return list(map(_point, groups.values()))


def _point(group: Sequence[SweptCell]) -> SweepPoint:
    first = group[0]
    held = [cell.columns for cell in group]
    refused = sum(given(one.refused, 0) for one in held)
    labels: list[Number] = []
    for one in held:
        labels += one.labels
    if labels:
        labels += [0.0] * refused
    measured = {}
    if any(given(one.returned, 0) for one in held):
        for row in shown(Place.CURVE):
            values: list[Number] = []
            for one in held:
                values += swept(one, row)
            statistics = summary(values, row)
            if statistics is not None:
                measured[row.key] = statistics
    return SweepPoint(
        attack=first.attack,
        adversary=first.adversary,
        at=first.at,
        cells=len(group),
        attacked=sum(given(one.attacked, 0) for one in held),
        refused=refused,
        records=sum(one.records for one in held),
        recovered=sum(one.recovered for one in held),
        exact=sum(one.exact for one in held),
        certified=sum(one.certified for one in held),
        labels_found=averages.mean(labels) if labels else None,
        trained=_over_seeds(group),
        **measured,
    )


def _over_seeds(group: Sequence[SweptCell]) -> dict[str, TrainedStatistics] | UnsetType:
    """Return the means of what was trained; a quantity that a seed lacks has none."""
    columns: dict[str, list[float]] = {}
    for cell in group:
        for name, value in given(cell.trained, {}).items():
            number = decoded(value)
            if number is not None:
                columns.setdefault(name, []).append(number)
    found = {}
    for name, values in columns.items():
        if len(values) == len(group):
            mean, interval = intervals.mean(values, range_of(name))
            low, high = interval or (None, None)
            found[name] = TrainedStatistics(
                mean=None if math.isnan(mean) else encoded(mean),
                low=encoded(low),
                high=encoded(high),
            )
    return found or UNSET


def across(plan: SweepPlan) -> str | None:
    """Return the axis of the figure: the plan's, epsilon, or the first that varies."""
    if plan.figure is not None:
        return plan.figure
    if len(plan.epsilon) > 1:
        return "epsilon"
    several = []
    for name, values in plan.axes.items():
        if len(values) > 1:
            if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
                return name
            several.append(name)
    return several[0] if several else None
