"""DP-dKM's tables, which our copy of the text has lost: operators, and sensitivity by topology."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leakaudit.core.errors import LeakauditError
from leakaudit.judging.papers.dp_dkm.claims import AGENTS, RECORDS, sensitivity
from leakaudit.judging.papers.drawing import draws, exact, of_seeds
from leakaudit.judging.papers.measured import MeasuredPanel
from leakaudit.judging.papers.runs import fresh, run
from leakaudit.protocols import optimum, topology
from leakaudit.protocols.released import shrink

GRAPHS = ("complete", "ring", "star")
ITERATIONS = (1, 2, 5, 10, 20, 50, 100)
RELAXED = 0.5  # alpha_k
FEW = 50  # iterations of the panels over N and M
OPERATORS = {"forward": "gd", "forward-backward": "pgd", "Douglas-Rachford": "dr"}
L1 = 0.05
STEP = 0.2  # gamma
FEWER, MORE = 8, 1000  # records of an agent: with few, the agents' own optima differ


@draws("dp-dkm/table1")
def _operators(scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    lines = []
    for samples in (FEWER, MORE):
        runs = [
            [_distance(operator, samples, seed) for operator in OPERATORS.values()]
            for seed in seeds
        ]
        lines.append(of_seeds(f"{samples} records an agent", [*OPERATORS], seeds, runs))
    title = "relative error of the average at the end"
    return [MeasuredPanel("error", title, "operator", lines, logarithmic=True)]


def _distance(operator: str, samples: int, seed: int) -> float:
    """Return |average - optimum| / |optimum| after a long run without noise."""
    l1 = L1 if operator != "gd" else 0.0
    done = run(
        victim="dkm",
        nodes=AGENTS,
        graph="complete",
        rounds=3000,
        data=f"regression:{samples * AGENTS},4,0.5",
        samples=samples,
        model="linear",
        seed=seed,
        wires="none",
        set={
            "operator": operator,
            "l1": l1,
            "gamma": STEP,
            "alpha": RELAXED,
            "fade": 20.0,
            "bias": False,
        },
    )
    best = optimum.of(done.problem, l1)
    if best is None:
        raise LeakauditError("dp-dkm/table1: expected data with one optimum")
    average = done.truth.states["w"][-1].double().mean(0)
    if operator == "dr":  # its model is prox(x)
        average = shrink(done.truth.states["w"][-1].double(), STEP * l1).mean(0)
    return float((average - best).norm() / best.norm())


@draws("dp-dkm/table2")
def _topologies(scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    def bound(kind: str, iterations: int, agents: int, records: int) -> float:
        graph = topology.make(kind, agents, fresh())
        return sensitivity(graph, [RELAXED] * iterations, records)

    def panel(
        name: str, axis: str, places: Sequence[int], sizes: Callable[[int], tuple[int, int, int]]
    ) -> MeasuredPanel:
        lines = [exact(kind, places, [bound(kind, *sizes(at)) for at in places]) for kind in GRAPHS]
        title = "bound of Theorem 1 over B"
        return MeasuredPanel(name, title, axis, lines, logarithmic=name == "iterations")

    return [
        panel("iterations", "iterations", ITERATIONS, lambda k: (k, AGENTS, RECORDS)),
        panel("records", "records of an agent, N", (1, 10, 100, 1000), lambda n: (FEW, AGENTS, n)),
        panel("agents", "agents, M", (4, 8, 16, 32), lambda m: (FEW, m, RECORDS)),
    ]
