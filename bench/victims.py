"""Speed of victims: against a plain loop over nodes, a memory floor per round, and with more nodes.

python bench/victims.py [NAME …]
    prints one JSON line per figure; ratios within one process, medians of alternating runs
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from _loops import LOOPS, Loop

from leakaudit.core.payload import StoredColumns
from leakaudit.core.trace import Graph, TaskSpec
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks.task import Problem, Task
from leakaudit.traces.recorder import Recorder, RecorderOptions, Storage

torch.set_num_threads(1)
Kind = TypeVar("Kind", bound=Recorder)
SETS: dict[str, dict[str, Any]] = {
    "pdmm": {"z0": 0.0},
    "muffliato": {"sigma": 0.0, "clip": 0.0},
    "dpnorm": {"sigma": 0.0},
    "pvpadmm": {"update": "gradient"},
    "secured": {"lam0": 0.0},
}
COMPLETE = {"secagg", "secured"}  # need a complete graph; secured a multiple of three nodes
SCHEDULES: dict[int, Mapping[str, torch.Tensor]] = {}
GRADIENTS = {
    "diloco": 10.0,
    "gossip": 0.0,
    "muffliato": 0.2,
    "secured": 1.0,
}  # evaluations per round, if not one
# vectors (N, d) that a round of degree 4 must read or write in addition to its gradients: each
# state once when it is read and once when it changes, the gradient once, and of a sum over
# neighbours (and the node itself) the 4 or 5 vectors that are added; of diloco, 7 in each of ten
# steps of AdamW (the model and two averages twice, the gradient once), and 5 for the change
MOVED = {
    "fedsgd": 1,
    "fedavg": 3,
    "fedsplit": 6,
    "pdmm": 11,
    "gossip": 6,
    "muffliato": 6.6,
    "dpsgd": 9,
    "tracking": 15,
    "choco": 12,
    "extra": 12,
    "nids": 13,
    "dpadmm": 15,
    "pvpadmm": 15,
    "dpadmmserver": 6,
    "dpnorm": 11,
    "dkm": 7,
    "secagg": 15,
    "secured": 13,
    "single": 1,
    "diloco": 75,
}


def start(task: Task) -> torch.Tensor:
    """Return the common initial model of all runs."""
    return task.init(torch.Generator().manual_seed(0))


def run(
    plan: recording.Plan,
    rounds: int,
    wires: Iterable[tuple[int, int]],
    kind: type[Kind],
    keep_states: bool = False,
) -> Kind:
    """Run the protocol with the package, recorded in memory."""
    task, wires = plan.task, list(wires)
    messages = plan.victim.messages(plan.graph, 0 if kind is Warm else rounds, wires)
    public = {"w0": start(task), **_schedule(plan)}
    size = max(messages, 0)
    recorder = kind(
        Storage(None, messages=size, rows=size, max_bytes=1e11),
        protocol="own:bench",
        task=task.spec,
        graph=plan.graph,
        rounds=rounds,
        public=public,
        options=RecorderOptions(layout=task.layout, dtype=task.dtype, keep_states=keep_states),
    )
    x, y = plan.source.x[plan.rows].to(task.dtype), plan.source.y[plan.rows]
    with recorder:
        plan.victim.run(
            Problem(task, x, y),
            plan.graph,
            rounds,
            recorder,
            torch.Generator().manual_seed(0),
            wires,
        )
    return recorder


def _schedule(plan: recording.Plan) -> Mapping[str, torch.Tensor]:
    """Return what the victim draws before it runs, once per plan."""
    if id(plan) not in SCHEDULES:
        SCHEDULES[id(plan)] = plan.victim.schedule(
            plan.graph, 100, torch.Generator().manual_seed(0)
        )
    return SCHEDULES[id(plan)]


class Clocked(Recorder):
    """Stores the CPU seconds at the end of each round."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.ends: list[float] = []

    def end_round(self, round: int) -> None:
        """Store the round and the time."""
        super().end_round(round)
        self.ends.append(time.process_time())


