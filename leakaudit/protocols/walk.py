"""One node at a time: who is active when, drawn beforehand and public."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch
from torch import Generator, Tensor

from leakaudit.errors import LeakauditError
from leakaudit.trace import Graph

Activation: TypeAlias = Literal["walk", "iid"]


def draw(graph: Graph, count: int, generator: Generator, activation: Activation) -> Tensor:
    """Return (count,) nodes, the first uniform; then ``walk``: a uniform neighbour of the one before, ``iid``: any node, itself too."""
    drawn = torch.rand(
        count, generator=generator, dtype=torch.float64, device=generator.device
    ).tolist()
    at = [int(drawn[0] * graph.nodes)]
    for u in drawn[1:]:
        near = range(graph.nodes) if activation == "iid" else graph.neighbours[at[-1]]
        at.append(near[int(u * len(near))])
    return torch.tensor(at)


def read(public: Mapping[str, Tensor], name: str, count: int) -> list[int]:
    """Return the first `count` nodes of a schedule; raises LeakauditError where the public tensors hold none, or a shorter one."""
    if name not in public or len(public[name]) < count:
        raise LeakauditError(
            f"expected a public tensor {name!r} that says who is active, {count} nodes; draw it with schedule()"
        )
    nodes: list[int] = public[name][:count].tolist()
    return nodes
