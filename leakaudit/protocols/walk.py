"""The schedule of protocols with one active node at a time, drawn in advance and public."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch
from torch import Generator, Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph

Activation: TypeAlias = Literal["walk", "iid"]


def draw(graph: Graph, count: int, generator: Generator, activation: Activation) -> Tensor:
    """Draw the active nodes; the first is uniform.

    Args:
        activation: ``walk`` continues with a uniform neighbour of the previous node, ``iid`` with
            any node, including the same one.

    Returns:
        The nodes, (count,).
    """
    uniform = torch.rand(count, generator=generator, dtype=torch.float64, device=generator.device)
    first, *others = uniform.tolist()
    at = [int(first * graph.nodes)]
    for u in others:
        near = range(graph.nodes) if activation == "iid" else graph.neighbours[at[-1]]
        at.append(near[int(u * len(near))])
    return torch.tensor(at)


def read(public: Mapping[str, Tensor], name: str, count: int) -> list[int]:
    """Return the first nodes of a schedule."""
    if name not in public or len(public[name]) < count:
        raise LeakauditError(
            f"expected a public tensor {name!r} with the active nodes, {count} of them; "
            "draw it with schedule()"
        )
    nodes: list[int] = public[name][:count].tolist()
    return nodes