class Warm(Clocked):
    """Makes each round write into memory that has been written before: the victim's own time,
    without the recorder's.
    """

    def _append(
        self, round: int, src: Any, dst: Any, kind: str, secure: bool, row: Any
    ) -> torch.Tensor:
        """Return the same rows in every round."""
        self.rows: dict[Any, torch.Tensor] = getattr(self, "rows", {})
        count = int(row.max()) + 1
        return self.rows.setdefault(
            (kind, int(src[0] < dst[0]), count),
            torch.ones(count, self.kept.width, dtype=self.dtype),
        )

    def state(self, *_: Any) -> None:
        """Store nothing."""

    def end_round(self, *_: Any) -> None:
        """Store only the time."""
        self.ends.append(time.process_time())


def a_round(
    plan: recording.Plan, rounds: int, wires: Iterable[tuple[int, int]], kind: type[Clocked]
) -> float:
    """Return the CPU seconds of a round after the first, by the clock between rounds of one run;
    without the start.
    """
    ends = run(plan, rounds + 1, wires, kind).ends
    return (ends[rounds] - ends[0]) / rounds


def clock(work: Callable[[], object]) -> float:
    """Return the CPU seconds of one call; everything runs on one thread, and other programs disturb
    them less than elapsed time.
    """
    before = time.process_time()
    work()
    return time.process_time() - before


def plain(plan: recording.Plan, rounds: int) -> torch.Tensor:
    """Return the models (N, d) after this number of rounds of the loop."""
    return torch.stack(
        next(
            itertools.islice(
                LOOPS[plan.scenario.victim](Loop(plan, start(plan.task))), rounds - 1, None
            )
        )
    )


def against_loop(name: str, model: str, nodes: int = 100, rounds: int = 20) -> dict[str, object]:
    """Little work per node, every channel recorded; the loop and the victim end with the same
    models.
    """
    graph, nodes = ("complete", nodes - nodes % 3) if name in COMPLETE else ("rgg", nodes)
    chosen = Scenario(
        name,
        nodes=nodes,
        graph=graph,
        data="gaussians",
        samples=4,
        model=model,
        set=SETS.get(name, {}),
        rounds=rounds,
    )
    plan, ours, theirs = recording.plan(chosen), [], []
    wires = list(plan.graph.edges)
    end = run(plan, rounds, wires, Recorder, keep_states=True).truth_record.states["w"][rounds]
    difference = float((end.reshape(-1, end.shape[-1])[:nodes] - plain(plan, rounds)).abs().max())
    for _ in range(3):
        ours.append(clock(lambda: run(plan, rounds, wires, Recorder)))
        theirs.append(clock(lambda: plain(plan, rounds)))
    fast, slow = statistics.median(ours), statistics.median(theirs)
    return {
        "bench": f"{name}/{model}-{nodes}",
        "ratio": round(slow / fast, 1),
        "unit": "times faster than a loop over nodes",
        "node_rounds_per_s": round(nodes * rounds / fast),
        "difference": difference,
        "target": 10,
    }


def with_more_nodes(
    name: str, few: int = 100, many: int = 1000, rounds: int = 30
) -> dict[str, object]:
    """Seconds of a node-round among many nodes over those among few; 2 neighbours per node, every
    channel recorded.

    With complete graphs no channel is recorded, since the number of messages per node grows with N.
    """
    few, many = (30, 300) if name in COMPLETE else (few, many)  # many edges take long to start with
    times: dict[int, list[float]] = {few: [], many: []}
    graph = "complete" if name in COMPLETE else "ring"
    plans = {
        n: recording.plan(
            Scenario(
                name,
                nodes=n,
                graph=graph,
                data="gaussians",
                samples=1,
                model="logistic",
                set=SETS.get(name, {}),
            )
        )
        for n in times
    }
    for _ in range(5):
        for n, plan in plans.items():
            wires = () if name in COMPLETE else plan.graph.edges
            times[n].append(a_round(plan, rounds, wires, Clocked) / n)
    ratio = statistics.median(times[many]) / statistics.median(times[few])
    return {
        "bench": f"{name}/{few} to {many} nodes",
        "ratio": round(ratio, 2),
        "unit": "times the cost of a node-round",
        "target": 1,
    }


