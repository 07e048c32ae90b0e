"""One sweep, from its plan to a folder with a result a cell, results.json, the figure and a report."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
from leakaudit.sweeping.store import DIED, DONE, FAILED, Planned, Store
from leakaudit.sweeping.work import Ended, Job, failure
from leakaudit.trace import Json
from leakaudit.traces.recorder import human

Items = Sequence[tuple[str, Cell]]
Ran = Callable[[Job, Items], Iterator[Ended]]


@dataclass(frozen=True)
class Options:
    """How a sweep is worked on; nothing here changes a result.

    workers: processes, 0 for this one, None for one a processor. backend: ``process``, ``joblib`` or ``joblib:NAME``. shard: (i, n), the
    i-th of n parts, from 1. again: try cells that failed once more.
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
    """How a sweep went. left: cells of this part without a result. interrupted: by Ctrl-C. results: where all parts are in one folder."""

    cells: int
    skipped: int
    troubles: list[tuple[str, str]] = field(default_factory=list)
    left: int = 0
    interrupted: bool = False
    results: dict[str, Json] | None = None


def sweep(plan: SweepPlan, folder: Path, options: Options) -> Swept:
    """Run the cells of a sweep that have no result yet, then write results.json, sweep.png and report.md of all that are there.

    A part of several writes its cells alone; `merge` puts the parts together. Ctrl-C and the deadline of `progress.watching` end the
    work, and the same call goes on from there. Raises LeakauditError, with nothing run, for a plan or folder that cannot be used.
    """
    planned, store = Planned(plan, cells.versions()), Store(folder)
    mine = part(planned.keyed, options.shard)
    recording.plan(
        next(iter(mine.values())).scenario,
        data_root=options.data_root,
        download=options.download,
        trusted=options.trusted,
    )
    with ready(folder):
        store.begin(planned)
        store.clean(mine)
        known = store.statuses(mine)
        todo = [(key, cell) for key, cell in mine.items() if known.get(key) not in options.kept]
        swept = Swept(len(mine), len(mine) - len(todo))
        job = Job(folder.absolute(), options.data_root, options.download, options.trusted)
        shard = f"{options.shard[0]}-of-{options.shard[1]}"
        done = 0
        step("cells", swept.skipped, len(mine))
        try:
            for ended in _work(job, todo, options):
                done += 1
                times = {"seconds": round(ended.seconds, 4), "cpu": round(ended.cpu, 4)}
                store.timed(
                    shard,
                    {"cell": ended.key, **times, "status": ended.status, "worker": ended.worker},
                )
                if ended.status == DIED:
                    store.save(
                        ended.key, {"config": mine[ended.key].config(), **failure(DIED, ended.says)}
                    )
                step("cells", swept.skipped + done, len(mine))
        except KeyboardInterrupt:
            swept.interrupted = True
        ends = store.statuses(mine)
        swept.left = len(mine) - len(ends)
        swept.troubles = [
            (mine[k].words, str((store.load(k) or {})["says"]))
            for k, status in ends.items()
            if status != DONE
        ]
        if options.shard[1] == 1:
            swept.results = merge.write([folder], folder / "results.json")
    return swept


def part(keyed: dict[str, Cell], shard: tuple[int, int]) -> dict[str, Cell]:
    """Return the i-th of n parts: every n-th cell in the order of the hashes, so that no part has one attack alone."""
    i, n = shard
    chosen = {*sorted(keyed)[i - 1 :: n]}
    if not chosen:
        raise LeakauditError(f"--shard {i}/{n}: there are only {len(keyed)} cells")
    return {key: cell for key, cell in keyed.items() if key in chosen}


def _work(job: Job, todo: Items, options: Options) -> Iterator[Ended]:
    if not todo:
        return iter(())
    workers = options.processes
    kind, _, name = options.backend.partition(":")
    if kind == "joblib":
        return pool.parallel(job, todo, max(1, workers), expired, name or None)
    return pool.processes(job, todo, workers, expired) if workers else pool.here(job, todo, expired)


def dry(plan: SweepPlan, folder: Path, options: Options) -> dict[str, Json]:
    """Return how many cells there are and how many have a result, and what the rest costs by the timings of this folder's cells."""
    planned, store = Planned(plan, cells.versions()), Store(folder)
    mine = part(planned.keyed, options.shard)
    known = store.statuses(mine)
    times: dict[tuple[str, str], list[float]] = {}
    every = planned.keyed
    for line in store.times():
        if line["status"] == DONE and (cell := every.get(line["cell"])) is not None:
            times.setdefault((cell.scenario.victim, cell.attack), []).append(float(line["cpu"]))
    rows, total = [], 0.0
    for (victim, attack), count in sorted(
        Counter((c.scenario.victim, c.attack) for c in mine.values()).items()
    ):
        left = sum(
            (c.scenario.victim, c.attack) == (victim, attack) and known.get(k) not in options.kept
            for k, c in mine.items()
        )
        seconds = fmean(times[victim, attack]) if (victim, attack) in times else None
        total += left * seconds if seconds is not None else float("nan") if left else 0.0
        cost = "" if attack == "auto" else registry.get("attacks", attack).cost
        row = {"victim": victim, "attack": attack, "cells": count, "left": left, "cost": cost}
        rows.append({**row, "seconds a cell": None if seconds is None else round(seconds, 3)})
    first = next(iter(mine.values()))
    sized = recording.plan(
        first.scenario,
        data_root=options.data_root,
        download=options.download,
        trusted=options.trusted,
    )
    workers = max(1, options.processes)
    return {
        "cells": len(mine),
        "done": sum(s == DONE for s in known.values()),
        "axes": {name: list(values) for name, values in plan.axes.items()},
        "attacks": list(plan.attacks),
        "adversaries": list(plan.adversaries),
        "seeds": list(plan.seeds),
        "grid": rows,
        "parameters": sized.task.layout.size,
        "recording": human(sized.size()),
        "workers": workers,
        "hours left": None if total != total else round(total / workers / 3600, 4),
    }
