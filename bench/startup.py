"""CPU time of commands on tiny inputs, over a bare interpreter and over a bare `import torch`.

python bench/startup.py [--runs 5] [--only NAME …]

Prints one JSON line per command, then a table. A figure is the user and system time of the process
and its children, the minimum of `--runs` runs; the median is printed beside it. Runs of a command
alternate with runs of `python -c pass` and `python -c "import torch"`, so that other programs on
the machine affect all three alike. All use bytecode, as after an installation, even if
PYTHONDONTWRITEBYTECODE is set, because compiling the package can take longer than the command. A
command that does without torch has the target of 300 ms; one that needs it, 1.2 times the bare
import. Commands that also train or attack (marked "work") have no target: their time is that of the
work.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import verbs

PLAIN = 0.3  # CPU seconds of a command without torch
TORCH = 1.2  # times the bare import of torch
NONE, IMPORT, WORK = "no torch", "torch", "work"
REPORTS = ("text", "json", "junit", "markdown", "sarif", "github", "csv", "latex", "html")
COMMANDS = {
    "--help": NONE,
    "--version": NONE,
    "attack --help": NONE,
    "bound --help": NONE,
    "init --help": NONE,
    "list victims": NONE,
    "list attacks": NONE,
    "list reports": NONE,
    "list models": NONE,
    "list data": NONE,
    "list graphs": NONE,
    "trace info trace.pt": NONE,
    **{f"report attacked -q -f {form}": NONE for form in REPORTS},
    "config show": NONE,
    "config schema": NONE,
    "completion bash": NONE,
    "bound scenario.toml -q": IMPORT,
    "trace verify trace.pt -q": IMPORT,
    "explain trace.pt --node 0 -q": IMPORT,
    "record pdmm --nodes 4 --graph ring --rounds 2 --data faces -q -o new.pt": IMPORT,
    "config lint": IMPORT,
    "audit audit.toml --dry-run -o new -q": WORK,
    "sweep sweep.toml --dry-run -o new -q": WORK,
    "check --dry-run -q": WORK,
    "attack trace.pt -q -o new": WORK,
}


def cpu(words: list[str], folder: Path) -> tuple[float, int]:
    """Return the CPU seconds of a call of this Python, and its exit code."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime, process.returncode


def measured(command: str, runs: int, folder: Path) -> dict[str, object]:
    """Return the line of one command."""
    bare: list[float] = []
    torch: list[float] = []
    own: list[float] = []
    codes = set()
    for run in range(runs + 1):
        times = (
            cpu(["-c", "pass"], folder)[0],
            cpu(["-c", "import torch"], folder)[0],
            *cpu(["-m", "leakaudit", *command.split()], folder),
        )
        codes.add(times[3])
        if run > 0:  # the first one warms the caches
            bare.append(times[0])
            torch.append(times[1])
            own.append(times[2])
    line: dict[str, object] = {
        "bench": f"startup/{command.replace(' -q', '')}",
        "command": command,
        "kind": COMMANDS[command],
        "cpu": round(min(own), 3),
        "median": round(statistics.median(own), 3),
        "times_python": round(min(own) / min(bare), 2),
        "times_torch": round(min(own) / min(torch), 3),
        "codes": sorted(codes),
    }
    if COMMANDS[command] == NONE:
        line |= {"ratio": round(min(own) / PLAIN, 3), "unit": f"of {PLAIN} CPU s", "target": 1}
    if COMMANDS[command] == IMPORT:
        unit = "times the bare import of torch"
        line |= {"ratio": line["times_torch"], "unit": unit, "target": TORCH}
    return line


def main() -> int:
    """Measure, print the lines and the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each command (default 5)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="commands that begin with NAME")
    asked = parser.parse_args()
    chosen = [c for c in COMMANDS if not asked.only or c.startswith(tuple(asked.only))]
    lines = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "work"
        verbs.prepare(sys.executable, folder)
        for command in chosen:
            lines.append(measured(command, asked.runs, folder))
            print(json.dumps(lines[-1]), flush=True)
    print(f"\n{'command':40} {'cpu s':>6} {'median':>7} {'/python':>8} {'/torch':>7}")
    for line in lines:
        print(
            f"{line['command']!s:40.40} {line['cpu']:6} {line['median']:7} "
            f"{line['times_python']:8} {line['times_torch']:7}  {line['kind']}"
        )
    return int(any(line["codes"] not in ([0], [1], [3]) for line in lines))


if __name__ == "__main__":
    sys.exit(main())
