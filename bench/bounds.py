"""Growth of the time of `leakaudit bound` with nodes, rounds and the size of coalitions.

python bench/bounds.py [name ...] [--reference] [--seconds 60]
    nodes, rounds, coalitions, long, hidden, large (default: all but large); one JSON line per
    figure, one thread

All default views of noisy protocols on a random geometric graph are bounded. cpu is CPU time of
this process. With --reference, every view is bounded by itself (`account`), as before views shared
work, as long as it is expected to take less than --seconds; ratio is reference / cpu. exponent is
the slope between the last two sizes in logarithms. long is one node of a ring of five, seen by an
outsider, over many rounds; megabytes is the peak memory of this process until then. hidden is one
curious node of a ring, over 1,000 rounds, and all nodes that it learns about. large is every
default view of 1,000 nodes over 1,000 rounds in --workers processes: outsiders, channels, and all
single curious nodes, on every --graph; seconds is elapsed time, and megabytes is the largest
resident memory of all processes together, sampled twice a second (Linux only).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy loads its linear algebra

import networkx
import torch
from torch import Generator

from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.trace import Graph
from leakaudit.protocols import topology
from leakaudit.protocols.declared import Protocol
from leakaudit.runs.workers.executor import Executor
from leakaudit.theory.relations import shared
from leakaudit.views.accounting import adversaries, survey
from leakaudit.views.accounting.adversaries import around, named
from leakaudit.views.accounting.compare import Comparison, compare

VICTIMS = {"dpsgd": {"sigma": 1.0}, "dpnorm": {"sigma": 1.0, "records": 4}}


@dataclass(frozen=True)
class Size:
    """One problem; `axis` is the quantity that grows."""

    victim: str
    nodes: int
    rounds: int
    coalitions: int = 1
    axis: str = "nodes"

    @property
    def at(self) -> int:
        """The value of the quantity that grows."""
        return int(getattr(self, self.axis))

    @property
    def protocol(self) -> Protocol:
        """The protocol, declared anew."""
        victim = registry.configure(registry.get("victims", self.victim), VICTIMS[self.victim])
        graph = topology.make("rgg", self.nodes, Generator().manual_seed(0))
        return Protocol(victim, graph, self.rounds, {"w0": torch.zeros(1)})


SERIES = {
    "nodes": [
        [Size(victim, nodes, 5) for nodes in (10, 20, 40, 100)] for victim in ("dpsgd", "dpnorm")
    ],
    "rounds": [[Size("dpsgd", 20, rounds, axis="rounds") for rounds in (5, 10, 20, 40)]],
    "coalitions": [[Size("dpsgd", 12, 5, size, "coalitions") for size in (1, 2, 3)]],
}
LONG = (1_000, 10_000, 100_000)
HIDDEN = [("dpsgd", 250), ("dpsgd", 1_000), ("dpnorm", 60), ("dpnorm", 125), ("dpnorm", 250)]
LARGE = 1_000  # nodes, and rounds


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *SERIES, *OTHERS, "large"])
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--graph", action="append", choices=GRAPHS, default=None)
    args = parser.parse_args()
    for name in args.names or [*SERIES, *OTHERS]:
        lines = growth(SERIES[name], args) if name in SERIES else others(name, args)
        for line in lines:
            print(json.dumps({"bench": f"bounds: {name}", **line}), flush=True)


def growth(
    series: Sequence[Sequence[Size]], args: argparse.Namespace
) -> Iterator[dict[str, object]]:
    """Yield a line for each size."""
    for sizes in series:
        times: list[tuple[int, float]] = []
        references: list[tuple[int, float]] = []
        for size in sizes:
            views, cpu = measured(size)
            times.append((size.at, cpu))
            line: dict[str, object] = {
                "victim": size.victim,
                "nodes": size.nodes,
                "rounds": size.rounds,
                "coalitions": size.coalitions,
                "views": views,
                "cpu": round(cpu, 2),
                "exponent": exponent(times),
            }
            if args.reference and expected(references, size.at) < args.seconds:
                with patch.object(shared, "bounds", lambda *_: None):
                    _, reference = measured(size)
                references.append((size.at, reference))
                line["reference"] = round(reference, 2)
                line["ratio"] = round(reference / cpu, 2)
                line["reference_exponent"] = exponent(references)
            yield line


def measured(size: Size) -> tuple[int, float]:
    """Return the number of views, and the CPU time of bounding all."""
    protocol = size.protocol
    with patch.object(adversaries, "MOST_SHARED", sys.maxsize):
        threats = around(protocol.graph, range(size.nodes), size.coalitions, shared=True)
    start = time.process_time()
    count = sum(1 for _ in compare(protocol, threats))
    return count, time.process_time() - start


def expected(times: Sequence[tuple[int, float]], at: int) -> float:
    """Extrapolate from the last two sizes; the exponent is at least 2."""
    if not times:
        return 0.0
    last, seconds = times[-1]
    return seconds * float((at / last) ** max(2.0, exponent(times) or 0.0))


def exponent(times: Sequence[tuple[int, float]]) -> float | None:
    """Return the slope between the last two sizes in logarithms."""
    if len(times) < 2:
        return None
    (a, first), (b, second) = times[-2:]
    return round(math.log(second / first) / math.log(b / a), 2)


def others(name: str, args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Yield the lines of a name that is no series."""
    if name == "large":
        return large(args.workers, args.graph or list(GRAPHS))
    return OTHERS[name]()


