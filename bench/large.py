"""A run too large to be recorded whole: differential PDMM with vectors of ResNet-50's size.

python bench/large.py [--nodes 100] [--rounds 200] [--parameters 0] [--folder DIR] [--workers 2]
    [--graph ring] [--layers conv1,fc.bias,sketch] [--views 2]

A full recording of 100 nodes on a ring for 200 rounds would take 4 TB. Here, some columns and a
sketch of all of them are recorded (docs/traces.md). Every column is simulated, by the bundled
protocol itself: PDMM with quadratic updates is linear in every coordinate if the gradients are, so
it runs on one block of columns after another, and the sketches of the blocks are added. Gradients
are synthetic, g_i(w) = w - c_i with a random c_i for each node, drawn block by block.

Then the trace is verified: its numbers, the declared relations between its messages (in the columns
and in the sketch), and the gradient differences that an eavesdropper derives, which are compared
with those of the simulation. One node is explained, and some of its views are priced. Prints one
JSON line per stage and one for everything. A short form, of about ten seconds:

    python bench/large.py --nodes 20 --rounds 20 --parameters 1000000
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit import registry
from leakaudit.extraction import explanation
from leakaudit.lint import conformance
from leakaudit.payload import Kept
from leakaudit.protocols import topology
from leakaudit.sketch import NUMBERS
from leakaudit.trace import Graph, Layout, TaskSpec
from leakaudit.traces import layers, trace_file, trace_info
from leakaudit.traces.recorder import Recorder
from leakaudit.victims import pdmm

BLOCK = 8192  # columns that are simulated together; their states fit into a third-level cache
NODE = 0  # the node that is explained, and whose gradients are compared
VICTIM = pdmm.PDMM(update="quadratic", mu=2.0, rho=0.5, z0=0.1)


@dataclass(frozen=True)
class Run:
    """What is simulated."""

    nodes: int
    rounds: int
    parameters: int
    graph: str
    layers: str

    @cached_property
    def network(self) -> Graph:
        """The graph."""
        return topology.make(self.graph, self.nodes, Generator().manual_seed(0))

    @cached_property
    def layout(self) -> Layout:
        """ResNet-50, or a vector of another length with a first and a last layer."""
        if self.parameters:
            first = min(9408, self.parameters // 10)
            shapes = ((first,), (self.parameters - first - 10,), (10,))
            return Layout(("conv1.weight", "layer1.weight", "fc.bias"), shapes)
        import torchvision

        with torch.device("meta"):
            model = torchvision.models.resnet50()
        named = {name: tuple(value.shape) for name, value in model.named_parameters()}
        return Layout(tuple(named), tuple(named.values()))

    @cached_property
    def kept(self) -> Kept:
        """What is recorded."""
        return layers.kept(self.layers, self.layout)

    @property
    def messages(self) -> int:
        """One in each direction of each channel and round, and z^0."""
        return 2 * len(self.network.edges) * (self.rounds + 1)

    @property
    def rows(self) -> int:
        """Vectors that are projected: messages, the models of NODE, and its target c."""
        return self.messages + self.rounds + 2


@dataclass
class Block:
    """Takes the place of a recorder and of what it keeps, for the columns of one block.

    The share of this block in every projection is written to `raw`, or added to `sums`.
    """

    run: Run
    start: int
    raw: np.ndarray
    sums: Tensor
    public: Mapping[str, Tensor] = field(default_factory=dict)
    partial = False
    keep_curves = False

    def __post_init__(self) -> None:
        """Find the recorded columns within the block."""
        self.graph = self.run.network
        self.kept = self  # a projection of some columns has the interface of `Kept`
        self.sent: list[Tensor] = []
        self.calls: list[tuple[Any, ...]] = []
        self.at = 0
        self.inside: list[slice] = []  # within the block
        self.places: list[slice] = []  # within a stored row
        stop = min(self.start + BLOCK, self.run.layout.size)
        for (first, last), place in self.run.kept.places.items():
            low = max(first, self.start)
            high = min(last, stop)
            if low < high:
                self.inside.append(slice(low - self.start, high - self.start))
                begin = place.start + low - first
                self.places.append(slice(begin, begin + high - low))
        self.wide = sum(part.stop - part.start for part in self.inside)
        self.linear = NUMBERS + self.wide

    def project(self, values: Tensor) -> Tensor:
        """Return the share of this block in what is kept of (n, block): (n, linear)."""
        total = torch.zeros(len(values), NUMBERS, dtype=torch.float64)
        sketch = self.run.kept.sketch
        if sketch is not None:
            sketch.add(total, values, self.start)
        return torch.cat([*(values[:, part] for part in self.inside), total.float()], 1)

    def send_many(self, round: int, src: Tensor, dst: Tensor, kind: str, secure: bool) -> Tensor:
        """Return rows for the messages, as a recorder does."""
        self.sent.append(torch.empty(len(src), self.linear))
        self.calls.append((round, src, dst, kind, secure))
        return self.sent[-1]

    def state(self, name: str, round: int, value: Tensor) -> None:
        """Keep the projections of the models of NODE."""
        if name == "w":
            self.store(self.run.messages + round, self.project(value[NODE : NODE + 1]))

    def end_round(self, round: int) -> None:
        """Store the messages of the round."""
        for rows in self.sent:
            self.store(self.at, rows)
            self.at += len(rows)
        self.sent.clear()

    def store(self, first: int, rows: Tensor) -> None:
        """Write the raw columns and add to the sketches."""
        at = 0
        for place in self.places:
            wide = place.stop - place.start
            self.raw[first : first + len(rows), place] = rows[:, at : at + wide].numpy()
            at += wide
        self.sums[first : first + len(rows)] += rows[:, self.wide :]


def start(run: Run, block: int) -> Tensor:
    """Return the common initial model (columns,) in one block."""
    wide = min(BLOCK, run.layout.size - block * BLOCK)
    return torch.randn(wide, generator=Generator().manual_seed(3 * block)) * 0.02


def simulate(run: Run, blocks: range, raw: Path, sums: Path) -> list[tuple[Any, ...]]:
    """Run the protocol on some blocks; return the calls with which it sent its messages."""
    torch.set_num_threads(1)
    shared = np.lib.format.open_memmap(raw, mode="r+")
    total = torch.zeros(run.rows, NUMBERS, dtype=torch.float64)
    calls: list[tuple[Any, ...]] = []
    for block in blocks:
        w0 = start(run, block)
        draw = Generator().manual_seed(3 * block + 1)
        targets = torch.randn(run.nodes, len(w0), generator=draw)

        def gradients(w: Tensor, x: Tensor, y: Tensor, out: Tensor, c: Tensor = targets) -> Tensor:
            return torch.sub(w, c, out=out)

        problem: Any = SimpleNamespace(
            task=SimpleNamespace(gradients=gradients), x=w0, y=w0, nodes=run.nodes
        )
        recorder: Any = Block(run, block * BLOCK, shared, total, {"w0": w0})
        random = Generator().manual_seed(3 * block + 2)
        VICTIM.run(problem, run.network, run.rounds, recorder, random, run.network.edges)
        recorder.store(run.rows - 1, recorder.project(targets[NODE : NODE + 1]))
        calls = recorder.calls
    np.save(sums, total.numpy())
    return calls


def record(run: Run, path: Path, calls: list[tuple[Any, ...]], rows: Tensor) -> None:
    """Write the trace, round by round."""
    count = math.ceil(run.layout.size / BLOCK)
    w0 = torch.cat([start(run, block) for block in range(count)])
    recorder = Recorder(
        path,
        protocol="pdmm",
        task=TaskSpec("torchvision.models:resnet50", shape=(3, 224, 224), classes=1000),
        graph=run.network,
        params={**registry.values(VICTIM), "samples": 1},
        layout=run.layout,
        rounds=run.rounds,
        messages=run.messages,
        layers=run.kept,
        public={"w0": w0},
        truth=False,
        max_bytes=20e9,
    )
    at = 0
    with recorder:
        for t, src, dst, kind, secure in calls:
            out = recorder.send_many(t, src, dst, kind, secure=secure)
            out[:, : run.kept.linear] = rows[at : at + len(src)]
            out[:, run.kept.linear :] = torch.nan  # whole messages are never in memory
            at += len(src)


def verify(run: Run, path: Path, rows: Tensor) -> dict[str, object]:
    """Verify the trace, and compare derived gradients with those of the simulation."""
    facts = trace_info.verify(path)
    trace = trace_file.load(path, verify=False)
    found = conformance.examine(trace)
    assert not found.deviations, found.sentences
    # The same trace with one number of one message changed, in the sketch only.
    (table,) = trace.messages
    assert table.stored is not None
    tampered = table.stored.clone()
    tampered[6 * len(run.network.edges), run.kept.raw] += 0.1 * float(
        tampered[0, run.kept.raw : run.kept.linear].norm()
    )
    wrong = replace(table, stored=tampered, payload=tampered[:, : table.payload.shape[1]])
    noticed = conformance.examine(replace(trace, messages=(wrong,))).deviations
    del tampered, wrong
    errors = {}
    gradients = rows[run.messages : -2] - rows[-1]  # at the models of rounds 0 to T - 1
    parts = {"columns": (trace, slice(0, table.payload.shape[1]))}
    if trace.sketched is not None:
        parts["sketch"] = (trace.sketched, slice(run.kept.raw, run.kept.linear))
    for name, (part, place) in parts.items():
        leak = la.leaks(part, la.Adversary(), nodes=[NODE])[0]
        true = leak.combination.double() @ gradients[leak.rounds - 1][:, place].double()
        errors[name] = float((leak.value.double() - true).norm() / true.norm())
        errors[f"{name}_rows"] = len(leak.value)
    return {
        "values": facts["values"],
        "relations_hold": True,
        "tampered_sketch_found": bool(noticed),
        "error_of_derived_gradients": errors,
    }


def price(path: Path, views: int) -> dict[str, object]:
    """Explain one node, and compute the exact privacy of its first views."""
    trace = trace_file.load(path, verify=False)
    begin = time.perf_counter()
    (said,) = explanation.explain(trace, la.Adversary(), [NODE])
    explained = time.perf_counter()
    names = ["eavesdropper", f"node:{trace.graph.neighbours[NODE][0]}"][:views]
    bounds = la.bound(trace, names, [NODE], sensitivity=1.0)
    return {
        "explained": said.summary,
        "explain_s": round(explained - begin, 1),
        "bound_s": round(time.perf_counter() - explained, 1),
        "views": {str(one.bound.adversary): f"{one.bound.mu:.4g}" for one in bounds},
    }


@contextmanager
def stage(name: str, told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Measure a stage, print its line, and add its times to `told`."""
    said: dict[str, Any] = {"bench": f"large/{name}"}
    wall = time.perf_counter()
    cpu = sum(os.times()[:4])
    yield said
    said["wall_s"] = round(time.perf_counter() - wall, 1)
    said["cpu_s"] = round(sum(os.times()[:4]) - cpu, 1)
    told[name] = said["wall_s"]
    print(json.dumps(said), flush=True)


