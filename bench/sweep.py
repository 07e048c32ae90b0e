"""A sweep of 200 small cells: two workers against one, what a cell costs beside its own work, and kills that change nothing.

python bench/sweep.py [--cells N]        one JSON line a figure; wall clock, since it is about working at the same time

one, two: `leakaudit sweep` as a process of its own, start included, alternated. overhead: the wall clock of one worker, less its start and
the cells' own seconds, a cell. killed: the sweep is killed twice (SIGKILL) and resumed; ratio is 1 where every byte of results.json and of
all cells is the same. load: of the machine when it began; other programs on these processors make two workers look worse.
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
from pathlib import Path

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


def start(plan: Path, folder: Path, workers: int) -> subprocess.Popen[bytes]:
    """Begin or go on with a sweep."""
    words = [sys.executable, "-m", "leakaudit", "sweep", str(plan), "-o", str(folder), "--workers", str(workers), "-q", "-f", "json"]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})


def whole(plan: Path, folder: Path, workers: int) -> float:
    """Wall-clock seconds of a sweep from nothing to results.json."""
    begin = time.perf_counter()
    if code := start(plan, folder, workers).wait():
        raise SystemExit(f"the sweep ended with code {code}")
    return time.perf_counter() - begin


def finished(folder: Path) -> int:
    """Number of cells that have a result."""
    return len([*folder.glob("cells/*.json")])


def own(folder: Path) -> float:
    """Seconds that the cells themselves took, together."""
    lines = [line for file in folder.glob("times-*.jsonl") for line in file.read_text().splitlines()]
    return sum(float(json.loads(line)["seconds"]) for line in lines)


def killed(plan: Path, folder: Path, total: int) -> list[int]:
    """Kill a sweep at a third and at two thirds, and let it end; return the cells that were there at each kill."""
    counts = []
    for share in (total // 3, 2 * total // 3):
        with start(plan, folder, 2) as process:
            while finished(folder) < share:
                time.sleep(0.01)
            process.kill()
        counts.append(finished(folder))
    if code := start(plan, folder, 2).wait():
        raise SystemExit(f"the sweep ended with code {code}")
    return counts


def kept(folder: Path) -> dict[str, bytes]:
    """Every result, by name."""
    return {p.name: p.read_bytes() for p in [folder / "results.json", *folder.glob("cells/*.json")]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=200, help="a multiple of 5")
    parser.add_argument("--repetitions", type=int, default=1)
    asked = parser.parse_args()
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as scratch:
        plan, few = Path(scratch) / "plan.toml", Path(scratch) / "few.toml"
        plan.write_text(PLAN.format(seeds=asked.cells // 5))
        few.write_text(PLAN.format(seeds=1).replace("1, 2, 3, 4, 5", "1"))
        ratios, lines = [], []
        for turn in range(asked.repetitions):
            folders = {n: Path(scratch) / f"{turn}-{n}" for n in (1, 2)}
            times = {n: whole(plan, folders[n], n) for n in ((1, 2) if turn % 2 == 0 else (2, 1))}
            begin = whole(few, Path(scratch) / f"{turn}-few", 1) - own(Path(scratch) / f"{turn}-few")
            ratios.append(times[1] / times[2])
            lines.append((times[1], times[2], begin, (times[1] - begin - own(folders[1])) / asked.cells))
        one, two, begin, rest = (statistics.median(column) for column in zip(*lines, strict=True))
        seconds = {
            "one_s": round(one, 2),
            "two_s": round(two, 2),
            "start_s": round(begin, 2),
            "cell_ms": round(1e3 * own(folders[1]) / asked.cells),
        }
        about = {"cells": asked.cells, "cores": cores, "load": round(load, 2)}
        ratio = round(statistics.median(ratios), 2)
        print(
            json.dumps(
                {"bench": "sweep/two-workers", "ratio": ratio, "unit": "times as fast as one worker", **seconds, **about, "target": 1.7}
            )
        )
        print(
            json.dumps(
                {
                    "bench": "sweep/overhead",
                    "ratio": round(rest / (own(folders[1]) / asked.cells), 3),
                    "unit": "of a cell's own time",
                    "ms": round(1e3 * rest, 2),
                }
            )
        )
        counts = killed(plan, Path(scratch) / "killed", asked.cells)
        same = kept(Path(scratch) / "killed") == kept(folders[2])
        print(
            json.dumps({"bench": "sweep/killed-twice", "ratio": float(same), "unit": "1: the same bytes", "killed_at": counts, "target": 1})
        )


if __name__ == "__main__":
    main()
