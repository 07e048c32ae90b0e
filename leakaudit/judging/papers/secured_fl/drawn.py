"""SecureD-FL: the figures that consist of groups, and the algorithm that constructs them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, pairwise

from leakaudit.judging.papers.drawing import draws, exact, of_seeds
from leakaudit.judging.papers.measured import MeasuredPanel
from leakaudit.judging.papers.runs import fresh, run
from leakaudit.protocols.kirkman import Partition, longest, partitions, upper_limit

PEERS = 9
SIZE = 3
TURNS = 3  # how often the partitions are used one after the other when meetings are counted
# Peers, size of a group and number of partitions of the designs of Lemma IV.1.
DESIGNS = ((9, 3, 4), (15, 3, 7), (16, 4, 5))
# Sizes of the networks of Figure 6 by size of a group; fours need a search of many more sets.
NETWORKS = {3: (9, 12, 15, 18, 21, 24, 27), 4: (16, 20, 24, 28)}
RUNS = 200  # of each size, of which the best counts
ATTEMPTS = 200  # random sets that are no clique before all sets are looked through


def _meetings(found: Sequence[Partition], turns: int) -> dict[tuple[int, int], list[int]]:
    """Return the iterations in which each pair shares a group: partition i mod k in iteration i."""
    met: dict[tuple[int, int], list[int]] = {}
    for i in range(turns * len(found)):
        for group in found[i % len(found)]:
            for pair in combinations(group, 2):
                met.setdefault(pair, []).append(i)
    return met


def _gap(found: Sequence[Partition]) -> int:
    """Return the smallest number of iterations between two meetings of the same pair."""
    apart = []
    for at in _meetings(found, TURNS).values():
        apart += [later - earlier for earlier, later in pairwise(at)]
    return min(apart)


@draws("secured-fl/fig1")
def _fig1(_scale: str, _seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    found = longest(PEERS, SIZE, RUNS, fresh())
    met = _meetings(found, 1)
    pairs = list(combinations(range(PEERS), 2))
    meetings = [float(len(met.get(pair, ()))) for pair in pairs]
    numbers = range(1, len(pairs) + 1)

    def one(y: str, title: str, value: float) -> MeasuredPanel:
        return MeasuredPanel(y, title, "users", (exact("found", (PEERS,), (value,)),))

    return (
        one("partitions", "partitions", len(found)),
        one("gap", "iterations between two meetings of a pair", _gap(found)),
        MeasuredPanel(
            "meetings",
            "partitions in which a pair shares a group",
            "pair of users",
            (exact("found", numbers, meetings),),
        ),
    )


@draws("secured-fl/fig2")
def _fig2(_scale: str, _seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    settings = {"rho": 0.8, "iterations": 1, "partitions": 4, "local_steps": 1}
    done = run(victim="secured", nodes=PEERS, graph="complete", rounds=1, set=settings)
    (table,) = done.trace.messages
    group: dict[int, int] = {}
    for k, members in enumerate(done.trace.public["groups"][1].tolist()):
        group |= dict.fromkeys(members, k)
    counts = {(kind, same): [0.0] * PEERS for kind in table.kinds for same in (True, False)}
    columns = (table.src.tolist(), table.dst.tolist(), table.kind.tolist())
    for src, dst, kind in zip(*columns, strict=True):
        counts[table.kinds[kind], group[src] == group[dst]][dst] += 1
    peers = range(1, PEERS + 1)
    lines = []
    for (kind, same), values in counts.items():
        what = {"y": "y", "sum": "partial z sums"}[kind]
        where = "its own group" if same else "other groups"
        lines.append(exact(f"{what} from {where}", peers, values))
    said = "messages that a peer receives in one iteration"
    return (MeasuredPanel("messages", said, "peer", lines),)


@draws("secured-fl/lemma4.1")
def _lemma_4_1(_scale: str, _seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    classes = []
    gaps = []
    for nodes, size, count in DESIGNS:
        classes.append(float(count))
        gaps.append(float(_gap(partitions(nodes, size, count, fresh(1)))))
    names = [f"{nodes} in {nodes // size} groups of {size}" for nodes, size, _ in DESIGNS]
    lines = (exact("gap", names, gaps), exact("parallel classes", names, classes))
    return (MeasuredPanel("gap", "gap, and parallel classes", "design", lines),)


# Algorithm 2 removes the edges of a group when it finds it, and never puts them back. A random set
# that is no clique of the remaining graph is drawn again; after many, all sets are looked through.
def _as_printed(nodes: int, size: int, draw: random.Random) -> list[Partition]:
    """Run Algorithm 2 until the remaining peers contain no clique."""
    free = [set(range(nodes)) - {v} for v in range(nodes)]
    found: list[Partition] = []
    partition: Partition = []
    left = list(range(nodes))
    while (group := _clique(left, free, size, draw)) is not None:
        partition.append(group)
        for v in group:
            free[v] -= set(group)
        left = [v for v in left if v not in group]
        if not left:
            found.append(partition)
            partition = []
            left = list(range(nodes))
    return found


def _clique(
    left: list[int], free: list[set[int]], size: int, draw: random.Random
) -> tuple[int, ...] | None:
    """Return a random clique of the remaining peers, None if there is none."""

    def joined(group: Sequence[int]) -> bool:
        return all(b in free[a] for a, b in combinations(group, 2))

    for _ in range(ATTEMPTS):
        group = tuple(draw.sample(left, size))
        if joined(group):
            return group
    every = list(filter(joined, combinations(left, size)))
    return draw.choice(every) if every else None


def _best(nodes: int, size: int, runs: int, seed: int) -> list[Partition]:
    draw = random.Random(seed)
    return max((_as_printed(nodes, size, draw) for _ in range(runs)), key=len)


@draws("secured-fl/algorithm2")
def _algorithm2(_scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    peers = (9, 15)
    sizes = []
    twice = []
    for seed in seeds:
        found = [_best(nodes, SIZE, RUNS, seed) for nodes in peers]
        sizes.append([float(len(partition)) for partition in found])
        met = [_meetings(partition, 1).values() for partition in found]
        twice.append([float(sum(len(at) > 1 for at in of_one)) for of_one in met])
    name = f"Algorithm 2 as printed, best of {RUNS} runs"
    pairs = "pairs that share a group more than once"
    return (
        MeasuredPanel("partitions", "partitions", "peers", (of_seeds(name, peers, seeds, sizes),)),
        MeasuredPanel("twice", pairs, "peers", (of_seeds(name, peers, seeds, twice),)),
    )


@draws("secured-fl/fig6")
def _fig6(_scale: str, seeds: Sequence[int]) -> Sequence[MeasuredPanel]:
    panels = []
    for size, peers in NETWORKS.items():
        printed = []
        searched = []
        for seed in seeds:
            printed.append([float(len(_best(n, size, RUNS, seed))) for n in peers])
            searched.append([float(len(longest(n, size, RUNS, fresh(seed)))) for n in peers])
        limit = [float(upper_limit(n, size)) for n in peers]
        lines = (
            of_seeds(f"groups of {size}, Algorithm 2 as printed", peers, seeds, printed),
            of_seeds(f"groups of {size}, our search", peers, seeds, searched),
            exact(f"groups of {size}, upper limit", peers, limit),
        )
        panels.append(MeasuredPanel("partitions", "parallel classes", "peers", lines))
    return panels
