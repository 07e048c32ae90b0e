"""Large inputs, many readers at once, and one process that never ends: time, memory and growth.

python bench/load.py [--only NAME …] [--repeat 200]
    rounds: 1e4 and 1e5 rounds of a small model: recorded, read, attacked
    findings: 2,500 and 10,000 findings in one record: read, written as a page, Markdown and JSON
    nodes: rings of 750 and 3,000 nodes: recorded, listed, one node explained and attacked
    parameters: 1e7 and 1e8 parameters: recorded whole and by selected columns, listed, one node
        attacked with at most 16 GB
    readers: 200 threads, and 4 processes with 50 reads each, read one trace and one record at once
    repeat: load a trace, report, bound and check, again and again in one process

One JSON line per step; each size runs in its own process, on one thread, after a tiny one that
loads all modules. seconds: CPU time of the step, and of its processes; wall: wall-clock time;
megabytes: peak of the resident memory during it, above what the process held before; mapped files
count while they are in memory. exponent: slope of log seconds over log size between the two sizes.
For repeat, slope is the growth of the resident memory, after a tenth of the repetitions, in MB per
100 repetitions by least squares, and slower the time of the last fifth over that of the first fifth
after the warm-up. The exit code is 1 if a step grows faster than its size to the power of 1.3, if
readers disagree, or if the memory or the time of repetitions grows.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from growth import HIDDEN, memory

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy loads its linear algebra

MOST_EXPONENT = 1.3  # of a step, with room for the noise of two sizes
MOST_SLOPE = 2.0  # MB per 100 repetitions: an allocator that is not quite settled
MOST_SLOWER = 1.5  # last repetitions over first ones, with room for other programs
LEAST_SECONDS = 0.5  # a step that is faster has no exponent
READS, PROCESSES = 200, 4
# Sizes that only load the modules; their lines are not printed.
WARM = {"rounds": 20, "findings": 5, "nodes": 5, "parameters": 20_000, "readers": 4, "repeat": 3}
Line = dict[str, Any]

GATE = """
[gate]
seeds = 2
baseline = "leakage-baseline.json"
compare = ["exact"]
[check.main]
attacks = ["exact"]
[check.main.scenario]
victim = "dpsgd"
nodes = 3
graph = "ring"
rounds = 2
data = "gaussians"
model = "logistic"
set = { sigma = 0.5 }
[[budget]]
measure = "exact"
most = 0.0
"""


class Steps:
    """Measures the steps of one case in this process, and prints a line for each."""

    def __init__(self, bench: str, size: int) -> None:
        self.bench = bench
        self.size = size

    @contextmanager
    def step(self, name: str, **about: object) -> Iterator[Line]:
        """Measure what is inside; entries added to the yielded line are printed too."""
        line: Line = {"bench": f"load/{self.bench}", "size": self.size, "step": name, **about}
        clear = Path("/proc/self/clear_refs")
        if clear.exists():
            clear.write_text("5")  # forget the peak so far
        held = memory("VmRSS")
        start = time.perf_counter()
        used = cpu()
        yield line
        line["seconds"] = round(cpu() - used, 2)
        line["wall"] = round(time.perf_counter() - start, 2)
        line["megabytes"] = round(memory("VmHWM") - held, 1)
        if self.size > WARM[self.bench]:
            print(json.dumps(line), flush=True)


def cpu() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def command(*words: str) -> str:
    """Run a command in this process; return what it printed."""
    from leakaudit.cli import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(words)
    if code not in (0, 3):
        raise SystemExit(f"leakaudit {' '.join(words)}: code {code}")
    return out.getvalue()


# ---------------------------------------------------------------------------------------------
# Large inputs
# ---------------------------------------------------------------------------------------------

SMALL = ["--data", "gaussians", "--model", "logistic", "--samples", "1", "--graph", "ring", "-q"]
SMALL += ["--max-bytes", "20GB"]


def rounds(size: int, folder: Path) -> None:
    """A long run of a small model."""
    steps = Steps("rounds", size)
    trace = str(folder / "t.pt")
    with steps.step("record") as line:
        command("record", "dpsgd", "--nodes", "4", "--rounds", str(size), "-o", trace, *SMALL)
        line["file MB"] = round(Path(trace).stat().st_size / 1e6, 1)
    one_node(steps, trace, folder, "verify")


def nodes(size: int, folder: Path) -> None:
    """A large network."""
    steps = Steps("nodes", size)
    trace = str(folder / "t.pt")
    with steps.step("record") as line:
        words = ["--nodes", str(size), "--rounds", "5", *SMALL, "--data", f"gaussians:{2 * size}"]
        command("record", "dpsgd", "-o", trace, *words)
        line["file MB"] = round(Path(trace).stat().st_size / 1e6, 1)
    one_node(steps, trace, folder, "explain")


def one_node(steps: Steps, trace: str, folder: Path, more: str) -> None:
    """List a trace, and attack one node of it."""
    with steps.step("trace info"):
        command("trace", "info", trace)
    if more == "verify":
        with steps.step("trace verify"):
            command("trace", "verify", trace)
    else:
        with steps.step("explain"):
            command("explain", trace, "--node", "0", "-q")
    with steps.step("attack"):
        command("attack", trace, "--node", "0", "-o", str(folder / "out"), "-q")


def parameters(size: int, folder: Path) -> None:
    """A large model: the gradient of every node in one round of FedSGD."""
    steps = Steps("parameters", size)
    words = [
        "--nodes",
        "2",
        "--graph",
        "star",
        "--rounds",
        "1",
        "--data",
        "faces",
        "--model",
        "mlp",
    ]
    words += ["--samples", "1", "-q", "--set", f"hidden={size // HIDDEN}", "--max-bytes", "20GB"]
    for name, layers in (("columns", "last,sketch"), ("whole", "all")):
        trace = str(folder / f"{name}.pt")
        with steps.step(f"record {name}") as line:
            command("record", "fedsgd", "-o", trace, "--layers", layers, *words)
            line["file MB"] = round(Path(trace).stat().st_size / 1e6, 1)
        with steps.step(f"trace info {name}"):
            command("trace", "info", trace)
    words = ["--node", "0", "--max-memory", "16GB", "-o", str(folder / "out"), "-q"]
    with steps.step("attack whole", limit="16GB"):
        command("attack", str(folder / "whole.pt"), *words)


def findings(size: int, folder: Path) -> None:
    """A record with many findings: copies of one, for as many nodes."""
    from leakaudit.api import report
    from leakaudit.reporting.results import record_file

    record = attacked(folder)
    content = json.loads(record.read_text())
    (one,) = content["findings"]
    content["findings"] = [{**one, "node": k} for k in range(size)]
    record.write_text(json.dumps(content))
    steps = Steps("findings", size)
    with steps.step("read"):
        record_file.read(record)
    for form in ("html", "markdown", "json"):
        with steps.step(f"report {form}") as line:
            line["file MB"] = round(len(report(record, form)) / 1e6, 1)


def attacked(folder: Path) -> Path:
    """Record a small run, attack one node, and return the record; the trace is t.pt beside it."""
    trace = str(folder / "t.pt")
    command("record", "dpsgd", "--nodes", "4", "--rounds", "20", "-o", trace, *SMALL)
    command("attack", trace, "--node", "0", "-o", str(folder / "out"), "-q", "-f", "json")
    return folder / "out" / "results.json"


# ---------------------------------------------------------------------------------------------
# Many readers, and many repetitions
# ---------------------------------------------------------------------------------------------


def read_once(folder: Path) -> str:
    """Read a trace and a record, and return a digest of what they contain."""
    from leakaudit.api import report
    from leakaudit.traces import trace_file

    trace = trace_file.load(folder / "t.pt")
    found = hashlib.sha256(trace.messages[0].payload.numpy().tobytes())
    found.update(str(report(folder / "out" / "results.json", "markdown")).encode())
    return found.hexdigest()


def read_often(folder: Path, count: int) -> set[str]:
    """Read `count` times; return the digests."""
    return {read_once(folder) for _ in range(count)}


def readers(size: int, folder: Path) -> None:
    """Threads and processes read the same files at once."""
    attacked(folder)
    expected = {read_once(folder)}
    steps = Steps("readers", size)
    with steps.step("threads") as line, ThreadPoolExecutor(size) as pool:
        line["same"] = set(pool.map(read_once, [folder] * size)) == expected
    each = size // PROCESSES
    context = multiprocessing.get_context("spawn")
    with steps.step("processes") as line, ProcessPoolExecutor(PROCESSES, context) as workers:
        read = workers.map(read_often, [folder] * PROCESSES, [each] * PROCESSES)
        line["same"] = set().union(*read) == expected


def repeat(size: int, folder: Path) -> None:
    """Load a trace, report, bound and check, `size` times."""
    record = attacked(folder)
    (folder / "leakaudit.toml").write_text(GATE)
    with contextlib.chdir(folder):
        command("baseline", "update", "--reason", "first", "-q")
        _repeat(size, record)


def _repeat(size: int, record: Path) -> None:
    """Repeat in the current folder."""
    import leakaudit as la

    actions: dict[str, Callable[[], object]] = {
        "load": lambda: la.load("t.pt").messages[0].payload.sum(),
        "report": lambda: [la.report(record, form) for form in ("html", "markdown", "json")],
        "bound": lambda: la.bound("t.pt", nodes=[0]),
        "check": lambda: la.check("."),
    }
    held: list[float] = []
    seconds: list[float] = []
    parts = dict.fromkeys(actions, 0.0)
    for _ in range(size):
        begun = time.process_time()
        for name, action in actions.items():
            start = time.process_time()
            action()
            parts[name] += time.process_time() - start
        seconds.append(time.process_time() - begun)
        held.append(memory("VmRSS"))
    warm = max(1, size // 10)
    later = held[warm:]
    fifth = max(1, (size - warm) // 5)
    slower = sum(seconds[-fifth:]) / sum(seconds[warm : warm + fifth])
    line = {"bench": "load/repeat", "size": size, "step": "all"}
    line |= {"cpu": round(sum(seconds), 1), "each": {k: round(v, 2) for k, v in parts.items()}}
    line |= {"megabytes": round(held[-1], 1), "warm": round(held[warm], 1)}
    line |= {"slope": round(100 * slope(later), 3), "slower": round(slower, 2)}
    line["threads"] = len(os.listdir("/proc/self/task")) if Path("/proc").exists() else None
    line["files"] = len(os.listdir("/proc/self/fd")) if Path("/proc").exists() else None
    if size > WARM["repeat"]:
        print(json.dumps(line), flush=True)


def slope(values: Sequence[float]) -> float:
    """Return the growth per step by least squares."""
    n = len(values)
    middle = (n - 1) / 2
    mean = sum(values) / n
    above = sum((k - middle) * (value - mean) for k, value in enumerate(values))
    return above / sum((k - middle) ** 2 for k in range(n))


# ---------------------------------------------------------------------------------------------
# All of it
# ---------------------------------------------------------------------------------------------

Case = Callable[[int, Path], None]
CASES: dict[str, tuple[Case, tuple[int, ...]]] = {
    "rounds": (rounds, (10_000, 100_000)),
    "findings": (findings, (2_500, 10_000)),
    "nodes": (nodes, (750, 3_000)),
    "parameters": (parameters, (10_000_000, 100_000_000)),
    "readers": (readers, (READS,)),
    "repeat": (repeat, (READS,)),
}


def apart(name: str, size: int) -> list[Line]:
    """Run one size in a process of its own, and pass on its lines."""
    lines: list[Line] = []
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "LEAKAUDIT_PROGRESS": "none"}
    words = [sys.executable, __file__, "--one", name, str(size)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        for text in process.stdout:
            if text.startswith("{"):
                lines.append(json.loads(text))
                print(text, end="", flush=True)
    if process.returncode:
        lines.append({"bench": f"load/{name}", "size": size, "code": process.returncode})
        print(json.dumps(lines[-1]), flush=True)
    return lines


def grown(name: str, first: Sequence[Line], last: Sequence[Line]) -> Iterator[Line]:
    """Yield the exponent of each step that takes long enough."""
    before = {line["step"]: line for line in first if "seconds" in line}
    for line in last:
        small = before.get(line.get("step"))
        if small is None or line["seconds"] < LEAST_SECONDS or not small["seconds"]:
            continue
        times = math.log(line["size"] / small["size"])
        found: Line = {"bench": f"load/{name}", "step": line["step"]}
        found["exponent"] = round(math.log(line["seconds"] / small["seconds"]) / times, 2)
        yield found


def wrong(line: Line) -> bool:
    """Return whether a line shows what must not be."""
    return (
        "code" in line
        or line.get("exponent", 0.0) > MOST_EXPONENT
        or line.get("slope", 0.0) > MOST_SLOPE
        or line.get("slower", 0.0) > MOST_SLOWER
        or line.get("same") is False
    )


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--repeat", type=int, default=READS, help="repetitions (default 200)")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SIZE"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        import torch

        torch.set_num_threads(1)
        case, _ = CASES[asked.one[0]]
        for size in (WARM[asked.one[0]], int(asked.one[1])):
            with tempfile.TemporaryDirectory() as folder:
                case(size, Path(folder))
        return 0
    every: list[Line] = []
    for name in asked.only:
        _, sizes = CASES[name]
        if name == "repeat":
            sizes = (asked.repeat,)
        measured = [apart(name, size) for size in sizes]
        exponents = [*grown(name, measured[0], measured[-1])] if len(measured) > 1 else []
        for line in exponents:
            print(json.dumps(line), flush=True)
        every += [line for lines in (*measured, exponents) for line in lines]
    return int(any(map(wrong, every)))


if __name__ == "__main__":
    sys.exit(main())