def peak(workers: int) -> float:
    """Return the largest resident memory so far in GB, of this process and all workers."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    one = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return round(max(own, one * workers) * 1024 / 1e9, 2)


def main() -> None:
    """Simulate, record, verify, explain and price."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--parameters", type=int, default=0, help="length (default: ResNet-50)")
    parser.add_argument("--graph", default="ring")
    parser.add_argument("--layers", default="conv1,fc.bias,sketch")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--views", type=int, default=2, help="views that are priced")
    parser.add_argument("--folder", type=Path, help="folder of the files (default: temporary)")
    asked = parser.parse_args()
    run = Run(asked.nodes, asked.rounds, asked.parameters, asked.graph, asked.layers)
    torch.set_num_threads(asked.workers)
    times: dict[str, Any] = {}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        path = folder / "trace.pt"
        with stage("simulate", times) as said:
            calls, rows = simulated(run, folder, asked.workers)
            said["numbers"] = run.nodes * run.layout.size * run.rounds
        with stage("record", times) as said:
            record(run, path, calls, rows)
            said["trace_GB"] = round(path.stat().st_size / 1e9, 3)
            said["whole_GB"] = round(4 * run.messages * run.layout.size / 1e9, 1)
        with stage("verify", times) as said:
            said.update(verify(run, path, rows))
        with stage("price", times) as said:
            said.update(price(path, asked.views))
        disk = sum(file.stat().st_size for file in folder.rglob("*"))
    print(
        json.dumps(
            {
                "bench": "large",
                "nodes": run.nodes,
                "rounds": run.rounds,
                "parameters": run.layout.size,
                "columns": run.kept.raw,
                "ratio": round(run.kept.width / run.layout.size, 6),
                "unit": "of the numbers of a message are recorded",
                "wall_s": round(time.perf_counter() - began, 1),
                "cpu_s": round(sum(os.times()[:4]), 1),
                "peak_GB": peak(asked.workers),
                "disk_GB": round(disk / 1e9, 2),
                "stages_s": times,
            }
        )
    )


def simulated(run: Run, folder: Path, workers: int) -> tuple[list[tuple[Any, ...]], Tensor]:
    """Return the calls that send messages, and all projected rows (rows, linear)."""
    raw = folder / "raw.npy"
    shape = (run.rows, run.kept.linear)
    np.lib.format.open_memmap(raw, mode="w+", dtype=np.float32, shape=shape)
    count = math.ceil(run.layout.size / BLOCK)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context) as pool:
        jobs = []
        for k in range(workers):
            sums = folder / f"sums{k}.npy"
            jobs.append(pool.submit(simulate, run, range(k, count, workers), raw, sums))
        calls = [job.result() for job in jobs]
    rows = np.lib.format.open_memmap(raw, mode="r+")
    for k in range(workers):
        part = np.load(folder / f"sums{k}.npy", mmap_mode="r")
        if k == 0:
            total = part.copy()
        else:
            total += part
    rows[:, run.kept.raw :] = total
    return calls[0], torch.from_numpy(rows)


if __name__ == "__main__":
    main()
