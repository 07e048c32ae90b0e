"""The adversaries of the nodes of a large network, where a list of all would be too long."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from leakaudit._util.jobs import IN_PROCESS, Pool
from leakaudit.core.errors import LeakauditError
from leakaudit.core.progress import step
from leakaudit.protocols.declared import Protocol
from leakaudit.theory.relations import know
from leakaudit.theory.relations.kkt import Array
from leakaudit.views.accounting.adversaries import MOST_SHARED, Threat, around, curious, how_many

# A network of 1,000 nodes has a million views of one curious node. If it averages with symmetric
# weights (`theory.relations.symmetric`), all of them are computed; of the curious nodes that are
# not neighbours, only the one that learns most about a node is returned.

# Curious nodes per job: seconds of computing, so that handing it over costs little. A choice.
TOGETHER = 8


def _learned(protocol: Protocol, nodes: Sequence[int]) -> list[tuple[list[int], Array]]:
    """Return the nodes that each curious node observes, and the squared mu of every node."""
    network = protocol.network
    assert network is not None
    found = []
    for node in nodes:
        known = know(protocol.start, curious(node)).known
        seen = network.observed(known, [node])
        if seen is None:
            raise LeakauditError(f"node {node} observes more than messages; use --as")
        found.append((seen, network.squared(seen)))
    return found


def lists_worst(protocol: Protocol, nodes: Sequence[int], size: int) -> bool:
    """Return whether `adversaries` returns only the worst distant curious node of each node."""
    many = size == 1 and how_many(protocol.graph, nodes, size) > MOST_SHARED
    return many and protocol.network is not None


def adversaries(
    protocol: Protocol, nodes: Sequence[int], size: int, executor: Pool = IN_PROCESS
) -> list[Threat]:
    """Return the adversaries of some nodes; of many, only the worst distant node of each."""
    graph = protocol.graph
    network = protocol.network
    if network is None or not lists_worst(protocol, nodes, size):
        shared = protocol.forward is not None or network is not None
        return around(graph, nodes, size, shared=shared)
    every = range(graph.nodes)
    parts = [every[at : at + TOGETHER] for at in range(0, graph.nodes, TOGETHER)]
    learned = np.empty((graph.nodes, graph.nodes))
    done = 0
    for found in executor.map(partial(_learned, protocol), parts):
        for seen, squared in found:
            step("curious nodes", done, graph.nodes)
            network.remember(seen, squared)
            learned[done] = squared
            done += 1
    step("curious nodes", done, graph.nodes)
    threats = around(graph, nodes, 0, shared=True)
    for node in nodes:
        from_distance = learned[:, node].copy()
        from_distance[[node, *graph.neighbours[node]]] = -1.0
        worst = int(from_distance.argmax())
        if from_distance[worst] >= 0:
            threats.append(Threat(node, "node", curious(worst)))
    return threats
