"""The adversaries of a node: outsider, one observed channel, each neighbour, coalitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Literal, TypeAlias

from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph

ThreatKind: TypeAlias = Literal["outsider", "wire", "neighbour", "node", "coalition", "named"]
KINDS: dict[ThreatKind, str] = {
    "outsider": "observes every channel",
    "wire": "observes one channel of the node, in both directions",
    "neighbour": "is one neighbour, and observes its own messages",
    "node": "is one node that is not a neighbour, and observes its own messages",
    "coalition": "is several other nodes, and observes their messages",
    "named": "as specified",
}
# Most views that are bounded at once: minutes of computing, one by one or if they share work. The
# second admits all pairs of curious nodes among 100. Choices.
MOST = 5000
MOST_SHARED = 600_000


@dataclass(frozen=True)
class Threat:
    """An adversary, and the node that it targets."""

    node: int  # the node that owns the data
    kind: ThreatKind
    adversary: Adversary


def around(graph: Graph, nodes: Sequence[int], size: int, *, shared: bool = False) -> list[Threat]:
    """Return the adversaries of each of some nodes.

    A single node is a neighbour or another node, not a coalition.
    """
    if size < 0:
        raise LeakauditError(f"--coalitions: expected at least 0, got {size}")
    for node in nodes:
        graph.require(node)
    views = how_many(graph, nodes, size)
    most = MOST_SHARED if shared else MOST
    if views > most:
        why = "" if shared else ", because the views of this protocol are bounded one by one"
        raise LeakauditError(
            f"expected at most {most} views{why}; got {views} for {len(nodes)} nodes; "
            "lower --coalitions, or select nodes with --node or adversaries with --as"
        )
    threats: list[Threat] = []
    for node in nodes:
        threats.extend(_of(graph, node, size))
    return threats


def named(adversaries: Sequence[Adversary], nodes: Sequence[int] | None, last: int) -> list[Threat]:
    """Return specified adversaries, for each of some nodes."""
    threats = []
    for adversary in adversaries:
        targets = nodes
        if targets is None:
            targets = [node for node in range(last) if node not in adversary.corrupt]
        for node in targets:
            threats.append(Threat(node, "named", adversary))
    return threats


def how_many(graph: Graph, nodes: Sequence[int], size: int) -> int:
    """Return a lower limit of the number of adversaries that `around` returns."""
    size = min(size, graph.nodes - 1)  # no coalition has more members than there are other nodes
    coalitions = sum(comb(graph.nodes - 1, members) for members in range(1, size + 1))
    views = 0
    for node in nodes:
        views += 1 + 2 * graph.degree(node) + coalitions  # outsider; channels and neighbours
    return views


def _of(graph: Graph, node: int, size: int) -> Iterator[Threat]:
    near = graph.neighbours[node]
    yield Threat(node, "outsider", Adversary())
    for j in near:
        yield Threat(node, "wire", Adversary(hears=frozenset({(node, j), (j, node)})))
    for j in near:
        yield Threat(node, "neighbour", curious(j))
    others = [other for other in range(graph.nodes) if other != node]
    for members in range(1, min(size, len(others)) + 1):
        for some in combinations(others, members):
            if members > 1:
                yield Threat(node, "coalition", curious(*some))
            elif some[0] not in near:
                yield Threat(node, "node", curious(*some))


def curious(*nodes: int) -> Adversary:
    """Return the adversary that controls some nodes, and observes only their messages."""
    return Adversary(hears="none", corrupt=frozenset(nodes))
