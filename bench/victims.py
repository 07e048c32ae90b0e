"""How fast a victim runs: against a plain loop over nodes, and against the memory that a round must move.

python bench/victims.py        one JSON line a figure; ratios within one process, medians of alternating runs
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from leakaudit import recording
from leakaudit.recorder import Recorder
from leakaudit.scenario import Scenario
from leakaudit.task import Problem, Task
from leakaudit.trace import TaskSpec

torch.set_num_threads(1)


def loop(plan: recording.Plan, rounds: int) -> torch.Tensor:
    """Differential PDMM, one node and one wire after the other, gradients by autograd; returns the models (N, d)."""
    victim, graph, task = plan.victim, plan.graph, plan.task
    alpha, rho = (float(getattr(victim, name)) for name in ("alpha", "rho"))
    w = [task.init(torch.Generator().manual_seed(0)) for _ in range(graph.nodes)]
    z = {arc: torch.zeros_like(w[0]) for arc in graph.arcs}
    x, y = plan.source.x[plan.rows].to(task.dtype), plan.source.y[plan.rows]
    sent = []
    for _ in range(rounds):
        for i in range(graph.nodes):
            pull = sum(z[i, j] if i < j else -z[i, j] for j in graph.neighbours[i])
            g = task.gradient(w[i], x[i], y[i])
            w[i] = w[i] - alpha * (g + pull + rho * graph.degree(i) * w[i])
        new = {}
        for i, j in graph.arcs:
            new[j, i] = z[i, j] + (2 * rho if i < j else -2 * rho) * w[i]
            sent.append(new[j, i] - z[j, i])
        z = new
    return torch.stack(w)


def run(plan: recording.Plan, rounds: int, wires: list[tuple[int, int]], kind: type[Recorder] = Recorder) -> None:
    """The same protocol as the package runs it, recorded in memory."""
    task, messages = plan.task, plan.victim.messages(plan.graph, rounds if kind is Recorder else 0, wires)
    public = {"w0": task.init(torch.Generator().manual_seed(0))}
    shape: dict[str, Any] = {"messages": messages, "rows": messages, "dtype": task.dtype, "max_bytes": 1e11}
    recorder = kind(None, protocol="pdmm", task=task.spec, graph=plan.graph, layout=task.layout, rounds=rounds, public=public, **shape)
    x, y = plan.source.x[plan.rows].to(task.dtype), plan.source.y[plan.rows]
    with recorder:
        plan.victim.run(Problem(task, x, y), plan.graph, rounds, recorder, torch.Generator().manual_seed(0), wires)


class Warm(Recorder):
    """Lets a round write into memory that has been written before: the victim's own time, without the recorder's."""

    def send_many(self, round: int, src: Any, dst: Any, kind: str, secure: bool = False, row: Any = None) -> torch.Tensor:
        """Give the same rows in every round."""
        if not hasattr(self, "rows"):
            self.rows: dict[int, torch.Tensor] = {}
        return self.rows.setdefault(int(src[0] < dst[0]), torch.ones(len(src), self.columns[1] - self.columns[0], dtype=self.dtype))

    def state(self, *_: Any) -> None:
        """Keep nothing."""

    def end_round(self, *_: Any) -> None:
        """Keep nothing."""


def clock(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def against_loop() -> dict[str, object]:
    """60 nodes, logistic regression in the plane, every wire recorded (Yu 2023, section 4.3)."""
    plan = recording.plan(Scenario(nodes=60, data="gaussians", model="logistic", set={"alpha": 0.1, "z0": 0.0}))
    wires, rounds, ours, theirs = list(plan.graph.edges), 100, [], []
    for _ in range(5):
        ours.append(clock(lambda: run(plan, rounds, wires)))
        theirs.append(clock(lambda: loop(plan, rounds)))
    ratio = statistics.median(theirs) / statistics.median(ours)
    ms = 1e3 * statistics.median(ours) / rounds
    return {
        "bench": "victims/logistic-60",
        "ratio": round(ratio, 1),
        "unit": "times faster than a loop over nodes",
        "ms_per_round": round(ms, 3),
        "target": 10,
    }


def against_memory(recorded: int) -> dict[str, object]:
    """MLP 784-100-10, 30 nodes, degree about 4, one sample a node; the wires of `recorded` nodes recorded.

    Must move: w, S, T read and written, the gradient written and read; a recorded wire's two z read and written and two rows written.
    """
    plan = _mlp()
    wires = [e for e in plan.graph.edges if min(e) < recorded]
    state = 30 * plan.task.layout.size * 4
    least = 8 * state + len(wires) * 6 * plan.task.layout.size * 4
    one, two = torch.ones(4, state // 4), torch.ones(4, state // 4)
    rounds, moved, floor = 20, [], []
    for _ in range(7):
        floor.append(clock(lambda: two.copy_(one)) / (8 * state) * least)
        moved.append((clock(lambda: run(plan, rounds + 1, wires, Warm)) - clock(lambda: run(plan, 1, wires, Warm))) / rounds)
    ratio = statistics.median(moved) / statistics.median(floor)
    times = {"ms_per_round": round(1e3 * statistics.median(moved), 2), "floor_ms": round(1e3 * statistics.median(floor), 2)}
    return {
        "bench": f"victims/mlp-30, {len(wires)} wires recorded",
        "ratio": round(ratio, 2),
        "unit": "times the memory floor",
        **times,
        "target": 2,
    }


def _mlp() -> recording.Plan:
    scenario = Scenario(nodes=30, graph="er", data="faces", model="mlp", set={"hidden": 100})
    plan = recording.plan(scenario)
    generator = torch.Generator().manual_seed(0)
    ring = [(i, (i + k) % 30) for i in range(30) for k in (1, 7)]
    graph = type(plan.graph)(30, tuple(sorted({(min(e), max(e)) for e in ring})))
    x, y = torch.rand(30, 1, 28, 28, generator=generator), torch.randint(10, (30,), generator=generator)
    task = Task.build(TaskSpec("mlp", {"hidden": 100}, shape=(1, 28, 28), classes=10))
    source = type(plan.source)(x, y, "random", 10, 0, (), (0.5,), (0.5,))
    return recording.Plan(scenario, plan.victim, source, torch.arange(30)[:, None], task, graph, [], (0, task.layout.size), plan.random)


if __name__ == "__main__":
    for figure in (against_loop, lambda: against_memory(0), lambda: against_memory(1), lambda: against_memory(30)):
        print(json.dumps(figure()), flush=True)
