"""The PDMM thesis: the random geometric graphs that its networks are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Generator

from leakaudit.judging.papers.drawing import DrawnItem, DrawnLine, DrawnPanel, draws
from leakaudit.judging.papers.runs import fresh

NODES = (20, 60, 100)  # the thesis' networks have 60 and 100 nodes
GRAPHS = {"small": 2_000, "paper": 20_000}  # of each size
TOGETHER = 500  # graphs whose matrices are multiplied at once


def connected(
    nodes: int, radius: float, graphs: int, generator: Generator, *, torus: bool = False
) -> int:
    """Count the connected ones of random geometric graphs on the unit square, or on a torus."""
    found = 0
    for start in range(0, graphs, TOGETHER):
        some = min(TOGETHER, graphs - start)
        places = torch.rand(some, nodes, 2, generator=generator, dtype=torch.float64)
        apart = (places[:, :, None] - places[:, None]).abs()
        if torus:
            apart = torch.minimum(apart, 1 - apart)
        reached = (apart.norm(dim=-1) < radius).float()  # a node reaches itself
        for _ in range(math.ceil(math.log2(nodes))):  # then paths twice as long
            reached = (reached @ reached).clamp_(max=1)
        found += int((reached[:, 0] > 0).all(1).sum())
    return found


@draws("pdmm-thesis/fig3.1")
def _fig_3_1(scale: str, seeds: Sequence[int]) -> DrawnItem:
    graphs = GRAPHS[scale]
    shares: dict[bool, list[list[float]]] = {False: [], True: []}
    for seed in seeds:
        for torus, of_all in shares.items():
            generator = fresh(seed)
            of_seed = []
            for nodes in NODES:
                radius = math.sqrt(math.log(nodes) / nodes)
                found = connected(nodes, radius, graphs, generator, torus=torus)
                of_seed.append(found / graphs)
            of_all.append(of_seed)
    least = [1 - 1 / nodes**2 for nodes in NODES]
    lines = (
        DrawnLine("radius sqrt(log N / N) on a square", NODES, runs=shares[False]),
        DrawnLine("radius sqrt(log N / N) on a torus", NODES, runs=shares[True]),
        DrawnLine("1 - 1 / N^2", NODES, least),
    )
    return DrawnItem((DrawnPanel("connected", "share of connected graphs", "nodes N", lines),))
