"""What a sweep would do, and the cost of its remaining cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from leakaudit._util import averages
from leakaudit.core import registry
from leakaudit.core.trace import Json
from leakaudit.reporting.results.cell_files import DONE
from leakaudit.runs.sweeping.cells import PlannedCell
from leakaudit.runs.sweeping.plan import NO_ATTACK, SweepPlan
from leakaudit.runs.sweeping.run import SweepOptions, part, plan_of_first, remaining
from leakaudit.runs.sweeping.store import Store, StoredPlan
from leakaudit.traces.recorder import human


def dry(plan: SweepPlan, folder: Path, options: SweepOptions) -> dict[str, Json]:
    """Return the cells, and the cost of those left, by the timings of this folder."""
    planned = StoredPlan(plan)
    store = Store(folder)
    mine = part(planned.keyed, options.shard)
    known = store.statuses(mine)
    left = remaining(mine, known, options)
    rows, total = _costs(mine.values(), dict(left).values(), _mean_times(store, planned))
    sized = plan_of_first(mine, options)
    workers = max(1, options.executor.workers)
    hours = None
    if total is not None:
        hours = round(total / workers / 3600, 4)
    return {
        "cells": len(mine),
        "done": list(known.values()).count(DONE),
        "axes": plan.axes,
        "attacks": plan.attacks,
        "adversaries": plan.adversaries,
        "seeds": plan.seeds,
        "grid": rows,
        "parameters": sized.task.layout.size,
        "recording": human(sized.size),
        "workers": workers,
        "hours left": hours,
    }


def _kind(cell: PlannedCell) -> tuple[str, str]:
    return cell.scenario.victim, cell.attack


def _mean_times(store: Store, planned: StoredPlan) -> dict[tuple[str, str], float]:
    """Return the mean processor time in seconds, by victim and attack."""
    every = planned.keyed
    times: dict[tuple[str, str], list[float]] = {}
    for timing in store.times():
        cell = every.get(timing.cell)
        if timing.status == DONE and cell is not None:
            times.setdefault(_kind(cell), []).append(timing.cpu)
    return {kind: averages.mean(seconds) for kind, seconds in times.items()}


def _costs(
    mine: Iterable[PlannedCell],
    left: Iterable[PlannedCell],
    times: Mapping[tuple[str, str], float],
) -> tuple[list[dict[str, Json]], float | None]:
    """Return a row per victim and attack, and the seconds left; None if unknown."""
    waiting = Counter(map(_kind, left))
    rows: list[dict[str, Json]] = []
    total: float | None = 0.0
    for kind, count in sorted(Counter(map(_kind, mine)).items()):
        victim, attack = kind
        seconds = times.get(kind)
        shown = None
        if seconds is None:
            total = None if waiting[kind] else total
        else:
            shown = round(seconds, 3)
            if total is not None:
                total += waiting[kind] * seconds
        cost = ""
        if attack not in ("auto", NO_ATTACK):
            cost = registry.get("attacks", attack).cost
        rows.append(
            {
                "victim": victim,
                "attack": attack,
                "cells": count,
                "left": waiting[kind],
                "cost": cost,
                "seconds a cell": shown,
            }
        )
    return rows, total
