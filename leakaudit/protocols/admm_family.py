"""Shared parts of ADMM over a graph: sums over neighbours, updates, duals, and radial noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from leakaudit.core.claim import NormAssumption
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph
from leakaudit.protocols.blocks import blocks
from leakaudit.protocols.local import normal
from leakaudit.theory.relations import Expression, Number, Relations

if TYPE_CHECKING:
    from leakaudit.protocols.simulation import Simulation
    from leakaudit.tasks.task import Task

# In decentralised ADMM every node broadcasts one vector v_i per round. The dual lam_i starts at
# zero and is never sent (E_i neighbours j, penalty rho):
#
#    w_i   <- argmin f_i(w) - pull_i'w + weight_i/2 |w|^2,  pull_i = rho sum_j (v_i + v_j) - 2 lam_i
#    lam_i <- lam_i + rho/2 sum_j (v_i - v_j)
#
# An update is exact, or f_i is replaced by its tangent plus a quadratic term. Each operation comes
# in two versions: a step of a run on stacked vectors (N, d), and its declaration for one node.

# Largest second derivative of the logistic loss log(1 + e^-z), s (1 - s) at s = 1/2. Several papers
# state their claims for logistic regression.
LOGISTIC_CURVATURE = 0.25


class NeighbourSums:
    """Sums over neighbours for stacked vectors (N, d), at a cost per edge rather than N^2.

    Attributes:
        degree: Number of neighbours of each node, (N, 1).
    """

    def __init__(self, graph: Graph, like: Tensor) -> None:
        near = [torch.tensor(n, device=like.device) for n in graph.neighbours]
        starts = torch.tensor([0, *map(len, near[:-1])], device=like.device)
        degrees = [[float(len(n))] for n in near]
        self._flat = torch.cat(near)
        self._start = starts.cumsum(0)
        self.degree = torch.tensor(degrees, dtype=like.dtype, device=like.device)

    def sum(self, v: Tensor) -> Tensor:
        """Return sum_j v_j over the neighbours j of each node."""
        return F.embedding_bag(self._flat, v.contiguous(), self._start, mode="sum")

    def both(self, v: Tensor) -> Tensor:
        """Return sum_j (v_i + v_j)."""
        return self.sum(v).addcmul_(self.degree, v)

    def apart(self, v: Tensor) -> Tensor:
        """Return sum_j (v_i - v_j)."""
        return self.sum(v).neg_().addcmul_(self.degree, v)


class NodeDuals:
    """The duals lam_i of a run, (N, d), and what its rounds do with them."""

    def __init__(self, sim: Simulation) -> None:
        like = sim.common
        self.recorder = sim.recorder
        self.around = NeighbourSums(sim.graph, like)
        self.lam = torch.zeros_like(like)
        self._pull = torch.empty_like(like)

    def pull(self, v: Tensor, penalty: float) -> Tensor:
        """Return penalty sum_j (v_i + v_j) - 2 lam_i, (N, d), until the next call."""
        for part in blocks(v):
            ours = self.around.both(v[:, part]).mul_(penalty)
            torch.sub(ours, self.lam[:, part], alpha=2, out=self._pull[:, part])
        return self._pull

    def move(self, t: int, v: Tensor, size: float) -> None:
        """Add size sum_j (v_i - v_j) to lam in round t."""
        for part in blocks(v):
            self.lam[:, part].add_(self.around.apart(v[:, part]), alpha=size)
        self.recorder.state("lam", t, self.lam)


def own_steps(name: str, task: Task, graph: Graph, alpha: float, rho: float) -> None:
    """Reject gradient steps that diverge on l2/2 |w|^2 + rho E_i/2 |w|^2 while neighbours rest."""
    most = alpha * (task.l2 + rho * max(map(graph.degree, range(graph.nodes))))
    if most >= 2:
        raise LeakauditError(
            f"{name}: expected alpha (l2 + rho E_i) < 2 (from 2 on, a node's steps diverge), "
            f"got {most:g}; lower alpha"
        )


def linearised(g: Tensor, w: Tensor, pull: Tensor, curvature: float, total: Tensor) -> None:
    """Replace gradients by the models after an update with the linearised loss.

    The minimiser of g'v + curvature/2 |v - w|^2 - pull'v + weight/2 |v|^2 is
    (curvature w + pull - g) / (curvature + weight).

    Args:
        g: Gradients at w, (N, d); overwritten with the result.
        w: Models, (N, d).
        pull: The linear term from neighbours and duals, (N, d).
        total: curvature + weight of each node, (N, 1).
    """
    for part in blocks(g):
        torch.sub(pull[:, part], g[:, part], out=g[:, part])
        g[:, part].add_(w[:, part], alpha=curvature).div_(total)


def both(graph: Graph, i: int, v: Mapping[int, Expression]) -> Expression:
    """Declare sum_j (v_i + v_j)."""
    return sum((v[j] for j in graph.neighbours[i]), start=graph.degree(i) * v[i])


def apart(graph: Graph, i: int, v: Mapping[int, Expression]) -> Expression:
    """Declare sum_j (v_i - v_j)."""
    return graph.degree(i) * v[i] - sum(v[j] for j in graph.neighbours[i])


def declare_duals(
    p: Relations,
    graph: Graph,
    lam: Mapping[int, Expression],
    v: Mapping[int, Expression],
    size: Number,
) -> dict[int, Expression]:
    """Declare lam_i + size sum_j (v_i - v_j) of every node as its new dual."""
    return {i: p.state("lam", i, eq=lam[i] + size * apart(graph, i, v)) for i in lam}


def declare_prox(
    p: Relations,
    i: int,
    weight: Number,
    pull: Expression,
    name: str = "w",
    std: float = 0.0,
) -> tuple[Expression, Expression]:
    """Declare an exact update: the gradient of f_i(w) + n'w - pull'w + weight/2 |w|^2 is zero.

    Args:
        std: Standard deviation per coordinate of n, `radial` noise; 0 for no noise.
    """
    new = p.state(name, i)
    if std:
        noise = p.noise("n", std, i, law="laplace")
        known = p.grad(i, at=new) + noise
    else:
        known = p.grad(i, at=new)
    p.relate(weight * new, pull - known)
    return new, known


def radial(like: Tensor, generator: Generator) -> Tensor:
    """Draw vectors n with density proportional to exp(-|n|), independently for every row.

    The direction is uniform. The length has the density r^(d-1) e^-r / Gamma(d), so it is the sum
    of d exponential variables.

    Args:
        like: Tensor (N, d) with the shape, dtype and device of the noise.
    """
    direction = normal(like, 1.0, generator)
    drawn = torch.empty(like.shape, dtype=like.dtype, device=generator.device)
    drawn.exponential_(generator=generator)
    length = drawn.sum(1, keepdim=True).to(like.device) / direction.norm(dim=1, keepdim=True)
    return direction.mul_(length)


def radial_std(size: int) -> float:
    """Return the standard deviation of each coordinate of `radial` noise.

    E|n|^2 = d (d + 1), and all d coordinates contribute equally.
    """
    return math.sqrt(size + 1)


def declared_std(victim: str, public: Mapping[str, Tensor]) -> float:
    """Return `radial_std` for the model of a trace."""
    return radial_std(declared_size(victim, public))


def declared_size(victim: str, public: Mapping[str, Tensor]) -> int:
    """Return the number of parameters of a trace's model.

    Args:
        public: Public tensors of the trace, with the initial model ``w0``.
    """
    if "w0" not in public:
        raise LeakauditError(
            f"{victim}: its relations depend on the size of the model; "
            "expected the public tensor 'w0'"
        )
    return len(public["w0"])


# What the ADMM claims assume of linear models.
UNIT = NormAssumption("features and derivatives of the loss, hence gradients, have norm at most", 1)


def assumed_of_losses(curvature: float = LOGISTIC_CURVATURE) -> str:
    """Return a sentence with the assumption of the ADMM claims about the curvature of losses."""
    return f"second derivatives of the loss at most {curvature:g}"
