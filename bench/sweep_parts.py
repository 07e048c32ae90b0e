"""A sweep of 10,000 small cells in four parts, as on four machines: separate commands, folders and
processes, and then a merge; against one command.

python bench/sweep_parts.py [--cells N] [--parts N]     prints one JSON line

ratio: 1 if results.json, report.md and all cells have the same bytes. one_s, parts_s, merge_s:
elapsed seconds. cpu_ms: processor time per cell of the command that runs all of them in one
process, start, record and figure included. largest_mb: memory that the merge needs.
"""

from __future__ import annotations

import argparse
import json
import os
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
data = "gaussians:8"
model = "logistic"

[sweep]
attacks = ["labels"]
seeds = {seeds}
nodes = [0]
"""


def started(*words: str) -> subprocess.Popen[bytes]:
    """Start a sweep, or a merge."""
    command = [sys.executable, "-m", "leakaudit", "sweep", *words, "-q", "-f", "json"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def ended(process: subprocess.Popen[bytes]) -> tuple[float, float]:
    """Wait for a command; return its processor time in seconds and its memory in MB."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"a sweep ended with code {process.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def kept(folder: Path) -> dict[str, bytes]:
    """Return the cells, by name."""
    return {path.name: path.read_bytes() for path in (folder / "cells").iterdir()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--parts", type=int, default=4)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        plan = folder / "plan.toml"
        plan.write_text(PLAN.format(seeds=asked.cells))
        start = time.perf_counter()
        parts = [folder / f"part{k}" for k in range(asked.parts)]
        shards = [
            started(str(plan), "-o", str(p), "--shard", f"{k + 1}/{asked.parts}", "--workers", "1")
            for k, p in enumerate(parts)
        ]
        for shard in shards:
            ended(shard)
        parts_s = time.perf_counter() - start
        start = time.perf_counter()
        (folder / "merged").mkdir()
        _, largest = ended(started("merge", *map(str, parts), "-o", f"{folder / 'merged'}/"))
        merge_s = time.perf_counter() - start
        start = time.perf_counter()
        cpu, _ = ended(started(str(plan), "-o", str(folder / "one"), "--workers", "0"))
        one_s = time.perf_counter() - start
        together = {name: found for part in parts for name, found in kept(part).items()}
        same = together == kept(folder / "one")
        for name in ("results.json", "report.md"):
            same &= (folder / "merged" / name).read_bytes() == (folder / "one" / name).read_bytes()
    print(
        json.dumps(
            {
                "bench": "sweep/parts",
                "ratio": float(same),
                "unit": "1: the same bytes",
                "target": 1,
                "cells": asked.cells,
                "parts": asked.parts,
                "one_s": round(one_s, 1),
                "parts_s": round(parts_s, 1),
                "merge_s": round(merge_s, 1),
                "cpu_ms": round(1e3 * cpu / asked.cells, 2),
                "largest_mb": round(largest),
                "cores": len(os.sched_getaffinity(0)),
                "load": round(os.getloadavg()[0], 2),
            }
        )
    )


if __name__ == "__main__":
    main()
