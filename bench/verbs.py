"""CPU time of every command on small inputs, in two installations side by side.

python bench/verbs.py BEFORE AFTER [--runs 5] [--only VERB …]
    BEFORE, AFTER: the Python of each installation

Prints one JSON line per command, then a table. A figure is the user and system time of the process
and its children: the minimum of `--runs` runs, which alternate between the two installations after
one run each that fills the caches. ratio: after over before. Runs start in empty folders, so that
neither checkout is on the path, and with one thread. code: the exit codes, equal on both sides; a
command that does not end with a verdict (0, 1 or 3) has no ratio, and the script then exits with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SCENARIO = """
[scenario]
victim = "dpsgd"
nodes = 3
graph = "ring"
rounds = 2
data = "faces"
model = "mlp"

[scenario.set]
hidden = 32
order = "adapt"
alpha = 0.1
clip = 1.0
sigma = 1.0
"""
AUDIT = """
[audit]
epsilon = [inf, 2]
delta = 1e-5
sensitivity = 2.0
adversaries = ["eavesdropper"]
attacks = ["analytic"]
nodes = [0]
replays = 6
canary = 8
candidates = 5
"""
SWEEP = """
[sweep]
attacks = ["analytic", "labels"]
seeds = 2
nodes = [0]
"""
GATE = """
[gate]
seeds = 6
alpha = 0.05
compare = ["gain", "exact"]

[check.ring]
attacks = ["exact"]
set.exact.visits = 2

[check.ring.scenario]
victim = "dpsgd"
nodes = 3
graph = "ring"
rounds = 4
data = "faces"
model = "logistic"
set = { order = "adapt", noise = "message", sigma = 0.5 }

[[budget]]
measure = "exact"
most = 0.0
"""
RECORD = "record pdmm --nodes 4 --graph ring --rounds 5 --data faces --samples 1 -q"
# Each command runs in a fresh copy of the prepared folder.
VERBS = {
    "record": f"{RECORD} -o new.pt",
    "attack": "attack trace.pt -o new -q",
    "explain": "explain trace.pt --node 0 -q",
    "bound": "bound scenario.toml -f json -q",
    "audit": "audit audit.toml -o new -q",
    "sweep": "sweep sweep.toml -o new --workers 0 -q",
    "claims": "claims --row 1 -f json -q",
    "check": "check -q",
    "baseline": "baseline update --reason measured -q",
    "report": "report attacked -f html -o new.html -q",
    "report -f text": "report attacked -f text -q",
    "score": "report attacked --rescore -o new -q",
    "trace info": "trace info trace.pt",
    "trace verify": "trace verify trace.pt -q",
    "trace lint": "trace lint trace.pt -q",
    "tap describe": "tap describe tapped.tap",
    "selfcheck": "selfcheck --runs 20 -f json -q",
    "list victims": "list victims -q",
    "list attacks": "list attacks -f json",
    "list models": "list models",
    "demo": "demo -o new -q",
    "doctor": "doctor",
    "config": "config show",
    "init": "init --example --no-baseline -q",
    "help": "--help",
    "version": "--version",
}
PREPARED = (f"{RECORD} -o trace.pt", "attack trace.pt -o attacked -q")
PROGRAM = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
me = dist.get_rank()
torch.manual_seed(0)
w = torch.randn(50)
for step in range(4):
    wait = dist.isend(w, 1 - me)
    got = torch.empty(50)
    dist.recv(got, 1 - me)
    wait.wait()
    w = (w + got) / 2 - 0.1 * torch.randn(50)
dist.destroy_process_group()
"""
VERDICTS = (0, 1, 3)


def cpu(python: str, words: str, folder: Path) -> tuple[float, int]:
    """Return the CPU seconds of a call, and its exit code."""
    command = [python, "-m", "leakaudit", *words.split()]
    # Byte code is kept beside `folder`, so that a longer source is not slower after the first run.
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(folder.parent / "bytecode"),
    }
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime, process.returncode


def prepare(python: str, folder: Path) -> None:
    """Write the files that the commands read."""
    folder.mkdir()
    (folder / "scenario.toml").write_text(
        SCENARIO.replace("scenario.set", "set").replace("[scenario]", "")
    )
    (folder / "audit.toml").write_text(SCENARIO + AUDIT)
    (folder / "sweep.toml").write_text(SCENARIO + SWEEP)
    (folder / "program.py").write_text(PROGRAM)
    for words in PREPARED:
        subprocess.run(
            [python, "-m", "leakaudit", *words.split()], cwd=folder, check=True, capture_output=True
        )
    run = f"{python} -m torch.distributed.run --nproc-per-node 2 program.py"
    tap = f"tap -o tapped.pt --keep -q -- {run}"
    subprocess.run(
        [python, "-m", "leakaudit", *tap.split()], cwd=folder, check=False, capture_output=True
    )
    (folder / "leakaudit.toml").write_text(GATE)


def fresh(verb: str, prepared: Path, folder: Path) -> None:
    """Copy the prepared folder; `init` needs one without a configuration."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(prepared, folder)
    if verb == "init":
        (folder / "leakaudit.toml").unlink()


def main() -> int:
    """Measure, print the lines and the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "before", metavar="BEFORE", help="Python of the installation to compare with"
    )
    parser.add_argument("after", metavar="AFTER", help="Python of the changed installation")
    parser.add_argument(
        "--runs", type=int, default=5, help="runs of each command on each side (default 5)"
    )
    parser.add_argument("--only", nargs="+", choices=VERBS, default=list(VERBS), metavar="VERB")
    asked = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        prepare(asked.before, place / "prepared")
        for verb in asked.only:
            times: dict[str, list[float]] = {"before": [], "after": []}
            codes = set()
            for k in range(asked.runs + 1):
                for side, python in (("before", asked.before), ("after", asked.after)):
                    fresh(verb, place / "prepared", place / "work")
                    seconds, code = cpu(python, VERBS[verb], place / "work")
                    codes.add(code)
                    if k > 0:  # the first one warms the caches
                        times[side].append(seconds)
            before, after = min(times["before"]), min(times["after"])
            line = {
                "bench": f"verbs/{verb}",
                "before_s": round(before, 2),
                "after_s": round(after, 2),
                "codes": sorted(codes),
                "unit": "times the CPU time before",
            }
            if len(codes) == 1 and codes <= set(VERDICTS):
                line["ratio"] = round(after / before, 3)
            lines.append(line)
            print(json.dumps(line), flush=True)
    print(
        f"\n{'verb':16} {'before':>8} {'after':>8} {'ratio':>7}  (CPU seconds, minimum of {asked.runs})"
    )
    for line in lines:
        name = str(line["bench"]).removeprefix("verbs/")
        ratio = line.get("ratio", f"codes {line['codes']}")
        print(f"{name:16} {line['before_s']:8.2f} {line['after_s']:8.2f} {ratio:>7}")
    return int(any("ratio" not in line for line in lines))


if __name__ == "__main__":
    sys.exit(main())
