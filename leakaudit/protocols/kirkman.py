"""Partitions of the peers into groups in which no two peers meet twice: Algorithm 2 of SecureD-FL."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Generator

from leakaudit.errors import LeakauditError

Partition = list[tuple[int, ...]]
STEPS = 300  # groups that are tried for one partition, before everything is drawn anew
RESTARTS = 4000


def partitions(nodes: int, size: int, count: int, generator: Generator) -> list[Partition]:
    """Return `count` partitions of the nodes into groups of `size`, no two nodes twice in a group (s-cliques; triangles for size 3).

    A group takes its edges out of the complete graph; where a partition is stuck they are put back, which the paper leaves open.
    Raises LeakauditError where `size` does not divide `nodes`, where no such partitions can exist, or where none were found.
    """
    if not 2 <= size <= nodes or nodes % size:
        raise LeakauditError(
            f"secured: group_size {size} does not divide {nodes} peers into groups; use a divisor from 2 to {nodes}"
        )
    most = 1 if nodes == size or nodes < size * size else (nodes - 1) // (size - 1)
    if count > most:
        raise LeakauditError(
            f"secured: {nodes} peers in groups of {size} have at most {most} partitions, got partitions={count}"
        )
    draw, best = random.Random(int(torch.randint(2**62, (), generator=generator))), 0
    for _ in range(RESTARTS):
        found = _once(nodes, size, count, draw)
        if len(found) == count:
            return found
        best = max(best, len(found))
    raise LeakauditError(
        f"secured: {RESTARTS} draws found {best} partitions of {nodes} peers in groups of {size}; use partitions={best}"
    )


def _once(nodes: int, size: int, count: int, draw: random.Random) -> list[Partition]:
    """Return partitions until there are `count`, or no further one is found."""
    free = [set(range(nodes)) - {v} for v in range(nodes)]  # whom each node has not met
    found: list[Partition] = []
    while (
        len(found) < count
        and (partition := _complete(set(range(nodes)), free, size, draw, [STEPS])) is not None
    ):
        found.append(partition)
        for group in partition:
            for v in group:
                free[v] -= set(group)
    return found


def _complete(
    left: set[int], free: Sequence[set[int]], size: int, draw: random.Random, steps: list[int]
) -> Partition | None:
    """Return groups of everybody who is left, random ones, stepping back where one is stuck; None once that or the steps end.

    The node with the fewest possible partners comes first.
    """
    if not left:
        return []
    first = min(left, key=lambda v: (len(free[v] & left), draw.random()))
    around = sorted(free[first] & left)
    draw.shuffle(around)
    for others in combinations(around, size - 1):
        if steps[0] <= 0:
            return None
        if all(b in free[a] for a, b in combinations(others, 2)):
            steps[0] -= 1
            group = (first, *others)
            if (rest := _complete(left.difference(group), free, size, draw, steps)) is not None:
                return [tuple(sorted(group)), *rest]
    return None
