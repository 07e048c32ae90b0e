"""`leakaudit view` on a folder of 1,000 runs: time to the first page, time per report, and memory.

python bench/view.py [--runs 1000] [--repetitions 3]     prints one JSON line per figure; needs Linux

The runs are copies of one attack that is recorded and run here, each with the images of its own. All
times are elapsed seconds, with the load of the machine at the start; of the repetitions, each with
a viewer of its own, the median is printed. address: from the start of the process to the printed
address; the folder has been read by then. first: from the start of the process to the end of the
first list page. first_cpu: processor time of the server until then, which other programs on the
machine hardly change. page: a list page that finds no change. changed: a list page after 10 runs changed.
report: the first report, which waits for the process that imports torch. next: a report of another
run after that. server_mb: resident memory of the server. all_mb: of all its processes after three
reports, proportional share (pages that processes share count once).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

PROGRAM = (sys.executable, "-m", "leakaudit")
TARGETS = {"first": 2.0, "server_mb": 300.0, "all_mb": 300.0}
RECORD = "record pdmm --nodes 5 --graph ring --rounds 5 --data faces --samples 1 --model mlp"


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=3)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        root = made(Path(name), args.runs)
        found = [measured(root) for _ in range(args.repetitions)]
    for figure in found[0]:
        value = statistics.median(one[figure] for one in found)
        line = {"bench": f"view: {figure}", "value": round(value, 3), "runs": args.runs}
        if figure in TARGETS:
            line["target"] = TARGETS[figure]
        print(json.dumps({**line, "load": round(load, 1)}), flush=True)


def made(place: Path, runs: int) -> Path:
    """Record and attack one training, and copy its results."""
    trace = place / "trace.pt"
    subprocess.run([*PROGRAM, *RECORD.split(), "--set", "hidden=64", "-o", trace, "-q"], check=True)
    one = place / "one"
    subprocess.run(
        [*PROGRAM, "attack", trace, "-o", one, "-q"], check=True, stdout=subprocess.DEVNULL
    )
    for k in range(runs):
        shutil.copytree(one, place / "runs" / f"group{k % 20:02d}" / f"run{k:05d}")
    return place / "runs"


def measured(root: Path) -> dict[str, float]:
    """Start one viewer and read its pages."""
    began = time.perf_counter()
    viewer = subprocess.Popen(
        [*PROGRAM, "view", root, "-q"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert viewer.stdout is not None
    found: dict[str, float] = {}
    try:
        address = viewer.stdout.readline().strip()
        found["address"] = time.perf_counter() - began
        page = read(address)[1]
        found["first"] = time.perf_counter() - began
        names = re.findall(r'href="(runs/\w+\.html)"', page)
        found["first_cpu"] = processor(viewer.pid)
        found["server_mb"] = resident(viewer.pid)
        found["page"] = read(address)[0]
        for path in sorted(root.glob("*/*/results.json"))[:10]:
            path.touch()
        found["changed"] = read(address)[0]
        found["report"] = read(address + names[0])[0]
        found["next"] = statistics.median(read(address + name)[0] for name in names[1:4])
        found["all_mb"] = shared(viewer.pid)
    finally:
        os.killpg(viewer.pid, signal.SIGINT)
        viewer.wait(30)
        viewer.stdout.close()
    return found


def read(address: str) -> tuple[float, str]:
    """Load one page; its time and its text."""
    began = time.perf_counter()
    with urllib.request.urlopen(address) as answer:
        text = answer.read().decode()
    return time.perf_counter() - began, text


def processor(process: int) -> float:
    """Processor time of one process in seconds."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(process: int) -> float:
    """Resident memory of one process in megabytes."""
    return figure(Path(f"/proc/{process}/smaps_rollup"), "Rss")


def shared(process: int) -> float:
    """Proportional memory of a process and of all processes below it, in megabytes."""
    total = figure(Path(f"/proc/{process}/smaps_rollup"), "Pss")
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text().split():
            total += shared(int(child))
    return total


def figure(path: Path, name: str) -> float:
    """One line of smaps_rollup in megabytes."""
    match = re.search(rf"^{name}:\s+(\d+) kB", path.read_text(), re.M)
    assert match is not None
    return int(match[1]) * 1024 / 1e6


if __name__ == "__main__":
    main()
