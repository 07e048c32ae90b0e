"""A trace larger than memory: opened at once, attacked for one node within 500 MB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import leakaudit as la
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.traces._storage.mapped_file import MapFile

ROUNDS, NODES = 100, 100
MEASURE = """
import json, resource, sys
sys.path.insert(0, sys.argv[3])
import torch
from effort import counted
import leakaudit as la
from leakaudit.tasks.task import Task
from leakaudit.core import registry
torch.set_num_threads(1)
list(registry.everything("attacks"))
with counted() as opening:
    trace = la.load(sys.argv[1])
truth = la.load_truth(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = la.attack(la.leaks(trace, nodes=[0]), generator=torch.Generator().manual_seed(0))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(score,) = la.score(found, truth)
size = sum(m.payload.nbytes for m in trace.messages)
print(json.dumps({"calls": opening.calls, "read": opening.read, "extra_mb": (after - before) / 1024, "psnr": score.psnr[0], "bytes": size}))
"""


@pytest.mark.slow
def test_a_trace_larger_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 0's wires are real, taken from a run of five nodes; the other 95 nodes' rows are holes in the file."""
    monkeypatch.setattr(
        MapFile, "reserve", lambda *_: None
    )  # blocks of the disk only for what is written
    scenario = Scenario(
        nodes=5, graph="star", rounds=ROUNDS, data="faces", model="mlp", set={"hidden": 128}
    )
    plan = recording.plan(scenario)
    small = recording.record(plan, None)
    view = la.Adversary(corrupt=frozenset(range(5))).view(small.trace)
    others = [(i, i + k) for i in range(1, NODES) for k in range(1, 5) if i + k < NODES]
    graph = la.Graph(NODES, tuple(sorted({*plan.graph.edges, *others})))
    count = len(graph.arcs) * ROUNDS
    src, dst = torch.tensor(graph.arcs).T
    truth = small.truth_record
    with la.Recorder(
        la.Storage(tmp_path / "large.pt", messages=count, rows=count, max_bytes=1e12, hash=False),
        protocol="pdmm",
        task=plan.task.spec,
        graph=graph,
        params=small.trace.params,
        rounds=ROUNDS,
        public=small.trace.public,
        options=la.RecorderOptions(layout=plan.task.layout, id=truth.id),
    ) as recorder:
        recorder.truth(0, *truth.of(0))
        for t in range(1, ROUNDS + 1):
            rows = recorder.send_many(t, src, dst, "dz")
            for k in ((src == 0) | (dst == 0)).nonzero().flatten().tolist():
                rows[k] = view.message(t, int(src[k]), int(dst[k]), "dz")
            recorder.end_round(t)
    measure = [
        sys.executable,
        "-c",
        MEASURE,
        str(tmp_path / "large.pt"),
        str(tmp_path / "large.truth.pt"),
        str(Path(__file__).parents[1]),
    ]
    figures = json.loads(subprocess.run(measure, capture_output=True, text=True, check=True).stdout)
    assert figures["bytes"] > 24 * 2**30, figures
    assert figures["calls"] < 40_000  # it is 31,000 for three rounds, too, most of them for imports
    assert figures["read"] < 20_000_000
    assert figures["extra_mb"] < 500
    assert figures["psnr"] >= 60
