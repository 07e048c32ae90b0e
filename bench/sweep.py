"""A sweep of 200 small cells: two workers against one, the overhead per cell, and resuming after
kills.

python bench/sweep.py [--cells N] [--repetitions N]     prints one JSON line per figure, in elapsed
                                                        time, since parallel work is measured

two-workers: `leakaudit sweep` as a separate process from start to end, with `--workers` 1 and 2; in
both cases this process plans and counts, and the workers are further processes. One pair of runs
per repetition, in alternating order: median, minimum and maximum of their ratios. start_s: time of
the run with one worker in addition to its cells and the waits between them. cells_s, cells_two_s:
the cells' own seconds with one worker and with two; equal without disturbance. floor: plain
arithmetic of two processes relative to one in the same time, after each pair: what the processors
and other programs leave of 2. overhead: waiting time of one worker from the end of a cell to the
start of the next. per-cell: processor time per cell that does almost nothing (a logistic model on
random data, the attack `labels`), of the whole command in one process, as the slope between two
numbers of cells; bare_ms: of recording, deducing, attacking and scoring such a cell in a loop;
ratio: the difference, in milliseconds, which is the overhead of the sweep. killed: the sweep is killed twice (SIGKILL) and resumed; ratio is 1 if every byte
of results.json and of all cells is the same. load: of the machine at the start.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

PLAN = """
[scenario]
victim = "fedsgd"
nodes = 2
rounds = 1
data = "faces"
model = "mlp"

[scenario.set]
hidden = 32

[sweep]
attacks = ["idlg"]
seeds = {seeds}
nodes = [0]

[sweep.over.idlg]
steps = [1, 2, 3, 4, 5]
"""


NOTHING = """
[scenario]
victim = "fedsgd"
nodes = 2
rounds = 1
data = "gaussians:8"
model = "logistic"

