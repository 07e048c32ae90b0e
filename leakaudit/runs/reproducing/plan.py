"""The plan of an item at a scale: a sweep for each line, and the cells of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from leakaudit._util import config
from leakaudit._util.plural import counted
from leakaudit.core.errors import LeakauditError
from leakaudit.core.quantities import QUANTITIES
from leakaudit.judging import papers
from leakaudit.judging.papers.items import ROUND, Change, Item, ItemPlan, Line, merged
from leakaudit.reporting.results import provenance
from leakaudit.runs.sweeping import tables
from leakaudit.runs.sweeping.cells import PlannedCell
from leakaudit.runs.sweeping.plan import SweepPlan
from leakaudit.runs.sweeping.store import StoredPlan

SMALL = "small"
PAPER = "paper"
SCALES = (SMALL, PAPER)
MOST_SEEDS = 1000  # of one item, a choice


@dataclass(frozen=True)
class LinePlan:
    """One line of an item as a sweep."""

    name: str
    sweep: SweepPlan
    table: Mapping[str, Any]  # the file of this sweep, with its tables `scenario` and `sweep`
    versions: Mapping[str, str | None]
    stride: int = 1  # rounds of the protocol in a round of the figure
    stand_in: str = ""  # data that replace the paper's; empty for the paper's

    @cached_property
    def cells(self) -> dict[str, PlannedCell]:
        """Its cells by the names of their results."""
        return StoredPlan(self.sweep, self.versions).keyed

    @property
    def data(self) -> set[str]:
        """The data sets of its cells."""
        return {cell.scenario.data for cell in self.cells.values()}

    @property
    def toml(self) -> str:
        """The file of this sweep, for `leakaudit sweep`."""
        return config.written(self.table)


@dataclass(frozen=True)
class ReproductionPlan:
    """An item at a scale."""

    item: Item
    scale: str
    seeds: tuple[int, ...]
    lines: tuple[LinePlan, ...]  # none for an item without a plan

    @property
    def attacks(self) -> bool:
        """Whether anything is attacked."""
        return any(line.sweep.attacks for line in self.lines)

    @property
    def size(self) -> str:
        """How much is computed, in words; empty for an item without cells."""
        run = [cell.scenario for cell in self.cells.values()]
        if not run:
            return ""
        nodes = counted(max(one.nodes for one in run), "node")
        rounds = counted(max(one.rounds for one in run), "round")
        records = counted(max(one.samples for one in run), "record")
        return f"{counted(len(run), 'cell')} of up to {nodes}, {rounds} and {records} a node"

    @property
    def own_size(self) -> bool:
        """Whether it is run at the paper's own size."""
        return self.item.is_own_size(self.scale)

    @cached_property
    def cells(self) -> dict[str, PlannedCell]:
        """The cells of all lines by the names of their results, seed by seed."""
        every: dict[str, PlannedCell] = {}
        for line in self.lines:
            every.update(line.cells)
        order = sorted(every, key=lambda key: every[key].scenario.seed)
        return {key: every[key] for key in order}


def plan(item: Item, scale: str = SMALL, seeds: int | None = None) -> ReproductionPlan:
    """Return the plan of an item; errors name the item and the line."""
    if scale not in SCALES:
        raise LeakauditError(f"--scale: expected small or paper, got {scale!r}")
    if seeds is not None and not 1 <= seeds <= MOST_SEEDS:
        raise LeakauditError(f"--seeds: expected an integer from 1 to {MOST_SEEDS}, got {seeds}")
    try:
        papers.select((), item.claims)
    except LeakauditError as error:
        raise LeakauditError(f"{item.full_name}: claims: {error}") from None
    if item.plan is None:
        return ReproductionPlan(item, scale, tuple(range(seeds or 1)), ())
    count = seeds or _seeds(item.plan, scale)
    versions = provenance.decisive_versions()
    lines: list[LinePlan] = []
    first = 0
    for line in item.plan.line:
        made = _line(item, item.plan, line, scale, count, versions)
        _check_axis(item, made)
        try:
            first = next(iter(made.cells.values())).scenario.seed
        except LeakauditError as error:
            raise LeakauditError(f"{item.full_name}, line {line.name}: {error}") from None
        _check_cells(item, made, lines)
        lines.append(made)
    x = item.plan.x
    if x != ROUND and not any(x in line.sweep.axes for line in lines):
        raise LeakauditError(
            f"{item.full_name}: the horizontal axis is {x}, but no line has values of it in its "
            "sweep; x is round, or an axis of the sweeps"
        )
    unused = {*item.data} - {name for line in lines for name in line.data}
    if item.is_own_size(scale) and unused:
        raise LeakauditError(
            f"{item.full_name}: data: no line at the paper's size has {', '.join(sorted(unused))}; "
            "give a line that data, or leave it out of data"
        )
    return ReproductionPlan(item, scale, tuple(range(first, first + count)), tuple(lines))


