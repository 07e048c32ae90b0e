"""A run too large to be recorded whole: Muffliato with vectors of ResNet-50's size.

python bench/large.py [--nodes 100] [--rounds 200] [--parameters 0] [--folder DIR] [--workers 2]
    [--graph ring] [--layers conv1,fc.bias,sketch]

A full recording of 100 nodes for 200 rounds would take 2 TB. Here, some columns and a sketch of all
of them are recorded (docs/traces.md). Every column is simulated, by the bundled protocol itself:
averaging acts on every coordinate by itself if the gradients do, so the protocol runs on one block
of columns after another, and the sketches of the blocks are added. Gradients are synthetic,
g_i(w) = w - c_i with a random c_i for each node. A gradient step with noise is followed by ten
rounds of averaging.

Then the trace is verified: its numbers; the declared relations between its messages, in the columns
and in the sketch, where a changed number must be found; and the gradients that an eavesdropper
derives, which are compared with those of the simulation. One node is explained, and its privacy
towards an eavesdropper and towards a neighbour is computed. Prints one JSON line per stage and one
for everything. A short form, of half a minute:

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
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.core import registry
from leakaudit.core.payload import StoredColumns
from leakaudit.core.sketch import NUMBERS
from leakaudit.core.trace import Graph, Layout, TaskSpec
from leakaudit.protocols import topology
from leakaudit.tasks._torchvision import torchvision
from leakaudit.traces import layers, trace_file, trace_info
from leakaudit.traces.recorder import Recorder, RecorderOptions, Storage
from leakaudit.victims import muffliato
from leakaudit.views.conformance import conformance
from leakaudit.views.conformance.case import Case
from leakaudit.views.conformance.equations import consistency
from leakaudit.views.extraction import explanation

BLOCK = 8192  # columns that are simulated together; their states fit into a third-level cache
NODE = 0  # the node that is explained, and whose gradients are compared
VICTIM = muffliato.Muffliato(lr=0.5, gossips=10, sigma=0.05, clip=0.0)


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
        with torch.device("meta"):
            model = torchvision().models.resnet50()
        named = {name: tuple(value.shape) for name, value in model.named_parameters()}
        return Layout(tuple(named), tuple(named.values()))

    @cached_property
    def kept(self) -> StoredColumns:
        """What is recorded."""
        return layers.kept(self.layers, self.layout)

    @property
    def sent(self) -> int:
        """Different messages: every node sends its model to all neighbours."""
        return self.nodes * self.rounds

    @property
    def steps(self) -> int:
        """Gradient steps of a node."""
        return math.ceil(self.rounds / VICTIM.gossips)

    @property
    def rows(self) -> int:
        """Vectors that are projected: messages; models, noise and the target c of NODE."""
        return self.sent + 2 * self.steps + 1


@dataclass
class Block:
    """Takes the place of the recorder for the columns of one block.

    What this block contributes to the recorded columns is written to `raw`, and its part of the
    sketches and of the sums of squares is added to `sums` and `squares`.
    """

    run: Run
    start: int
    raw: np.ndarray
    sums: Tensor
    squares: Tensor
    public: Mapping[str, Tensor]
    partial = False
    keep_curves = False

    def __post_init__(self) -> None:
        """Find the recorded columns within the block."""
        self.graph = self.run.network
        self.inside: list[tuple[slice, slice]] = []  # within a stored row, and within the block
        stop = min(self.start + BLOCK, self.run.layout.size)
        for (first, last), place in self.run.kept.places.items():
            low = max(first, self.start)
            high = min(last, stop)
            if low < high:
                begin = place.start + low - first
                stored = slice(begin, begin + high - low)
                self.inside.append((stored, slice(low - self.start, high - self.start)))

    def exchange(self, round: int, kind: str, values: Tensor, *_: Any) -> Tensor:
        """Record the messages of a round, and return what the neighbours receive."""
        self.store(self.run.nodes * (round - 1), values)
        return values

    def state(self, name: str, round: int, value: Tensor) -> None:
        """Keep the models of NODE before its gradient steps, and its noise."""
        mine = value[NODE : NODE + 1]
        step, rest = divmod(round, VICTIM.gossips)
        if name == "w" and rest == 0 and step < self.run.steps:
            self.store(self.run.sent + step, mine)
        elif name == "xi":
            self.store(self.run.sent + self.run.steps + step, mine)

    def end_round(self, round: int) -> None:
        """Do nothing: a round is recorded when all blocks have run."""

    def store(self, first: int, values: Tensor) -> None:
        """Add some columns of vectors (n, block) to the rows from `first` on."""
        rows = slice(first, first + len(values))
        for place, inside in self.inside:
            self.raw[rows, place] = values[:, inside].numpy()
        sketch = self.run.kept.sketch
        if sketch is not None:
            sketch.add(self.sums[rows], values, self.start, self.squares[rows])


def start(run: Run, block: int) -> Tensor:
    """Return the common initial model (columns,) in one block."""
    wide = min(BLOCK, run.layout.size - block * BLOCK)
    return torch.randn(wide, generator=Generator().manual_seed(3 * block)) * 0.02


def simulate(run: Run, blocks: range, raw: Path, sums: Path) -> None:
    """Run the protocol on some blocks; the recorded numbers go to the two files."""
    torch.set_num_threads(1)
    shared = np.lib.format.open_memmap(raw, mode="r+")
    total = torch.zeros(run.rows, NUMBERS, dtype=torch.float64)
    squares = torch.zeros(run.rows, dtype=torch.float64)
    for block in blocks:
        w0 = start(run, block)
        draw = Generator().manual_seed(3 * block + 1)
        targets = torch.randn(run.nodes, len(w0), generator=draw)

        def gradients(w: Tensor, x: Tensor, y: Tensor, out: Tensor, c: Tensor = targets) -> Tensor:
            return torch.sub(w, c, out=out)

        problem: Any = SimpleNamespace(
            task=SimpleNamespace(gradients=gradients), x=w0, y=w0, nodes=run.nodes, samples=1
        )
        recorder: Any = Block(run, block * BLOCK, shared, total, squares, {"w0": w0})
        random = Generator().manual_seed(3 * block + 2)
        VICTIM.run(problem, run.network, run.rounds, recorder, random, run.network.edges)
        recorder.store(run.rows - 1, targets[NODE : NODE + 1])
    np.save(sums, torch.cat([total, squares[:, None]], 1).numpy())


def simulated(run: Run, folder: Path, workers: int) -> Tensor:
    """Return what is kept of all vectors, (rows, width)."""
    raw = folder / "raw.npy"
    shape = (run.rows, run.kept.width)
    np.lib.format.open_memmap(raw, mode="w+", dtype=np.float32, shape=shape)
    count = math.ceil(run.layout.size / BLOCK)
    files = [folder / f"sums{k}.npy" for k in range(workers)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context) as pool:
        jobs = []
        for k, sums in enumerate(files):
            jobs.append(pool.submit(simulate, run, range(k, count, workers), raw, sums))
        for job in jobs:
            job.result()
    total = sum(np.load(file) for file in files)
    total[:, -1] **= 0.5  # from sums of squares to norms
    rows = np.lib.format.open_memmap(raw, mode="r+")
    if run.kept.seed is not None:
        rows[:, run.kept.raw :] = total
    return torch.from_numpy(rows)


def record(run: Run, path: Path, rows: Tensor) -> None:
    """Write the trace, round by round."""
    count = math.ceil(run.layout.size / BLOCK)
    w0 = torch.cat([start(run, block) for block in range(count)])
    src, dst = torch.tensor(run.network.arcs).T
    recorder = Recorder(
        Storage(path, messages=run.rounds * len(src), rows=run.sent, truth=False, max_bytes=20e9),
        protocol="muffliato",
        task=TaskSpec("torchvision.models:resnet50", shape=(3, 224, 224), classes=1000),
        graph=run.network,
        params={**registry.values(VICTIM), "samples": 1},
        rounds=run.rounds,
        public={"w0": w0},
        options=RecorderOptions(layout=run.layout, layers=run.kept),
    )
    with recorder:
        for t in range(1, run.rounds + 1):
            sent = rows[run.nodes * (t - 1) : run.nodes * t]
            recorder.send_many(t, src, dst, "w", row=src).copy_(sent)
            recorder.end_round(t)


def verify(run: Run, path: Path, rows: Tensor) -> dict[str, object]:
    """Verify the trace, and compare derived gradients with those of the simulation."""
    facts = trace_info.verify(path)
    trace = trace_file.load(path, verify=False)
    found = conformance.examine(trace)
    if found.deviations:
        raise SystemExit(f"the trace does not follow its declaration: {found.sentences}")

    # The same trace, but one message of round 3, or of the last round, differs in columns that were
    # not recorded.
    (table,) = trace.messages
    parts = {"columns": (trace, slice(0, table.payload.shape[1]))}
    noticed: dict[str, list[str]] = {}
    if trace.sketched is not None and table.stored is not None:
        place = slice(run.kept.raw, run.kept.linear)
        parts["sketch"] = (trace.sketched, place)
        other = torch.randn(NUMBERS, generator=Generator().manual_seed(0))
        for t in (3, run.rounds):
            stored = table.stored.clone()
            row = (t - 1) * run.nodes
            stored[row, place] += 0.01 * stored[row, -1] * other / other.norm()
            changed = replace(table, stored=stored, payload=stored[:, : table.payload.shape[1]])
            tampered = replace(trace, messages=(changed,))
            noticed[f"round {t}"] = conformance.examine(tampered).sentences

    # A derived gradient is the one at the node's model before the step, plus the noise over -lr.
    at, noise, target = rows[run.sent :].double().split([run.steps, run.steps, 1])
    noised = at - target - noise / VICTIM.lr
    errors: dict[str, object] = {}
    for name, (part, place) in parts.items():
        leak = la.leaks(part, la.Adversary(), nodes=[NODE])[0]
        step = (leak.rounds - 1) // VICTIM.gossips
        true = leak.combination.double() @ noised[step][:, place]
        errors[name] = float((leak.value.double() - true).norm() / true.norm())
        errors[f"{name}_rows"] = len(leak.value)
    return {
        "values": facts["values"],
        "rounds_whose_relations_are_tested": consistency(Case(trace))[0],
        "a_message_that_differs_by_1_percent": noticed,
        "error_of_derived_gradients": errors,
    }


def price(path: Path) -> dict[str, object]:
    """Explain one node, and compute its exact privacy towards two adversaries."""
    trace = trace_file.load(path, verify=False)
    begin = time.perf_counter()
    (said,) = explanation.explain(trace, la.Adversary(), [NODE])
    explained = time.perf_counter()
    names = ["eavesdropper", f"node:{trace.graph.neighbours[NODE][0]}"]
    bounds = la.bound(trace, names, [NODE], sensitivity=1.0)
    return {
        "explained": said.summary,
        "explain_s": round(explained - begin, 1),
        "bound_s": round(time.perf_counter() - explained, 1),
        "mu": {str(one.bound.adversary): f"{one.bound.mu:.4g}" for one in bounds},
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
            rows = simulated(run, folder, asked.workers)
            said["numbers"] = run.nodes * run.layout.size * run.rounds
        with stage("record", times) as said:
            record(run, path, rows)
            said["trace_GB"] = round(path.stat().st_size / 1e9, 3)
            said["whole_GB"] = round(4 * run.sent * run.layout.size / 1e9, 1)
        with stage("verify", times) as said:
            said.update(verify(run, path, rows))
        with stage("price", times) as said:
            said.update(price(path))
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


if __name__ == "__main__":
    main()
