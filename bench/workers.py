"""Two workers against one, for the commands that spread one result over processes.

python bench/workers.py [NAME ...] [--repetitions 2]
    bound, attack, audit, claims (default: all)

Each command runs from start to end as a process of its own, with `--workers 1` and `--workers 2` in
alternating order; in both cases one more process plans. Prints one JSON line per command, in
elapsed time: ratio is the median of one worker over two. floor: the same for plain arithmetic of
one and two processes, right after each pair, which is what the processors and other programs leave
of 2. same: whether both printed the same, apart from times.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import sweep

SCENARIO = """
victim = "dpsgd"
nodes = {nodes}
graph = "rgg"
rounds = {rounds}
data = "faces"
model = "mlp"

[{table}]
hidden = 16
order = "adapt"
alpha = 0.1
clip = 1.0
sigma = 1.0
"""
AUDIT = """
[audit]
epsilon = [inf, 8, 4, 2]
delta = 1e-5
sensitivity = 2.0
adversaries = ["eavesdropper"]
attacks = ["analytic"]
nodes = [0, 1]
seeds = 2
replays = 200
canary = 200
candidates = 20
"""
RECORD = "record dpsgd --nodes 24 --graph ring --rounds 4 --data faces --samples 1 -q -o trace.pt"
COMMANDS = {
    "bound": "bound scenario.toml --coalitions 2 -f json -q",
    "attack": "attack trace.pt --attack idlg --set steps=300 -f json -q",
    "audit": "audit audit.toml -f json -q",
    "claims": "claims --paper dp-norm --paper dp-recal -f json -q",
}
ANSWERED = (0, 1, 3)  # exit codes of a command that ended with a verdict


class Took(NamedTuple):
    """What one command took, in elapsed seconds, and a digest of what it printed."""

    seconds: float
    printed: str


def prepare(folder: Path) -> None:
    """Write the files that the commands read."""
    scenario = SCENARIO.format(nodes=24, rounds=10, table="set")
    (folder / "scenario.toml").write_text(scenario)
    audited = SCENARIO.format(nodes=4, rounds=3, table="scenario.set")
    (folder / "audit.toml").write_text("[scenario]" + audited + AUDIT)
    command = [sys.executable, "-m", "leakaudit", *RECORD.split()]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def run(name: str, workers: int, folder: Path, turn: int) -> Took:
    """Run a command with a number of workers."""
    words = [*COMMANDS[name].split(), "--workers", str(workers)]
    if name in ("attack", "audit"):
        words += ["-o", f"{name}-{workers}-{turn}"]
    printed = folder / "printed"
    before = time.perf_counter()
    with printed.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "leakaudit", *words],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=file,
            check=False,
        )
    seconds = time.perf_counter() - before
    if done.returncode not in ANSWERED:
        raise SystemExit(f"{name} ended with code {done.returncode}")
    digest = hashlib.sha256(without_times(printed.read_text())).hexdigest()
    return Took(seconds, digest)


def without_times(text: str) -> bytes:
    """Return a printed record without when, where and how fast it was made."""
    record = json.loads(text)
    if isinstance(record, dict):
        record.pop("provenance", None)
        for finding in record.get("findings", []):
            finding.pop("seconds", None)
    return json.dumps(record, sort_keys=True).encode()


def measured(name: str, repetitions: int, folder: Path) -> dict[str, object]:
    """Return the line of one command."""
    ratios, floors = [], []
    took: dict[int, list[Took]] = {1: [], 2: []}
    for turn in range(repetitions):
        order = (1, 2) if turn % 2 == 0 else (2, 1)
        for workers in order:
            took[workers].append(run(name, workers, folder, turn))
        ratios.append(took[1][-1].seconds / took[2][-1].seconds)
        floors.append(sweep.floor())
    one, two = took[1], took[2]
    return {
        "bench": f"workers/{name}",
        "ratio": round(statistics.median(ratios), 2),
        "unit": "times as fast as one worker",
        "least": round(min(ratios), 2),
        "most": round(max(ratios), 2),
        "floor": round(statistics.median(floors), 2),
        "one_s": round(statistics.median(t.seconds for t in one), 1),
        "two_s": round(statistics.median(t.seconds for t in two), 1),
        "same": len({t.printed for t in one + two}) == 1,
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[[], *COMMANDS], metavar="NAME")
    parser.add_argument("--repetitions", type=int, default=2)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(folder)
        for name in asked.names or COMMANDS:
            print(json.dumps(measured(name, asked.repetitions, folder)), flush=True)


if __name__ == "__main__":
    main()
