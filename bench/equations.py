"""Protocols whose equations are found in unlabelled traffic: right, not known or wrong.

    python bench/equations.py [NAME ...] [--nodes 5] [--rounds 10] [--samples 1 4] [--lost 0.1]

Records every bundled protocol without noise (pictures of faces, one hidden layer), in single and in
double precision, with one and with four records per node, removes its name, and proposes equations.
A proposal is right if a lint with the true records tests every equation and contradicts none, and
wrong if it contradicts one. Prints one line per recording, and the counts.

--lost is the share of transmissions that are missing from the recording; the lint sees all of them.
--set NAME=VALUE changes a constant of all protocols, such as momentum=0.9.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import torch

import leakaudit as la
from leakaudit.capture.equations.propose import propose
from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Trace, Truth
from leakaudit.judging.lint.checks import Lint, lint
from leakaudit.tasks.task import Task

NAME = "own:mine"
WRONG_EQUATION = 21  # number of the lint's finding
# Constants with which nothing is added to the messages and every one of them is a rule.
SETS: dict[str, dict[str, Any]] = {
    "muffliato": {"sigma": 0.0, "clip": 0.0},
    "dpnorm": {"sigma": 0.0},
    "pvpadmm": {"update": "gradient"},
    "secured": {"lam0": 0.0},
}
GRAPHS = {"fedavg": "star", "fedsgd": "star", "fedsplit": "star", "dpadmmserver": "star"}
NODES = {"secured": 6}  # groups of three


def recorded(
    victim: str, dtype: str, samples: int, nodes: int, rounds: int, constants: dict[str, Any]
) -> tuple[Trace, Truth]:
    """Record a protocol on pictures of faces."""
    return la.record(
        la.Scenario(
            victim=victim,
            nodes=NODES.get(victim, nodes),
            graph="complete" if victim in ("secagg", "secured") else GRAPHS.get(victim, "ring"),
            rounds=rounds,
            data="faces",
            model="mlp",
            samples=samples,
            dtype=dtype,
            set={"hidden": 32, **SETS.get(victim, {}), **constants},
        )
    )


def lossy(trace: Trace, share: float) -> Trace:
    """Return a trace in which a share of the transmissions, to all receivers, is missing."""
    rng = torch.Generator().manual_seed(0)
    tables = []
    for table in trace.messages:
        kept = (torch.rand(len(table.payload), generator=rng) >= share)[table.row.long()]
        columns = ("round", "src", "dst", "kind", "row", "secure")
        some = {name: getattr(table, name)[kept] for name in columns}
        tables.append(replace(table, **some))
    return replace(trace, messages=tuple(tables))


def verdict(trace: Trace, truth: Truth, lost: float) -> tuple[str, str]:
    """Return what became of a trace without its name, and the words of the proposal."""
    one = replace(trace, protocol=NAME, params={})
    found = propose(lossy(one, lost), Task.build(trace.task, dtype=trace.dtype), NAME)
    if found.text is None:
        return "not known", "; ".join(found.said)
    one = replace(one, provenance={**one.provenance, registry.TEXT: found.text})
    wrong = [pitfall for pitfall in lint(one, truth) if pitfall.number == WRONG_EQUATION]
    if wrong:
        return "WRONG", str(wrong[0])
    open_ = [line for line in Lint(one, truth).unexamined if "equation" in line]
    if open_:
        return "untested", open_[0]
    return "right", "; ".join(found.said)


def main() -> None:
    """Print a line per recording."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="protocols (default: all bundled ones)")
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--samples", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--dtypes", nargs="*", default=["float32", "float64"])
    parser.add_argument("--lost", type=float, default=0.0)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    constants = dict(one.split("=", 1) for one in args.set)
    counts: dict[tuple[int, str], Counter[str]] = {}
    for victim in args.names or registry.names("victims"):
        for samples in args.samples:
            for dtype in args.dtypes:
                begin = time.process_time()
                try:
                    trace, truth = recorded(
                        victim, dtype, samples, args.nodes, args.rounds, constants
                    )
                except LeakauditError as error:
                    print(f"{victim:13} b={samples} {dtype}: not recorded: {error}", flush=True)
                    continue
                what, words = verdict(trace, truth, args.lost)
                counts.setdefault((samples, dtype), Counter())[what] += 1
                took = time.process_time() - begin
                print(f"{victim:13} b={samples} {dtype} {what:9} {took:5.1f} s {words}", flush=True)
    for (samples, dtype), some in counts.items():
        print(f"b={samples} {dtype}: {dict(some)}")


if __name__ == "__main__":
    main()
