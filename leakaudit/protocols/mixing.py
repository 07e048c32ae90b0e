"""Mixing matrices of a graph, exact for declarations and as tensors for runs."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import torch
from torch import Tensor

from leakaudit.trace import Graph

Weights = Mapping[tuple[int, int], Fraction]


def metropolis(graph: Graph) -> Weights:
    """Return W_ij = 1 / (1 + max(d_i, d_j)) of every arc, and W_ii, which completes row i to one (Metropolis-Hastings weights)."""
    weights = {
        (i, j): Fraction(1, 1 + max(graph.degree(i), graph.degree(j))) for i, j in graph.arcs
    }
    own = {
        (i, i): 1 - sum((weights[i, j] for j in graph.neighbours[i]), Fraction(0))
        for i in range(graph.nodes)
    }
    return {**weights, **own}


def matrix(weights: Weights, like: Tensor) -> Tensor:
    """Return the weights as an (N, N) tensor of the dtype and device of `like`."""
    size = 1 + max(i for i, _ in weights)
    w = torch.zeros(size, size, dtype=torch.float64)
    for (i, j), value in weights.items():
        w[i, j] = float(value)
    return w.to(like)
