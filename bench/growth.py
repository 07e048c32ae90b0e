"""How CPU time and memory grow with the size of a run, and how far a minute, an hour and 8 GB reach.

python bench/growth.py [--only NAME …] [--runs 2] [--table]

Each case calls the public API with four or five sizes, each in its own process, after one call of
the smallest size that loads all modules. seconds: CPU time of the call, the minimum of the runs;
MB: peak of the resident memory during the call, above what the process held before it. exponent:
slope p of log seconds over log size by least squares, as in seconds = c size^p, with its 95 %
confidence interval by Student's t. minute, hour: sizes at which this line reaches 60 and 3600
seconds; 8 GB: the same for memory. They extrapolate; null if the figure does not grow, or beyond
10^9. Fixed costs of a call lower the exponent, so the extrapolations are optimistic. work: seconds at the largest size over those of a fixed piece of arithmetic in the same
process, which other programs on the machine slow down as well; `make bench` keeps it.

Prints one JSON line per case; --table adds a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

MINUTE, HOUR, MEMORY = 60.0, 3600.0, 8000.0  # seconds, seconds, MB
FAR = 1e9  # sizes beyond it are not printed
LEAST_MB = 8.0  # growth of memory below it cannot be told from that of the allocator
Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One quantity that grows.

    Attributes:
        size: Its name, as users know it.
        sizes: The sizes, increasing.
        prepare: Given a size and an empty folder, returns the call to measure.
    """

    size: str
    sizes: tuple[int, ...]
    prepare: Callable[[int, Path], Call]


def scenario(**given: Any) -> Any:
    """Return a small scenario with some values changed."""
    from leakaudit.protocols.scenario import Scenario

    small = {"victim": "pdmm", "nodes": 8, "graph": "ring", "rounds": 6, "set": {"hidden": 16}}
    return Scenario(**{**small, **given})


def noised(**given: Any) -> Any:
    """Return a small scenario of decentralised DP-SGD."""
    constants = {"hidden": 16, "order": "adapt", "sigma": 1.0, "clip": 1.0}
    return scenario(**{"victim": "dpsgd", "set": constants, **given})


def ring(nodes: int) -> dict[str, Any]:
    """Return what is special about a ring of many nodes: a data set with enough records."""
    return {"nodes": nodes, "data": "gaussians", "model": "logistic", "set": {}}


def record(folder: Path, **given: Any) -> Call:
    """Record a run in a file."""
    import leakaudit as la

    asked = scenario(**given)
    return lambda: la.record(asked, folder / "trace.pt", max_bytes=20_000_000_000)


def bound(coalitions: int = 1, **given: Any) -> Call:
    """Bound the default views of all nodes."""
    import leakaudit as la

    asked = noised(**given)
    return lambda: la.bound(asked, coalitions=coalitions)


def explain(folder: Path, whom: Sequence[int] | None = (0,), **given: Any) -> Call:
    """Explain what an eavesdropper learns about some nodes; None for all."""
    import leakaudit as la

    record(folder, **given)()
    return lambda: la.explain(la.load(folder / "trace.pt"), la.Adversary(), nodes=whom)


def attack(
    folder: Path, name: str = "analytic", whom: Sequence[int] | None = (0,), **given: Any
) -> Call:
    """Attack some nodes, from the trace file to the reconstructions; None for all."""
    import torch

    import leakaudit as la

    record(folder, **given)()

    def call() -> object:
        leaks = la.leaks(la.load(folder / "trace.pt"), la.Adversary(), nodes=whom)
        return la.attack(leaks, name, generator=torch.Generator().manual_seed(0))

    return call


def sweep(cells: int, folder: Path) -> Call:
    """Run a sweep of cells that hardly work, in this process."""
    import leakaudit as la

    base = scenario(victim="fedsgd", nodes=2, rounds=1).to_toml().replace("[set]", "[scenario.set]")
    text = f'[scenario]\n{base}\n[sweep]\nattacks = ["analytic"]\nseeds = {cells}\nnodes = [0]\n'
    (folder / "sweep.toml").write_text(text)
    return lambda: la.sweep(folder / "sweep.toml", folder / "swept", executor=la.Executor())


