"""What ADMM over a graph shares: sums over neighbours, the dual that follows from the broadcasts, noise of density exp(-rate |n|)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from leakaudit.relations import Expression
from leakaudit.trace import Graph


class Around:
    """Sums over neighbours for stacked vectors (N, d)."""

    def __init__(self, graph: Graph, like: Tensor) -> None:
        near = [torch.tensor(n, device=like.device) for n in graph.neighbours]
        self._flat, self._start = (
            torch.cat(near),
            torch.tensor([0, *map(len, near[:-1])], device=like.device).cumsum(0),
        )
        self.degree = torch.tensor(
            [[float(len(n))] for n in near], dtype=like.dtype, device=like.device
        )  # (N, 1)

    def sum(self, v: Tensor) -> Tensor:
        """Return sum_j v_j over the neighbours j of each node."""
        return F.embedding_bag(self._flat, v.contiguous(), self._start, mode="sum")

    def both(self, v: Tensor) -> Tensor:
        """Return sum_j (v_i + v_j)."""
        return self.sum(v).addcmul_(self.degree, v)

    def apart(self, v: Tensor) -> Tensor:
        """Return sum_j (v_i - v_j)."""
        return self.sum(v).neg_().addcmul_(self.degree, v)


def both(graph: Graph, i: int, v: Mapping[int, Expression]) -> Expression:
    """Declare sum_j (v_i + v_j)."""
    return sum((v[j] for j in graph.neighbours[i]), start=graph.degree(i) * v[i])


def apart(graph: Graph, i: int, v: Mapping[int, Expression]) -> Expression:
    """Declare sum_j (v_i - v_j)."""
    return graph.degree(i) * v[i] - sum(v[j] for j in graph.neighbours[i])


def normal(like: Tensor, generator: Generator) -> Tensor:
    """Draw standard normal noise of the shape of `like`, on the generator's device."""
    return torch.randn(
        like.shape, generator=generator, dtype=like.dtype, device=generator.device
    ).to(like.device)


def radial(like: Tensor, generator: Generator) -> Tensor:
    """Draw one n a row of `like` (N, d) with density proportional to exp(-|n|): uniform direction, |n| of law Gamma(d, 1)."""
    direction = normal(like, generator)
    drawn = torch.empty(like.shape, dtype=like.dtype, device=generator.device).exponential_(
        generator=generator
    )
    length = drawn.sum(1, keepdim=True).to(like.device) / direction.norm(dim=1, keepdim=True)
    return direction.mul_(length)


def radial_std(size: int) -> float:
    """Return the standard deviation of each coordinate of that noise: E|n|^2 = d (d + 1), the same for all d coordinates."""
    return math.sqrt(size + 1)
