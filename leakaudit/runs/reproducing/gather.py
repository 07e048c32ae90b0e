"""From the results of cells to the lines of an item's panels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UnsetType

from leakaudit._util import averages
from leakaudit._util.plural import counted
from leakaudit.core.quantities import ACCURACIES, EPSILONS, QUANTITIES
from leakaudit.core.verdict import Holds
from leakaudit.judging.papers.items import ROUND, PlannedPanel
from leakaudit.judging.papers.measured import MeasuredLine, MeasuredPanel
from leakaudit.reporting.results.cell_files import DONE, CellResult
from leakaudit.reporting.results.model import decoded
from leakaudit.runs.reproducing.plan import LinePlan, ReproductionPlan
from leakaudit.runs.sweeping import merge, records
from leakaudit.runs.sweeping.cells import PlannedCell

Results = Mapping[str, CellResult]  # by the names of cells
NOT_RUN = "not run"


def panels(plan: ReproductionPlan, results: Results) -> list[MeasuredPanel]:
    """Return the panels of an item with a plan, from the results that exist."""
    wanted = plan.item.plan
    if wanted is None:
        return []
    made = []
    for panel in wanted.panel:
        lines = []
        for line in plan.lines:
            if not panel.lines or line.name in panel.legend:
                lines.append(_line(plan, line, panel, results))
        title = panel.title or title_of(panel.y)
        log = panel.logarithmic
        made.append(
            MeasuredPanel(panel.y, title, wanted.x, tuple(lines), log, panel.at, wanted.axis)
        )
    return made


def title_of(y: str) -> str:
    """Return the name of an axis for a quantity."""
    if y in QUANTITIES:
        return QUANTITIES[y].drawn
    known = {"epsilon": "exact epsilon", "claimed_epsilon": "claimed epsilon"}
    return known.get(y, y.replace("_", " "))


def troubles(plan: ReproductionPlan, results: Results) -> list[str]:
    """Return why cells have no result, with their names; those that were not run are counted."""
    found = []
    for key, result in results.items():
        if result.status != DONE:
            found.append(f"{plan.cells[key].words}: {result.says}")
    if absent := len(plan.cells) - len(results):
        found.append(f"{absent} of {counted(len(plan.cells), 'cell')}: {NOT_RUN}")
    return found


def _line(
    plan: ReproductionPlan, line: LinePlan, panel: PlannedPanel, results: Results
) -> MeasuredLine:
    assert plan.item.plan is not None
    axis = plan.item.plan.x
    why = ""
    for key in line.cells:
        why = why or _why(results.get(key), panel.y)
    runs: dict[int, tuple[float | None, ...]] = {}
    if axis == ROUND:
        for key, cell in line.cells.items():
            curve = _curve(results.get(key), panel.y)
            runs[cell.scenario.seed] = curve[:: line.stride]
        places: tuple[Any, ...] = tuple(range(max(map(len, runs.values()), default=0)))
    else:
        places = tuple(line.sweep.axes.get(axis, ()))
    for seed in plan.seeds if axis != ROUND else ():
        mine = {k: cell for k, cell in line.cells.items() if cell.scenario.seed == seed}
        if places:
            at = [_at(mine, axis, place, panel.y, results) for place in places]
        else:
            at = [_value(results.get(key), cell, panel.y) for key, cell in mine.items()]
        runs[seed] = tuple(at)
    return MeasuredLine(
        line.name,
        places,
        runs,
        why=why,
        planned=axis != ROUND,
        legend=panel.legend.get(line.name, ""),
        stand_in=line.stand_in,
    )


def _at(
    mine: Mapping[str, PlannedCell], axis: str, place: object, y: str, results: Results
) -> float | None:
    for key, cell in mine.items():
        if cell.at.get(axis) == place:
            return _value(results.get(key), cell, y)
    return None


def _curve(result: CellResult | None, y: str) -> tuple[float | None, ...]:
    """Return the values of a quantity by round; NaN for accuracies of a model that diverged.

    Such a model has an accuracy, that of the first class, but no finite loss.
    """
    if result is None or isinstance(result.curves, UnsetType) or y not in result.curves:
        return ()
    values = [decoded(value) for value in result.curves[y]]
    losses = result.curves.get(y.replace("accuracy", "loss"), ()) if y in ACCURACIES else ()
    for k, loss in enumerate(map(decoded, losses)):
        if values[k] is not None and (loss is None or not math.isfinite(loss)):
            values[k] = math.nan
    return tuple(values)


def _value(result: CellResult | None, cell: PlannedCell, y: str) -> float | None:
    """Return a quantity of a cell: a score, its bound, or the last value of a curve."""
    if result is None or result.status != DONE:
        return None
    if y in EPSILONS:
        return _bound(result, y)
    if y in SHARES:
        return SHARES[y](result, cell)
    if y in QUANTITIES:
        return _score(result, y)
    curve = _curve(result, y)
    return curve[-1] if curve else None


def _bound(result: CellResult, y: str) -> float | None:
    if isinstance(result.bound, UnsetType):
        return None
    if y != "epsilon":
        return decoded(result.bound.claimed)
    if Holds.read(result.bound.holds) is not Holds.EXACT:
        return None
    return decoded(result.bound.epsilon)


def _score(result: CellResult, y: str) -> float | None:
    """Return the mean of a score over all records; a record that was missed has a blind guess's."""
    if QUANTITIES[y].kind == "Flag":
        return _flag(result, y)
    values = records.per_record(result, y)
    return averages.mean(values) if values else None


def _flag(result: CellResult, y: str) -> float | None:
    """Return the share of all records for which something is true."""
    if not result.records:
        return None
    return sum(map(bool, records.recovered(result, y).values())) / result.records


def _recovered(result: CellResult, cell: PlannedCell) -> float | None:
    if not result.records:
        return None
    psnr = float(cell.plan.psnr)
    return merge.columns(result, psnr).recovered / result.records


def _certified(result: CellResult, _: PlannedCell) -> float | None:
    if not result.records:
        return None
    return records.certified(result) / result.records


def _labels(result: CellResult, _: PlannedCell) -> float | None:
    """Return the share of the labels found, a mean over nodes; none is found without a result."""
    found: list[float] = []
    for one in result.findings:
        if one.scores is not None and one.scores.labels_found is not None:
            found.append(float(one.scores.labels_found))
    if not found:
        return None
    return averages.mean([*found, *[0.0] * len(result.refused)])


SHARES: Mapping[str, Callable[[CellResult, PlannedCell], float | None]] = {
    "recovered": _recovered,
    "certified": _certified,
    "labels": _labels,
}


def _why(result: CellResult | None, y: str) -> str:
    """Return why a cell has no value of a quantity; empty if it should have one."""
    if result is None:
        return NOT_RUN
    if result.status != DONE:
        return result.says
    if y in EPSILONS and not isinstance(result.bound, UnsetType) and result.bound.epsilon is None:
        return result.bound.why
    if y == "epsilon" and not isinstance(result.bound, UnsetType):
        holds = Holds.read(result.bound.holds)
        if holds is not Holds.EXACT:
            return f"its epsilon is not known exactly ({holds}: {result.bound.epsilon})"
    return ""