def long() -> Iterator[dict[str, object]]:
    """Yield a line for each number of rounds."""
    for rounds in LONG:
        victim = registry.configure(registry.get("victims", "dpsgd"), VICTIMS["dpsgd"])
        graph = topology.make("ring", 5, Generator())
        protocol = Protocol(victim, graph, rounds, {"w0": torch.zeros(1)})
        start = time.process_time()
        (found,) = compare(protocol, named([Adversary()], [0], 5))
        yield {
            "victim": "dpsgd",
            "rounds": rounds,
            "node_mu": found.bound.node_mu,
            "cpu": round(time.process_time() - start, 2),
            "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }


def hidden() -> Iterator[dict[str, object]]:
    """Yield a line for each protocol and number of nodes."""
    for name, nodes in HIDDEN:
        victim = registry.configure(registry.get("victims", name), VICTIMS[name])
        protocol = Protocol(victim, topology.make("ring", nodes, Generator()), LARGE, START)
        start = time.process_time()
        found = list(compare(protocol, named([Adversary.parse("node:0")], None, nodes)))
        yield {
            "victim": name,
            "nodes": nodes,
            "rounds": LARGE,
            "views": len(found),
            "linear_mu": found[0].bound.linear,
            "cpu": round(time.process_time() - start, 2),
            "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }


def large(workers: int, graphs: Sequence[str]) -> Iterator[dict[str, object]]:
    """Yield a line for each graph."""
    for kind in graphs:
        graph = GRAPHS[kind]()
        victim = registry.configure(registry.get("victims", "dpsgd"), VICTIMS["dpsgd"])
        protocol = Protocol(victim, graph, LARGE, START)
        executor = Executor(workers)
        start = time.perf_counter()
        with Memory() as memory:
            threats = survey.adversaries(protocol, range(LARGE), 1, executor)
            found = list(compare(protocol, threats, executor=executor))
        seconds = time.perf_counter() - start
        yield {
            "graph": kind,
            "listed": len(found),
            "refused": sum(bool(one.bound.refused) for one in found),
            "mean_neighbour": mean(found, "neighbour"),
            "mean_distant": mean(found, "node"),
            "seconds": round(seconds, 1),
            "megabytes": memory.most,
        }


class Memory:
    """Samples the resident memory of this process and all that it started, directly or not.

    Attributes:
        most: The largest sum so far, in MB; 0 on a system without /proc.
    """

    def __init__(self) -> None:
        self.most = 0
        self._ended = threading.Event()
        self._sampling = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._sampling.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._sampling.join()

    def _sample(self) -> None:
        while not self._ended.wait(0.5):
            self.most = max(self.most, self._now())

    def _now(self) -> int:
        parents: dict[int, int] = {}
        sizes: dict[int, int] = {}
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
            except OSError:  # the process has ended
                continue
            number = int(lines["Pid"])
            parents[number] = int(lines["PPid"])
            sizes[number] = int(lines.get("VmRSS", "0 kB").split()[0]) // 1000
        total = 0
        for number, size in sizes.items():
            while number not in (0, os.getpid()):
                number = parents.get(number, 0)
            if number:
                total += size
        return total


def mean(found: Sequence[Comparison], kind: str) -> float:
    """Return the mean mu of equal changes, over the views of one kind."""
    values = [one.bound.linear or 0.0 for one in found if one.threat.kind == kind]
    return round(sum(values) / max(1, len(values)), 4)


def torus(rows: int, columns: int) -> Graph:
    """Return a grid whose borders are joined."""
    return graph_of(networkx.grid_2d_graph(rows, columns, periodic=True))


def geometric(nodes: int, degree: float) -> Graph:
    """Return random points of the unit square, joined if close; parts are joined where closest."""
    radius = math.sqrt(degree / (math.pi * nodes))
    graph = networkx.random_geometric_graph(nodes, radius, seed=0)
    at = networkx.get_node_attributes(graph, "pos")
    while len(parts := sorted(networkx.connected_components(graph), key=len)) > 1:
        outside = set(graph) - parts[0]
        pairs = ((i, j) for i in sorted(parts[0]) for j in sorted(outside))
        graph.add_edge(*min(pairs, key=lambda pair: math.dist(at[pair[0]], at[pair[1]])))
    return graph_of(graph)


def graph_of(graph: networkx.Graph) -> Graph:
    """Return a graph of networkx with numbered nodes."""
    numbered = networkx.convert_node_labels_to_integers(graph, ordering="sorted")
    return Graph(len(numbered), tuple(sorted((min(e), max(e)) for e in numbered.edges())))


GRAPHS = {
    "ring": lambda: topology.make("ring", LARGE, Generator()),
    "torus": lambda: torus(25, 40),
    "geometric": lambda: geometric(LARGE, 6),  # of degree 6
}
START = {"w0": torch.zeros(1)}
OTHERS = {"long": long, "hidden": hidden}

if __name__ == "__main__":
    main()
