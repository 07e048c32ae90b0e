"""A sweep, from its plan to a folder with results, a record, a figure and a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from leakaudit._util.jobs import WorkerDied
from leakaudit._util.own_code import Trust
from leakaudit.core.errors import LeakauditError
from leakaudit.core.progress import expired, step
from leakaudit.judging.auditing.environment import RunEnvironment
from leakaudit.protocols import recording
from leakaudit.reporting.results.cell_files import DONE, FAILED, Status
from leakaudit.reporting.results.model import SweepRecord
from leakaudit.reporting.results.output_folder import ready
from leakaudit.runs.sweeping import merge
from leakaudit.runs.sweeping.cells import PlannedCell
from leakaudit.runs.sweeping.plan import SweepPlan
from leakaudit.runs.sweeping.store import Store, StoredPlan
from leakaudit.runs.sweeping.work import Job, died
from leakaudit.runs.workers.executor import Executor

if TYPE_CHECKING:
    from pandas import DataFrame

# Cells to compute: where the result is stored, its name, and the cell.
Tasks = Sequence[tuple[Store, str, PlannedCell]]


def every_core() -> Executor:
    """Return the default of a sweep: one process per processor."""
    return Executor.of(None, every_core=True)


@dataclass(frozen=True)
class SweepOptions:
    """How a sweep is run, which changes no result."""

    executor: Executor = field(default_factory=every_core)  # where the cells are computed
    shard: tuple[int, int] = (1, 1)  # (i, n) for the i-th of n parts, counted from 1
    again: bool = False  # whether to retry failed cells
    data_root: Path | None = None  # folder of torchvision's data sets
    download: bool = False  # whether data sets may be downloaded
    trusted: Trust = False  # the `package.module:factory` that may execute its code; True for any

    def __post_init__(self) -> None:
        """Check the ranges."""
        i, n = self.shard
        if not 1 <= i <= n:
            raise LeakauditError(f"--shard: expected I/N with 1 <= I <= N, got {i}/{n}")

    @property
    def kept(self) -> frozenset[str]:
        """The outcomes of cells that are not run again."""
        return frozenset({DONE} if self.again else {DONE, FAILED})


@dataclass
class SweepOutcome:
    """The outcome of a sweep."""

    cells: int  # number of cells of this part
    skipped: int  # number of cells that already had a result
    # name of each cell without a result, and the reason
    troubles: list[tuple[str, str]] = field(default_factory=list)
    left: int = 0  # number of cells of this part that were not tried
    interrupted: bool = False  # whether Ctrl-C ended the work
    record: SweepRecord | None = None  # that of results.json, if all parts are in one folder

    def to_pandas(self, table: str | None = None) -> DataFrame:
        """Return a table of the results as a data frame: ``points`` (default) or ``cells``."""
        return self.complete_record().to_pandas(table)

    def complete_record(self) -> SweepRecord:
        """Return the record."""
        if self.record is None:
            raise LeakauditError(
                "the results of the other parts are missing; merge them with leakaudit sweep merge"
            )
        return self.record

    def __repr__(self) -> str:
        """How many cells have a result, and the record."""
        failed = len(self.troubles)
        return f"Swept({self.cells} cells, {self.left} left, {failed} failed, {self.record})"

    def _repr_html_(self) -> str:
        """The card of its record, for notebooks."""
        from leakaudit.reporting.rendering import cards  # only needed if a notebook asks for it

        return cards.html(self if self.record is None else self.record)


def sweep(plan: SweepPlan, folder: Path, options: SweepOptions) -> SweepOutcome:
    """Run the cells that have no result yet, then write results.json, sweep.png and report.md.

    One of several parts only writes its cells. After Ctrl-C or the time limit, the same call
    resumes.
    """
    planned = StoredPlan(plan)
    store = Store(folder)
    store.refuse_links()
    mine = part(planned.keyed, options.shard)
    plan_of_first(mine, options)
    with ready(folder):
        store.begin(planned)
        store.clean(mine)
        known = store.statuses(mine)
        todo = remaining(mine, known, options)
        swept = SweepOutcome(len(mine), len(mine) - len(todo))
        try:
            job = [(store, key, cell) for key, cell in todo]
            compute(job, len(mine), options)
        except KeyboardInterrupt:
            swept.interrupted = True
        ends = store.statuses(mine)
        swept.left = len(mine) - len(ends)
        for key, status in ends.items():
            if status == DONE:
                continue
            result = store.load(key)
            if result is not None:
                swept.troubles.append((mine[key].words, result.says))
        if options.shard[1] == 1:
            swept.record = merge.write([folder], folder / "results.json")
    return swept


def remaining(
    mine: dict[str, PlannedCell], known: Mapping[str, Status], options: SweepOptions
) -> list[tuple[str, PlannedCell]]:
    """Return the cells that remain to be run."""
    return [(key, cell) for key, cell in mine.items() if known.get(key) not in options.kept]


def plan_of_first(mine: dict[str, PlannedCell], options: SweepOptions) -> recording.Plan:
    """Plan the first cell, to fail early if data or model are not available."""
    first = next(iter(mine.values()))
    where = RunEnvironment(options.data_root, options.download, trusted=options.trusted)
    return where.plan(first.scenario)


def compute(todo: Tasks, total: int, options: SweepOptions) -> None:
    """Run the remaining ones of some cells; store results, timings and failures of processes."""
    job = Job(options.data_root, options.download, options.trusted)
    shard = f"{options.shard[0]}-of-{options.shard[1]}"
    done = total - len(todo)
    step("cells", done, total)
    for outcome in options.executor.completed(job, [cell for *_, cell in todo], expired):
        store, key, cell = todo[outcome.place]
        if isinstance(outcome.error, WorkerDied):
            computed = died(cell, str(outcome.error))
        else:
            computed = outcome.result()
        store.explain(key, computed.trouble)
        store.save(key, computed.result)
        status = computed.result.status
        store.timed(shard, key, computed.seconds, computed.cpu, status, outcome.worker)
        done += 1
        step("cells", done, total)


def part(keyed: dict[str, PlannedCell], shard: tuple[int, int]) -> dict[str, PlannedCell]:
    """Return the i-th of n parts, from 1: every n-th cell by key, which spreads attacks."""
    i, n = shard
    chosen = {*sorted(keyed)[i - 1 :: n]}
    if not chosen:
        raise LeakauditError(f"--shard: expected at most {len(keyed)} parts, got {i}/{n}")
    return {key: cell for key, cell in keyed.items() if key in chosen}
