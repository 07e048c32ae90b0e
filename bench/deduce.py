"""Growth of reading a trace: CPU time and memory of attack and explain in nodes, rounds, parameters.

python bench/deduce.py [nodes | rounds | columns | sparse] ...
    each point in a process of its own; one JSON line each with the CPU seconds of la.leaks,
    la.explain and the check of the recording, and the peak memory of the process in MB

sparse writes a trace of about 200 GB that is nearly all holes, so it takes a few MB on the disk, and
runs trace info, explain and attack of one node on it. The folder of temporary files must support
sparse files.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch loads its linear algebra

import torch

import leakaudit as la
from leakaudit.protocols import recording
from leakaudit.traces._storage.mapped_file import MapFile
from leakaudit.views.conformance import conformance

POINTS = {
    "nodes": [(n, 5, 0) for n in (30, 100, 300, 1000)],
    "rounds": [(100, t, 0) for t in (5, 20, 80)],
    "columns": [(5, 5, hidden) for hidden in (100, 1000, 10000)],
}
NODES, ROUNDS, HIDDEN = 1000, 35, 1000  # of the sparse trace
NODE = 3
LIMITED = ("--max-memory", "300MB", "--attack", "analytic")


def scenario(nodes: int, rounds: int, hidden: int) -> la.Scenario:
    """Return differential PDMM on a ring; a model of `hidden` neurons, or a small one for 0."""
    small = la.Scenario(
        victim="pdmm", nodes=nodes, graph="ring", rounds=rounds, data="gaussians", model="logistic"
    )
    if not hidden:
        return small
    return replace(small, data="faces", model="mlp", set={"hidden": hidden})


def point(nodes: int, rounds: int, hidden: int) -> dict[str, float]:
    """Measure one recording in this process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.pt"
        la.record(scenario(nodes, rounds, hidden), path)
        trace = la.load(path)
        spent = {}
        calls: dict[str, Callable[[], object]] = {
            "leaks": lambda: la.leaks(trace, nodes=[NODE]),
            "explain": lambda: la.explain(trace, "eavesdropper", nodes=[NODE]),
            "examine": lambda: conformance.examine(trace),
        }
        for name, work in calls.items():
            start = time.process_time()
            work()
            spent[name] = round(time.process_time() - start, 2)
        return {**spent, "d": trace.layout.size, "mb": _peak(resource.RUSAGE_SELF)}


def _peak(who: int) -> float:
    return round(resource.getrusage(who).ru_maxrss / 1024)


def write_sparse(path: Path) -> int:
    """Write a trace in which only the messages of one node are not zero; return its size."""
    MapFile.reserve = lambda *_: None  # type: ignore[method-assign]  # no blocks for holes
    plan = recording.plan(scenario(NODES, ROUNDS, 0))
    wide = recording.plan(scenario(5, ROUNDS, HIDDEN))
    src, dst = torch.tensor(plan.graph.arcs).T
    count = len(src) * ROUNDS
    small = recording.record(plan, None).trace
    task = wide.task
    random = torch.Generator().manual_seed(0)
    with la.Recorder(
        la.Storage(path, messages=count, rows=count, max_bytes=1e12, hash=False),
        protocol="pdmm",
        task=task.spec,
        graph=plan.graph,
        params=small.params,
        rounds=ROUNDS,
        options=la.RecorderOptions(layout=task.layout),
    ) as recorder:
        for t in range(1, ROUNDS + 1):
            rows = recorder.send_many(t, src, dst, "dz")
            for k in (src == NODE).nonzero().flatten().tolist():
                rows[k] = torch.randn(rows.shape[1], generator=random)
            recorder.end_round(t)
    return path.stat().st_size


def sparse() -> None:
    """Print CPU seconds and peak memory of each verb on a sparse trace."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sparse.pt"
        made = subprocess.run(
            [sys.executable, __file__, "--write", str(path)], check=True, capture_output=True
        )
        size = int(made.stdout)
        out = str(Path(folder) / "out")
        verbs = {
            "trace info": ["trace", "info", str(path)],
            "explain": ["explain", str(path), "--node", str(NODE)],
            "attack": ["attack", str(path), "--node", str(NODE), *LIMITED, "-o", out],
            "report": ["report", out, "-o", str(Path(folder) / "report.html")],
        }
        for name, words in verbs.items():
            command = [sys.executable, __file__, "--verb", *words]
            done = subprocess.run(command, capture_output=True, text=True)
            said = done.stderr.strip().splitlines()
            print(json.dumps({"verb": name, "bytes": size, **json.loads(said[-1])}), flush=True)


def verb(words: list[str]) -> None:
    """Run a command in a process of its own, and print what it used to stderr."""
    done = subprocess.run([sys.executable, "-m", "leakaudit", *words], capture_output=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = round(used.ru_utime + used.ru_stime, 1)
    told: dict[str, object] = {
        "code": done.returncode,
        "cpu": seconds,
        "mb": _peak(resource.RUSAGE_CHILDREN),
    }
    if done.returncode:
        told["said"] = done.stderr.decode()[-300:]
    sys.stderr.write(json.dumps(told) + "\n")


def main() -> None:
    """Measure the points that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", metavar="what")
    parser.add_argument("--point", type=int, nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--verb", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.point:
        print(json.dumps(point(*asked.point)))
    elif asked.write:
        print(write_sparse(asked.write))
    elif asked.verb:
        verb(asked.verb)
    else:
        for what in asked.what or POINTS:
            if what == "sparse":
                sparse()
                continue
            for nodes, rounds, hidden in POINTS[what]:
                numbers = map(str, (nodes, rounds, hidden))
                command = [sys.executable, __file__, "--point", *numbers]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                about = {"what": what, "nodes": nodes, "rounds": rounds}
                print(json.dumps({**about, **json.loads(done.stdout)}), flush=True)


if __name__ == "__main__":
    main()