def against_memory(name: str, model: str, recorded: int = 0, nodes: int = 30) -> dict[str, object]:
    """A round of 30 nodes, degree 4, one 28x28 sample each, relative to its gradients and the
    memory that it must move (see `MOVED`).
    """
    plan = _images(name, model, nodes)
    wires, size = [e for e in plan.graph.edges if min(e) < recorded], plan.task.layout.size
    state, rounds = nodes * size, 10 if model == "mlp" else 5
    thetas = start(plan.task).repeat(nodes, 1)
    x, y, out = plan.source.x[plan.rows], plan.source.y[plan.rows], torch.empty(nodes, size)
    one, two = torch.ones(4, state), torch.ones(4, state)
    floor, taken = [], []
    for _ in range(5):
        moved = clock(lambda: two.copy_(one)) / 8
        floor.append(
            clock(lambda: plan.task.gradients(thetas, x, y, out=out)) * GRADIENTS.get(name, 1.0)
            + moved * MOVED[name]
        )
        taken.append(a_round(plan, rounds, wires, Warm))
    ratio = statistics.median(taken) / statistics.median(floor)
    times = {
        "ms_per_round": round(1e3 * statistics.median(taken), 2),
        "floor_ms": round(1e3 * statistics.median(floor), 2),
    }
    return {
        "bench": f"{name}/{model}-{nodes}",
        "ratio": round(ratio, 2),
        "unit": "times the memory floor",
        **times,
        "target": 2,
    }


def _images(name: str, model: str, nodes: int) -> recording.Plan:
    values = (
        {"update": "gradient"}
        if name == "pvpadmm"
        else {"compress": "quantize"}
        if name == "choco"
        else {}
    )
    ends = "complete" if name in COMPLETE else "ring"
    base = Scenario(
        name,
        nodes=nodes,
        graph=ends,
        data="gaussians",
        model="logistic",
        set={**SETS.get(name, {}), **values},
    )
    plan, generator = recording.plan(base), torch.Generator().manual_seed(0)
    ring = [(i, (i + k) % nodes) for i in range(nodes) for k in (1, 7)]
    graph = (
        plan.graph
        if plan.victim.centralised or name in COMPLETE
        else Graph(nodes, tuple(sorted({(min(e), max(e)) for e in ring})))
    )
    x, y = (
        torch.rand(nodes, 1, 28, 28, generator=generator),
        torch.randint(10, (nodes,), generator=generator),
    )
    task = Task.build(
        TaskSpec(model, {"hidden": 100} if model == "mlp" else {}, shape=(1, 28, 28), classes=10)
    )
    source = replace(plan.source, x=x, y=y)
    return replace(
        plan,
        source=source,
        rows=torch.arange(nodes)[:, None],
        task=task,
        graph=graph,
        wires=[],
        kept=StoredColumns(task.layout.size, ((0, task.layout.size),)),
    )


def figures(names: Iterable[str]) -> Iterable[dict[str, object]]:
    """Yield every figure of the given victims."""
    for name in names:
        yield against_loop(name, "logistic")
        yield against_loop(name, "linear")
        yield with_more_nodes(name)
        if name in MOVED:
            yield against_memory(name, "mlp")
            yield against_memory(name, "lenet")


if __name__ == "__main__":
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument(
        "names",
        nargs="*",
        choices=[*LOOPS, []],
        metavar="NAME",
        help=f"victims: {', '.join(LOOPS)}; default all",
    )
    for figure in figures(reader.parse_args().names or LOOPS):
        print(json.dumps(figure), flush=True)
