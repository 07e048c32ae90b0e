"""Growth of the time of `leakaudit bound` with nodes, rounds and the size of coalitions.

python bench/bounds.py [name ...] [--reference] [--seconds 60]
    nodes, rounds, coalitions, long (default: all); one JSON line per figure, one thread

All default views of noisy protocols on a random geometric graph are bounded. cpu is CPU time of
this process. With --reference, every view is bounded by itself (`account`), as before views shared
work, as long as it is expected to take less than --seconds; ratio is reference / cpu. exponent is
the slope between the last two sizes in logarithms. long is one node of a ring of five, seen by an
outsider, over many rounds; megabytes is the peak memory of this process until then.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy loads its linear algebra

import torch
from torch import Generator

from leakaudit import registry
from leakaudit.accounting import adversaries
from leakaudit.accounting.adversaries import around, named
from leakaudit.accounting.compare import compare
from leakaudit.adversary import Adversary
from leakaudit.protocols import topology
from leakaudit.protocols.declared import Protocol
from leakaudit.relations.shared import SharedView

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


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *SERIES, "long"])
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    for name in args.names or [*SERIES, "long"]:
        for line in long() if name == "long" else growth(SERIES[name], args):
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
                with patch.object(SharedView, "of", lambda *_: None):
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


if __name__ == "__main__":
    main()
