"""The adversaries of a node: outsider, one tapped wire, each neighbour, coalitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Literal, TypeAlias

from leakaudit.adversary import Adversary
from leakaudit.errors import LeakauditError
from leakaudit.trace import Graph

ThreatKind: TypeAlias = Literal["outsider", "wire", "neighbour", "coalition", "named"]
KINDS: dict[ThreatKind, str] = {
    "outsider": "hears every wire",
    "wire": "taps one wire of the node, both ways",
    "neighbour": "is one neighbour, and hears its own traffic",
    "coalition": "is some other nodes together, and hears their traffic",
    "named": "as it was named",
}
MOST = 5000  # views that are bounded at once: minutes of computing. A choice


@dataclass(frozen=True)
class Threat:
    """An adversary, and the node whose data it is after.

    Attributes:
        node: Whose data is looked for.
        kind: Of `KINDS`.
        adversary: What it observes.
    """

    node: int
    kind: ThreatKind
    adversary: Adversary


def around(graph: Graph, nodes: Sequence[int], size: int) -> list[Threat]:
    """Return the adversaries of each of some nodes.

    A single neighbour is listed as such, not as a coalition.

    Args:
        graph: Of the network.
        nodes: To be looked at.
        size: Largest coalition of other nodes.

    Raises:
        LeakauditError: A node does not exist, or there are more than `MOST` views.
    """
    if size < 0:
        raise LeakauditError(f"--coalitions: expected at least 0, got {size}")
    for node in nodes:
        if not 0 <= node < graph.nodes:
            raise LeakauditError(
                f"there is no node {node}: the graph has nodes 0 to {graph.nodes - 1}"
            )
    views = _count(graph, nodes, size)
    if views > MOST:
        raise LeakauditError(
            f"{views} views of {len(nodes)} nodes are more than {MOST}; "
            "lower --coalitions, or choose nodes with --node"
        )
    threats: list[Threat] = []
    for node in nodes:
        threats.extend(_of(graph, node, size))
    return threats


def named(adversaries: Sequence[Adversary], nodes: Sequence[int] | None, last: int) -> list[Threat]:
    """Return adversaries that were named, for each of some nodes.

    Args:
        adversaries: As they were named.
        nodes: To be looked at; by default all of the first `last` that are not the adversary's own.
        last: How many nodes hold data.
    """
    threats = []
    for adversary in adversaries:
        targets = nodes
        if targets is None:
            targets = [node for node in range(last) if node not in adversary.corrupt]
        for node in targets:
            threats.append(Threat(node, "named", adversary))
    return threats


def _count(graph: Graph, nodes: Sequence[int], size: int) -> int:
    """Return at least how many adversaries `around` lists, before they are made."""
    coalitions = sum(comb(graph.nodes - 1, members) for members in range(1, size + 1))
    views = 0
    for node in nodes:
        views += 1 + 2 * graph.degree(node) + coalitions  # outsider; wires and neighbours
    return views


def _of(graph: Graph, node: int, size: int) -> Iterator[Threat]:
    near = graph.neighbours[node]
    yield Threat(node, "outsider", Adversary())
    for j in near:
        yield Threat(node, "wire", Adversary(hears=frozenset({(node, j), (j, node)})))
    for j in near:
        yield Threat(node, "neighbour", _curious(j))
    others = [other for other in range(graph.nodes) if other != node]
    for members in range(1, size + 1):
        for some in combinations(others, members):
            if members > 1 or some[0] not in near:
                yield Threat(node, "coalition", _curious(*some))


def _curious(*nodes: int) -> Adversary:
    return Adversary(hears="none", corrupt=frozenset(nodes))
