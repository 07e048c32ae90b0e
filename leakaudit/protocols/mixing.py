"""Mixing matrices of a graph, exact for declarations and as tensors for runs."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import torch
from torch import Tensor

from leakaudit.core.trace import Graph

Weights = Mapping[tuple[int, int], Fraction]


def metropolis(graph: Graph) -> Weights:
    """Return the Metropolis-Hastings weights of a graph.

    W_ij = 1 / (1 + max(d_i, d_j)) for neighbours i and j of degrees d_i and d_j, and W_ii completes
    row i to one. The matrix is symmetric, so averaging preserves the mean.
    """
    weights = {
        (i, j): Fraction(1, 1 + max(graph.degree(i), graph.degree(j))) for i, j in graph.arcs
    }
    own = {}
    for i, near in enumerate(graph.neighbours):
        own[i, i] = 1 - sum((weights[i, j] for j in near), Fraction(0))
    return {**weights, **own}


def matrix(weights: Weights, like: Tensor) -> Tensor:
    """Return the weights as a tensor (N, N)."""
    size = 1 + max(i for i, _ in weights)
    w = torch.zeros(size, size, dtype=torch.float64)
    for (i, j), value in weights.items():
        w[i, j] = float(value)
    return w.to(like)