[sweep]
attacks = ["labels"]
seeds = {seeds}
nodes = [0]
"""
FEW, MANY = 50, 450  # cells of the two commands whose difference is the cost of a cell


def command_cpu(plan: Path, folder: Path) -> float:
    """Return the processor time in seconds of a sweep in one process."""
    process = start(plan, folder, 0)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the sweep ended with code {process.returncode}")
    return used.ru_utime + used.ru_stime


def bare_cpu(plan: Path) -> float:
    """Return the processor time in seconds per cell of its own work, without that of a sweep."""
    import torch

    from leakaudit._util import seeds
    from leakaudit.core.adversary import Adversary
    from leakaudit.inversion import attacking
    from leakaudit.protocols import recording
    from leakaudit.runs.sweeping import tables
    from leakaudit.runs.sweeping.store import StoredPlan
    from leakaudit.scoring.scoring import score
    from leakaudit.tasks.task import Task
    from leakaudit.views.extraction import hearing
    from leakaudit.views.extraction.deduction import Deduction

    torch.set_num_threads(1)
    planned = list(StoredPlan(tables.load(plan)).keyed.values())
    readies = [recording.plan(cell.scenario) for cell in planned]
    task = Task.build(readies[0].task.spec)
    begin = 0.0
    for k, (cell, ready) in enumerate(zip(planned, readies, strict=True)):
        if k == FEW:  # everything is imported and cached
            begin = time.process_time()
        recorder = recording.record(ready, None)
        heard = Deduction(recorder.trace, Adversary.parse(cell.adversary))
        leaks = list(hearing.deduce(heard, [0], cell.plan.gradients, incomplete=True))
        random = [seeds.generator(cell.scenario.seed, leak.node) for leak in leaks]
        made = attacking.attack_together(leaks, task, cell.attack, random, **cell.settings)
        score([one.found for one in made], recorder.truth_record)
    return (time.process_time() - begin) / (len(planned) - FEW)


def per_cell(scratch: Path) -> None:
    """Print the overhead of a cell that does almost nothing."""
    seconds = {}
    for count in (FEW, MANY):
        plan = scratch / f"nothing{count}.toml"
        plan.write_text(NOTHING.format(seeds=count))
        seconds[count] = command_cpu(plan, scratch / f"nothing{count}")
    whole = (seconds[MANY] - seconds[FEW]) / (MANY - FEW)
    bare = bare_cpu(scratch / f"nothing{MANY}.toml")
    said(
        "per-cell",
        1e3 * (whole - bare),
        "ms of overhead per cell",
        target=5,
        whole_ms=round(1e3 * whole, 2),
        bare_ms=round(1e3 * bare, 2),
    )


def start(plan: Path, folder: Path, workers: int) -> subprocess.Popen[bytes]:
    """Start or continue a sweep."""
    words = [
        sys.executable,
        "-m",
        "leakaudit",
        "sweep",
        str(plan),
        "-o",
        str(folder),
        "--workers",
        str(workers),
        "-q",
        "-f",
        "json",
    ]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL)


def whole(plan: Path, folder: Path, workers: int) -> float:
    """Return the elapsed seconds of a sweep from nothing to results.json."""
    begin = time.perf_counter()
    if code := start(plan, folder, workers).wait():
        raise SystemExit(f"the sweep ended with code {code}")
    return time.perf_counter() - begin


def arithmetic(_: int = 0) -> float:
    """Return the elapsed seconds of numeric work that is not limited by memory."""
    import numpy as np

    x, begin = np.full(4096, 0.5), time.perf_counter()
    for _ in range(80_000):
        x = np.tanh(x + 0.1)
    return time.perf_counter() - begin


def floor() -> float:
    """Return the arithmetic of two processes relative to one in the same time; the median of three
    alternations.
    """
    with ProcessPoolExecutor(2) as pool:
        return statistics.median(
            2 * pool.submit(arithmetic).result() / max(pool.map(arithmetic, range(2)))
            for _ in range(3)
        )


def finished(folder: Path) -> int:
    """Return the number of cells with a result."""
    return len([*folder.glob("cells/*.json")])


def own(folder: Path) -> list[float]:
    """Return the seconds that each cell took, in the order in which they ended."""
    (file,) = folder.glob("times-*.jsonl")
    return [float(json.loads(line)["seconds"]) for line in file.read_text().splitlines()]


def waits(folder: Path) -> float:
    """Return the total seconds that one worker waited between cells: from the first result to the
    last one, minus the cells between.
    """
    ends = [path.stat().st_mtime for path in folder.glob("cells/*.json")]
    return max(ends) - min(ends) - sum(own(folder)[1:])


def killed(plan: Path, folder: Path, total: int) -> list[int]:
    """Kill a sweep at a third and at two thirds, and let it end; return the number of finished
    cells at each kill.
    """
    counts = []
    for share in (total // 3, 2 * total // 3):
        with start(plan, folder, 2) as process:
            while finished(folder) < share and process.poll() is None:
                time.sleep(0.01)
            process.kill()
        counts.append(finished(folder))
    whole(plan, folder, 2)
    return counts


def kept(folder: Path) -> dict[str, bytes]:
    """Return every result, by name."""
    return {p.name: p.read_bytes() for p in [folder / "results.json", *folder.glob("cells/*.json")]}


def said(name: str, ratio: float, unit: str, **more: Any) -> None:
    """Print one figure."""
    print(
        json.dumps({"bench": f"sweep/{name}", "ratio": round(ratio, 3), "unit": unit, **more}),
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=200, help="a multiple of 5")
    parser.add_argument(
        "--repetitions", type=int, default=2, help="pairs of runs; about a minute each"
    )
    asked = parser.parse_args()
    about = {
        "cells": asked.cells,
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "target": 1.7,
    }
    with tempfile.TemporaryDirectory() as scratch:
        plan = Path(scratch) / "plan.toml"
        plan.write_text(PLAN.format(seeds=asked.cells // 5))
        turns, floors = [], []
        for turn in range(asked.repetitions):
            folders = {n: Path(scratch) / f"{turn}-{n}" for n in (1, 2)}
            times = {n: whole(plan, folders[n], n) for n in ((1, 2) if turn % 2 == 0 else (2, 1))}
            cells, two, rest = sum(own(folders[1])), sum(own(folders[2])), waits(folders[1])
            start_s = times[1] - cells - rest
            turns.append(
                {
                    "one_s": times[1],
                    "two_s": times[2],
                    "start_s": start_s,
                    "cells_s": cells,
                    "cells_two_s": two,
                    "waits_s": rest,
                }
            )
            floors.append(floor())
        ratios = [t["one_s"] / t["two_s"] for t in turns]
        seconds = {name: round(statistics.median(t[name] for t in turns), 2) for name in turns[0]}
        span = {
            "least": round(min(ratios), 3),
            "most": round(max(ratios), 3),
            "repetitions": asked.repetitions,
        }
        said(
            "two-workers",
            statistics.median(ratios),
            "times as fast as one worker",
            **span,
            **seconds,
            **about,
        )
        said(
            "floor",
            statistics.median(floors),
            "times the arithmetic of one process, by two",
            least=round(min(floors), 3),
        )
        rest = statistics.median(t["waits_s"] / t["cells_s"] for t in turns)
        said(
            "overhead",
            rest,
            "of a cell's own time",
            ms=round(1e3 * seconds["waits_s"] / (asked.cells - 1), 2),
        )
        per_cell(Path(scratch))
        counts = killed(plan, Path(scratch) / "killed", asked.cells)
        same = kept(Path(scratch) / "killed") == kept(folders[2])
        said("killed-twice", float(same), "1: the same bytes", killed_at=counts, target=1)


if __name__ == "__main__":
    main()
