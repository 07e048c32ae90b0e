"""A sweep of 200 small cells: two workers against one, what a cell costs beside its own work, and kills that change nothing.

python bench/sweep.py [--cells N] [--repetitions N]     one JSON line a figure; wall clock, since it is about working at the same time

two-workers: `leakaudit sweep` as a process of its own from its start to its end, with `--workers` 1 and 2; either has that process, which
plans and counts, and so many others, which work. One pair of runs a repetition, in alternating order: median, least and most of their
ratios. start_s: what one worker's run takes beside its cells and the waits between them. cells_s, cells_two_s: the cells' own seconds with
one worker and with two; the same where nothing disturbs. floor: how much plain arithmetic two processes do over what one does in the same
time, after each pair: what the processors, and whatever else runs on them, leave of 2. overhead: what one worker waits from the end of a
cell to the begin of the next. killed: the sweep is killed twice (SIGKILL) and resumed; ratio is 1 where every byte of results.json and of
all cells is the same. load: of the machine when it began.
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


def start(plan: Path, folder: Path, workers: int) -> subprocess.Popen[bytes]:
    """Begin or go on with a sweep."""
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
    """Wall-clock seconds of a sweep from nothing to results.json."""
    begin = time.perf_counter()
    if code := start(plan, folder, workers).wait():
        raise SystemExit(f"the sweep ended with code {code}")
    return time.perf_counter() - begin


def arithmetic(_: int = 0) -> float:
    """Wall-clock seconds of numeric work that no memory limits."""
    import numpy as np

    x, begin = np.full(4096, 0.5), time.perf_counter()
    for _ in range(80_000):
        x = np.tanh(x + 0.1)
    return time.perf_counter() - begin


def floor() -> float:
    """How many times as much arithmetic two processes do as one in the same time; the median of three alternations."""
    with ProcessPoolExecutor(2) as pool:
        return statistics.median(
            2 * pool.submit(arithmetic).result() / max(pool.map(arithmetic, range(2)))
            for _ in range(3)
        )


def finished(folder: Path) -> int:
    """Number of cells that have a result."""
    return len([*folder.glob("cells/*.json")])


def own(folder: Path) -> list[float]:
    """Seconds that each cell took, in the order of their ends."""
    (file,) = folder.glob("times-*.jsonl")
    return [float(json.loads(line)["seconds"]) for line in file.read_text().splitlines()]


def waits(folder: Path) -> float:
    """Seconds that one worker waited between cells, together: from the first result's time to the last one's, less the cells between."""
    ends = [path.stat().st_mtime for path in folder.glob("cells/*.json")]
    return max(ends) - min(ends) - sum(own(folder)[1:])


def killed(plan: Path, folder: Path, total: int) -> list[int]:
    """Kill a sweep at a third and at two thirds, and let it end; return the cells that were there at each kill."""
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
    """Every result, by name."""
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
        counts = killed(plan, Path(scratch) / "killed", asked.cells)
        same = kept(Path(scratch) / "killed") == kept(folders[2])
        said("killed-twice", float(same), "1: the same bytes", killed_at=counts, target=1)


if __name__ == "__main__":
    main()
