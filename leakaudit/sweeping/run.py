"""One sweep, from its plan to a folder with a result per cell, a record, a figure and a report."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from leakaudit import registry
from leakaudit.errors import LeakauditError
from leakaudit.pipeline.attack_run import ready
from leakaudit.progress import expired, step
from leakaudit.protocols import recording
from leakaudit.sweeping import cells, merge, pool
from leakaudit.sweeping.cells import Cell
from leakaudit.sweeping.plan import SweepPlan
from leakaudit.sweeping.status import DIED, DONE, FAILED
from leakaudit.sweeping.store import Planned, Store
from leakaudit.sweeping.work import Ended, Job, failure
from leakaudit.trace import Json
from leakaudit.traces.recorder import human

Items = Sequence[tuple[str, Cell]]


@dataclass(frozen=True)
class Options:
    """How a sweep is worked on; nothing here changes a result.

    Attributes:
        workers: Number of processes; 0 works in this one, None starts one per processor.
        backend: ``process``, ``joblib`` or ``joblib:NAME``.
        shard: (i, n) for the i-th of n parts, from 1.
        again: Whether to try failed cells once more.
        data_root: Where torchvision's data sets lie.
        download: Whether data sets may be fetched.
        trusted: Whether a model may be code outside leakaudit.
    """

    workers: int | None = None
    backend: str = "process"
    shard: tuple[int, int] = (1, 1)
    again: bool = False
    data_root: Path | None = None
    download: bool = False
    trusted: bool = False

    def __post_init__(self) -> None:
        """Check the ranges."""
        i, n = self.shard
        if not 1 <= i <= n:
            raise LeakauditError(f"--shard: expected I/N with 1 <= I <= N, got {i}/{n}")
        if self.workers is not None and self.workers < 0:
            raise LeakauditError(f"--workers: expected a whole number from 0, got {self.workers}")
        if self.backend != "process" and self.backend.partition(":")[0] != "joblib":
            raise LeakauditError(
                f"--backend: expected process, joblib or joblib:NAME, got {self.backend!r}"
            )

    @property
    def kept(self) -> frozenset[str]:
        """How a cell ended that is not worked on again."""
        return frozenset({DONE} if self.again else {DONE, FAILED})

    @property
    def processes(self) -> int:
        """How many to start, 0 to work in this one."""
        return len(os.sched_getaffinity(0)) if self.workers is None else self.workers


@dataclass
class Swept:
    """How a sweep went.

    Attributes:
        cells: Number of cells of this part.
        skipped: Number of those that had a result before.
        troubles: What each cell without a result is called, and why it has none.
        left: Number of cells of this part that were not tried.
        interrupted: Whether Ctrl-C ended the work.
        results: What results.json holds, if all parts are in one folder.
    """

    cells: int
    skipped: int
    troubles: list[tuple[str, str]] = field(default_factory=list)
    left: int = 0
    interrupted: bool = False
    results: dict[str, Json] | None = None


def sweep(plan: SweepPlan, folder: Path, options: Options) -> Swept:
    """Run the cells that have no result yet, then write results.json, sweep.png and report.md.

    A part of several only writes its cells; `merge` puts the parts together. Ctrl-C and the
    deadline of `progress.watching` end the work, and the same call goes on from there.

    Args:
        plan: The sweep.
        folder: Where results are, and go.
        options: How to work on it.

    Raises:
        LeakauditError: The plan or the folder cannot be used; nothing has run then.
    """
    planned = Planned(plan, cells.versions())
    store = Store(folder)
    mine = part(planned.keyed, options.shard)
    _plan_of_first(mine, options)
    with ready(folder):
        store.begin(planned)
        store.clean(mine)
        known = store.statuses(mine)
        todo = _unfinished(mine, known, options)
        swept = Swept(len(mine), len(mine) - len(todo))
        try:
            _run(store, mine, todo, options)
        except KeyboardInterrupt:
            swept.interrupted = True
        ends = store.statuses(mine)
        swept.left = len(mine) - len(ends)
        for key, status in ends.items():
            if status != DONE:
                reason = str((store.load(key) or {})["says"])
                swept.troubles.append((mine[key].words, reason))
        if options.shard[1] == 1:
            swept.results = merge.write([folder], folder / "results.json")
    return swept


def _unfinished(
    mine: dict[str, Cell], known: Mapping[str, str], options: Options
) -> list[tuple[str, Cell]]:
    """Return the cells that are still worked on, given how the others ended."""
    return [(key, cell) for key, cell in mine.items() if known.get(key) not in options.kept]


def _plan_of_first(mine: dict[str, Cell], options: Options) -> recording.Plan:
    """Plan the recording of the first cell, which fails early if data or model cannot be had."""
    first = next(iter(mine.values()))
    return recording.plan(
        first.scenario,
        data_root=options.data_root,
        download=options.download,
        trusted=options.trusted,
    )


def _run(store: Store, mine: dict[str, Cell], todo: Items, options: Options) -> None:
    """Work on cells, and keep their timings and what only this process knows of those that died."""
    job = Job(store.folder.absolute(), options.data_root, options.download, options.trusted)
    shard = f"{options.shard[0]}-of-{options.shard[1]}"
    done = len(mine) - len(todo)
    step("cells", done, len(mine))
    for ended in _work(job, todo, options):
        done += 1
        line = {
            "cell": ended.key,
            "seconds": round(ended.seconds, 4),
            "cpu": round(ended.cpu, 4),
            "status": ended.status,
            "worker": ended.worker,
        }
        store.timed(shard, line)
        if ended.status == DIED:
            lost = {"config": mine[ended.key].config(), **failure(DIED, ended.says)}
            store.save(ended.key, lost)
        step("cells", done, len(mine))


def _work(job: Job, todo: Items, options: Options) -> Iterator[Ended]:
    """Choose who works on the cells."""
    if not todo:
        return iter(())
    workers = options.processes
    kind, _, name = options.backend.partition(":")
    if kind == "joblib":
        return pool.parallel(job, todo, max(1, workers), expired, name or None)
    if workers:
        return pool.processes(job, todo, workers, expired)
    return pool.here(job, todo, expired)


def part(keyed: dict[str, Cell], shard: tuple[int, int]) -> dict[str, Cell]:
    """Return the i-th of n parts.

    It has every n-th cell in the order of the hashes, so that no part has only one attack.

    Args:
        keyed: All cells by key.
        shard: (i, n), i from 1.

    Raises:
        LeakauditError: There are fewer cells than parts, and none is left for this one.
    """
    i, n = shard
    chosen = {*sorted(keyed)[i - 1 :: n]}
    if not chosen:
        raise LeakauditError(f"--shard {i}/{n}: there are only {len(keyed)} cells")
    return {key: cell for key, cell in keyed.items() if key in chosen}


def dry(plan: SweepPlan, folder: Path, options: Options) -> dict[str, Json]:
    """Return how many cells there are and how many have a result, and what the rest would cost.

    The cost is estimated from the timings of this folder's cells.

    Args:
        plan: The sweep.
        folder: Where results are, if there are any.
        options: How it would be worked on.
    """
    planned = Planned(plan, cells.versions())
    store = Store(folder)
    mine = part(planned.keyed, options.shard)
    known = store.statuses(mine)
    left = _unfinished(mine, known, options)
    rows, total = _costs(mine.values(), dict(left).values(), _mean_times(store, planned))
    sized = _plan_of_first(mine, options)
    workers = max(1, options.processes)
    return {
        "cells": len(mine),
        "done": list(known.values()).count(DONE),
        "axes": {name: list(values) for name, values in plan.axes.items()},
        "attacks": list(plan.attacks),
        "adversaries": list(plan.adversaries),
        "seeds": list(plan.seeds),
        "grid": rows,
        "parameters": sized.task.layout.size,
        "recording": human(sized.size()),
        "workers": workers,
        "hours left": None if total is None else round(total / workers / 3600, 4),
    }


def _kind(cell: Cell) -> tuple[str, str]:
    """Return what cells of similar cost have in common."""
    return cell.scenario.victim, cell.attack


def _mean_times(store: Store, planned: Planned) -> dict[tuple[str, str], float]:
    """Return the mean processor time in seconds of this folder's cells, by victim and attack."""
    every = planned.keyed
    times: dict[tuple[str, str], list[float]] = {}
    for line in store.times():
        cell = every.get(line.cell)
        if line.status == DONE and cell is not None:
            times.setdefault(_kind(cell), []).append(line.cpu)
    return {kind: fmean(seconds) for kind, seconds in times.items()}


def _costs(
    mine: Iterable[Cell], left: Iterable[Cell], times: Mapping[tuple[str, str], float]
) -> tuple[list[dict[str, Json]], float | None]:
    """Return one row per victim and attack, and all seconds that are left, None if unknown."""
    unfinished = Counter(map(_kind, left))
    rows = []
    total: float | None = 0.0
    for kind, count in sorted(Counter(map(_kind, mine)).items()):
        victim, attack = kind
        seconds = times.get(kind)
        if seconds is None:
            total = None if unfinished[kind] else total
        elif total is not None:
            total += unfinished[kind] * seconds
        cost = "" if attack == "auto" else registry.get("attacks", attack).cost
        rows.append(
            {
                "victim": victim,
                "attack": attack,
                "cells": count,
                "left": unfinished[kind],
                "cost": cost,
                "seconds a cell": None if seconds is None else round(seconds, 3),
            }
        )
    return rows, total