def _seeds(wanted: ItemPlan, scale: str) -> int:
    if scale == PAPER:
        return wanted.seeds
    return wanted.small.seeds or 1


def data_root(item: Item, lines: Iterable[LinePlan]) -> str:
    """Return the option for the folder of data, empty if no line needs data that must be there."""
    return " --data-root FOLDER" * any(line.data & {*item.data} for line in lines)


def _line(
    item: Item,
    wanted: ItemPlan,
    line: Line,
    scale: str,
    seeds: int,
    versions: Mapping[str, str | None],
) -> LinePlan:
    table = _table(wanted, line, scale)
    table["sweep"]["seeds"] = seeds
    data = table["scenario"].get("data", "")
    stand_in = "" if data == _table(wanted, line, PAPER)["scenario"].get("data", "") else data
    name = f"{item.full_name}, line {line.name}"
    made = tables.of(config.ConfigTable(table, name, name), f"{name}, scenario")
    return LinePlan(line.name, made, table, versions, line.stride, stand_in)


def _table(wanted: ItemPlan, line: Line, scale: str) -> dict[str, dict[str, Any]]:
    """Return the tables `scenario` and `sweep` of a line at a scale."""
    changes = [Change(scenario=wanted.scenario, sweep=wanted.sweep)]
    if scale == SMALL:
        changes.append(wanted.small)
    changes.append(Change(scenario=line.scenario, sweep=line.sweep))
    if scale == SMALL:
        changes.append(line.small)
    scenario: dict[str, Any] = {"curves": True}
    sweep: dict[str, Any] = {"attacks": []}
    for change in changes:
        scenario = merged(scenario, change.scenario)
        sweep = merged(sweep, change.sweep)
    return {"scenario": scenario, "sweep": sweep}


def _check_axis(item: Item, line: LinePlan) -> None:
    """Reject a line in which something else than the item's horizontal axis has several values."""
    assert item.plan is not None
    x = item.plan.x
    several = [name for name, values in line.sweep.axes.items() if len(values) > 1]
    for name in ("attacks", "adversaries"):
        if len(getattr(line.sweep, name)) > 1:
            several.append(name)
    if wrong := [name for name in several if name != x]:
        raise LeakauditError(
            f"{item.full_name}, line {line.name}: {wrong[0]} has several values, but the "
            f"horizontal axis is {x}; write a line for each value"
        )
    scored = [panel.y for panel in item.plan.panel if panel.y in QUANTITIES]
    if scored and not line.sweep.attacks and len(item.plan.line) == 1:
        raise LeakauditError(f"{item.full_name}: {scored[0]} needs attacks in [plan.sweep]")


def _check_cells(item: Item, line: LinePlan, others: Iterable[LinePlan]) -> None:
    """Reject a line with two runs of a seed at one place, and one that repeats another line."""
    assert item.plan is not None
    name = f"{item.full_name}, line {line.name}"
    x = item.plan.x
    runs = [(cell.scenario.seed, cell.at.get(x)) for cell in line.cells.values()]
    if len({*runs}) < len(runs):
        raise LeakauditError(f"{name}: expected distinct values of {x}, got one of them twice")
    for other in others:
        if line.cells.keys() == other.cells.keys():
            raise LeakauditError(
                f"{name}: its runs are those of line {other.name}, so that comparing both says "
                "nothing; change its scenario or sweep, or leave it out"
            )
    if x == ROUND and line.stride > line.sweep.scenario.rounds:
        raise LeakauditError(
            f"{name}: stride: expected at most its {line.sweep.scenario.rounds} rounds, got "
            f"{line.stride}"
        )
