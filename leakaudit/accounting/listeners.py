"""The adversaries of a node: outsider, one tapped wire, each neighbour, coalitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

from leakaudit.adversary import Adversary
from leakaudit.errors import LeakauditError
from leakaudit.trace import Graph

KINDS = {
    "outsider": "hears every wire",
    "wire": "taps one wire of the node, both ways",
    "neighbour": "is one neighbour, and hears its own traffic",
    "coalition": "is some other nodes together, and hears their traffic",
    "named": "as it was named",
}
MOST = 5000  # views that are priced at once


@dataclass(frozen=True)
class Listener:
    """An adversary of one node.

    Attributes:
        node: Whose data is looked for.
        kind: Of `KINDS`.
        adversary: What it observes.
    """

    node: int
    kind: str
    adversary: Adversary


def around(graph: Graph, nodes: Sequence[int], size: int) -> list[Listener]:
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
    if missing := [n for n in nodes if not 0 <= n < graph.nodes]:
        raise LeakauditError(
            f"there is no node {missing[0]}: the graph has nodes 0 to {graph.nodes - 1}"
        )
    views = sum(1 + 2 * graph.degree(n) for n in nodes) + len(nodes) * sum(
        comb(graph.nodes - 1, k) for k in range(1, size + 1)
    )
    if views > MOST:
        raise LeakauditError(
            f"{views} views of {len(nodes)} nodes are more than {MOST}; "
            "lower --coalitions, or choose nodes with --node"
        )
    return [one for node in nodes for one in _of(graph, node, size)]


def named(
    adversaries: Sequence[Adversary], nodes: Sequence[int] | None, last: int
) -> list[Listener]:
    """Return adversaries that were named, for each of some nodes.

    Args:
        adversaries: As they were named.
        nodes: To be looked at; by default all of the first `last` that are not the adversary's own.
        last: How many nodes hold data.
    """
    return [
        Listener(node, "named", who)
        for who in adversaries
        for node in (
            nodes if nodes is not None else [n for n in range(last) if n not in who.corrupt]
        )
    ]


def _of(graph: Graph, node: int, size: int) -> Iterator[Listener]:
    near = graph.neighbours[node]
    yield Listener(node, "outsider", Adversary())
    for j in near:
        yield Listener(node, "wire", Adversary(hears=frozenset({(node, j), (j, node)})))
    for j in near:
        yield Listener(node, "neighbour", _curious(j))
    others = [n for n in range(graph.nodes) if n != node]
    for k in range(1, size + 1):
        for some in combinations(others, k):
            if k > 1 or some[0] not in near:
                yield Listener(node, "coalition", _curious(*some))


def _curious(*nodes: int) -> Adversary:
    return Adversary(hears="none", corrupt=frozenset(nodes))
