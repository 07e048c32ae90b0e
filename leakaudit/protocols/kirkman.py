"""Partitions of peers into groups such that no two meet twice (SecureD-FL, Algorithm 2)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Generator

from leakaudit.core.errors import LeakauditError

Partition = list[tuple[int, ...]]
# A group is a clique of the complete graph, and no edge is used twice. Groups are drawn at random,
# one after the other. If a partition cannot be completed, the search backtracks; if that takes too
# long, or if the partitions so far allow no further one, everything is drawn anew.

# Both limits are choices: small enough for a search to end within seconds; drawing anew is cheap
# compared with backtracking from a start that cannot be completed.
STEPS = 300  # groups to try for one partition before everything is drawn anew
RESTARTS = 4000


def partitions(nodes: int, size: int, count: int, generator: Generator) -> list[Partition]:
    """Return partitions of the nodes into groups such that no two nodes share a group twice.

    Edges of a partition that cannot be completed are put back, which the paper does not specify.
    """
    if not 2 <= size <= nodes or nodes % size:
        raise LeakauditError(
            f"secured: group_size {size} does not divide {nodes} peers into groups; "
            f"use a divisor from 2 to {nodes}"
        )
    most = upper_limit(nodes, size)
    if count > most:
        raise LeakauditError(
            f"secured: {nodes} peers in groups of {size} have at most {most} partitions, "
            f"got partitions={count}"
        )
    draw = random.Random(int(torch.randint(2**62, (), generator=generator)))
    best = 0
    for _ in range(RESTARTS):
        found = _once(nodes, size, count, draw)
        if len(found) == count:
            return found
        best = max(best, len(found))
    raise LeakauditError(
        f"secured: {RESTARTS} draws found {best} partitions of {nodes} peers in groups of {size}; "
        f"use partitions={best}"
    )


def upper_limit(nodes: int, size: int) -> int:
    """Return a number of partitions that no choice exceeds."""
    # Each partition uses size - 1 of the nodes - 1 edges of a node. A second partition requires at
    # least `size` groups, since the members of a group must go to different ones.
    most = (nodes - 1) // (size - 1)
    return most if nodes >= size * size else 1


def longest(nodes: int, size: int, draws: int, generator: Generator) -> list[Partition]:
    """Return the largest set of partitions that some draws of the same search find."""
    draw = random.Random(int(torch.randint(2**62, (), generator=generator)))
    most = upper_limit(nodes, size)
    best: list[Partition] = []
    for _ in range(draws):
        best = max(best, _once(nodes, size, most, draw), key=len)
        if len(best) == most:
            break
    return best


def _once(nodes: int, size: int, count: int, draw: random.Random) -> list[Partition]:
    """Return partitions until there are `count`, or until no further one is found."""
    free = [set(range(nodes)) - {v} for v in range(nodes)]  # the nodes that each has not met
    found: list[Partition] = []
    while len(found) < count:
        partition = _complete(set(range(nodes)), free, size, draw, [STEPS])
        if partition is None:
            break
        found.append(partition)
        for group in partition:
            for v in group:
                free[v] -= set(group)
    return found


def _complete(
    left: set[int], free: Sequence[set[int]], size: int, draw: random.Random, steps: list[int]
) -> Partition | None:
    """Return random groups of all remaining nodes; None if none exist or the steps are used up.

    The node with the fewest possible partners chooses first. If a group prevents the others from
    being completed, the next one is tried.
    """
    if not left:
        return []
    first = min(left, key=lambda v: (len(free[v] & left), draw.random()))
    around = sorted(free[first] & left)
    draw.shuffle(around)
    for others in combinations(around, size - 1):
        if steps[0] <= 0:
            return None
        if not all(b in free[a] for a, b in combinations(others, 2)):
            continue
        steps[0] -= 1
        group = (first, *others)
        rest = _complete(left.difference(group), free, size, draw, steps)
        if rest is not None:
            return [tuple(sorted(group)), *rest]
    return None