def report(findings: int, folder: Path) -> Call:
    """Render results with copies of one finding as a page."""
    from leakaudit.api import report as render
    from leakaudit.cli import main

    record(folder)()
    words = ["attack", str(folder / "trace.pt"), "-o", str(folder / "out"), "-q", "--node", "0"]
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    code = main([*words, "-f", "json"])
    sys.stdout.flush()
    os.dup2(kept, 1)
    if code:
        raise SystemExit(f"the attack ended with code {code}")
    file = folder / "out" / "results.json"
    results = json.loads(file.read_text())
    results["findings"] = results["findings"] * findings
    file.write_text(json.dumps(results))
    return lambda: render(file, "html")


HIDDEN = 625 + 1 + 100  # parameters of the model for one hidden unit, without the 100 of the output
CASES = {
    "record nodes": Case("nodes", (128, 256, 512, 1000), lambda n, at: record(at, **ring(n))),
    "record rounds": Case("rounds", (64, 128, 256, 512), lambda n, at: record(at, rounds=n)),
    "record parameters": Case(
        "parameters",
        tuple(HIDDEN * h for h in (64, 256, 1024, 4096)),
        lambda d, at: record(at, nodes=4, set={"hidden": d // HIDDEN}),
    ),
    "record batch": Case("records", (4, 8, 16, 32), lambda b, at: record(at, nodes=3, samples=b)),
    "bound nodes": Case("nodes", (6, 8, 11, 15), lambda n, at: bound(nodes=n, graph="rgg")),
    "bound rounds": Case("rounds", (8, 16, 32, 64), lambda n, at: bound(nodes=5, rounds=n)),
    "bound coalition": Case(
        "curious nodes", (1, 2, 3, 4), lambda k, at: bound(k, nodes=8, graph="rgg", rounds=4)
    ),
    "explain nodes": Case("nodes", (32, 64, 128, 256), lambda n, at: explain(at, None, **ring(n))),
    "explain rounds": Case("rounds", (16, 32, 64, 128), lambda n, at: explain(at, rounds=n)),
    "attack nodes": Case(
        "nodes", (32, 64, 128, 256), lambda n, at: attack(at, whom=None, **ring(n))
    ),
    "attack rounds": Case("rounds", (16, 32, 64, 128), lambda n, at: attack(at, rounds=n)),
    "attack parameters": Case(
        "parameters",
        tuple(HIDDEN * h for h in (64, 256, 1024, 4096)),
        lambda d, at: attack(at, nodes=4, set={"hidden": d // HIDDEN}),
    ),
    "attack batch": Case(
        "records",
        (2, 4, 8, 16),
        lambda b, at: attack(
            at,
            "exact",
            nodes=4,
            rounds=20,
            samples=b,
            dtype="float64",
            set={"hidden": 64},
        ),
    ),
    "sweep cells": Case("cells", (5, 10, 20, 40), sweep),
    "report findings": Case("findings", (100, 200, 400, 800), report),
}


class Point(NamedTuple):
    """What one call took: CPU seconds, MB, and CPU seconds of the fixed piece of arithmetic."""

    seconds: float
    megabytes: float
    yard: float


def yard() -> float:
    """Return the CPU seconds of a fixed piece of arithmetic, in Python and in numpy."""
    import numpy as np

    matrix = np.random.default_rng(0).random((200, 200))
    start = time.process_time()
    for _ in range(40):
        np.matmul(matrix, matrix)
    total = 0
    for k in range(400_000):
        total += k * k
    return time.process_time() - start


def memory(field: str) -> float:
    """Return a figure of /proc/self/status in MB; 0 on another system."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0.0
    lines = status.read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith(field))


def once(name: str, size: int) -> Point:
    """Measure one call in this process."""
    import torch

    torch.set_num_threads(1)
    case = CASES[name]
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        case.prepare(case.sizes[0], Path(first))()
        call = case.prepare(size, Path(second))
        before_yard = yard()
        clear = Path("/proc/self/clear_refs")
        if clear.exists():
            clear.write_text("5")  # forget the peak so far
        held = memory("VmRSS")
        start = time.process_time()
        call()
        seconds = time.process_time() - start
        peak = memory("VmHWM") - held
    return Point(seconds, peak, min(before_yard, yard()))


def apart(name: str, size: int) -> Point:
    """Measure one call in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", name, str(size)],
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        text=True,
    )
    return Point(*json.loads(done.stdout.splitlines()[-1]))


class Line(NamedTuple):
    """The line log y = log c + p log x: p with its interval, and log c."""

    exponent: float
    low: float
    high: float
    level: float

    def reaches(self, value: float) -> float | None:
        """Return the x at which the line reaches a value; None if it does not grow."""
        if self.low <= 0:
            return None
        far = (math.log(value) - self.level) / self.exponent
        return round(math.exp(far), 1) if far < math.log(FAR) else None


def line(sizes: Sequence[float], values: Sequence[float]) -> Line:
    """Fit a line to the logarithms by least squares.

    The interval is p +- t s / sqrt(sum (log x - mean)^2), in which s^2 is the residual variance with
    n - 2 degrees of freedom, and t the 97.5 % quantile of Student's distribution with as many.
    """
    from scipy.stats import t

    x = [math.log(size) for size in sizes]
    y = [math.log(value) for value in values]
    n = len(x)
    middle = sum(x) / n
    spread = sum((a - middle) ** 2 for a in x)
    slope = sum((a - middle) * b for a, b in zip(x, y, strict=True)) / spread
    level = sum(y) / n - slope * middle
    misses = sum((b - level - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    half = float(t.ppf(0.975, n - 2)) * math.sqrt(misses / (n - 2) / spread)
    return Line(slope, slope - half, slope + half, level)


def grown(name: str, points: Mapping[int, Sequence[Point]]) -> dict[str, Any]:
    """Return the JSON line of one case from the runs of each size."""
    sizes = [*points]
    seconds = [min(p.seconds for p in runs) for runs in points.values()]
    megabytes = [min(p.megabytes for p in runs) for runs in points.values()]
    work = min(p.seconds / p.yard for p in points[sizes[-1]])
    found: dict[str, Any] = {
        "bench": f"growth/{name}",
        "size": CASES[name].size,
        "sizes": sizes,
        "seconds": [round(s, 4) for s in seconds],
        "megabytes": [round(m, 1) for m in megabytes],
        "work": round(work, 2),
    }
    time_line = line(sizes, seconds)
    found |= {
        "exponent": round(time_line.exponent, 2),
        "low": round(time_line.low, 2),
        "high": round(time_line.high, 2),
        "minute": time_line.reaches(MINUTE),
        "hour": time_line.reaches(HOUR),
        "memory_exponent": None,
        "8 GB": None,
    }
    above = [(size, mb) for size, mb in zip(sizes, megabytes, strict=True) if mb >= LEAST_MB]
    if len(above) > 2:
        memory_line = line(*zip(*above, strict=True))
        found["memory_exponent"] = round(memory_line.exponent, 2)
        found["8 GB"] = memory_line.reaches(MEMORY)
    return found


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the lines as a table in Markdown."""
    rows = [
        "| call | sizes | CPU seconds | exponent | a minute | an hour | MB | 8 GB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in lines:
        interval = f"{one['exponent']:.2f} ({one['low']:.2f} to {one['high']:.2f})"
        reached = [_far(one[key]) for key in ("minute", "hour", "8 GB")]
        rows.append(
            f"| {one['bench'].removeprefix('growth/')} | {', '.join(f'{s:,}' for s in one['sizes'])} "
            f"| {', '.join(f'{s:.2g}' for s in one['seconds'])} | {interval} "
            f"| {reached[0]} | {reached[1]} "
            f"| {', '.join(f'{m:.0f}' for m in one['megabytes'])} | {reached[2]} |"
        )
    return "\n".join(rows)


def _far(size: float | None) -> str:
    """Return a size with two digits."""
    if size is None:
        return "-"
    digits = max(0, math.floor(math.log10(max(size, 1))) - 1)
    return f"{round(size, -digits):,.0f}"


def main() -> int:
    """Measure, and print a line for each case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases that begin with NAME")
    parser.add_argument("--runs", type=int, default=2, help="runs of each size (default 2)")
    parser.add_argument("--table", action="store_true", help="add a table in Markdown")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SIZE"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(once(asked.one[0], int(asked.one[1]))))
        return 0
    lines = []
    for name, case in CASES.items():
        if asked.only and not name.startswith(tuple(asked.only)):
            continue
        points = {n: [apart(name, n) for _ in range(asked.runs)] for n in case.sizes}
        lines.append(grown(name, points))
        print(json.dumps(lines[-1]), flush=True)
    if asked.table:
        print(table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
