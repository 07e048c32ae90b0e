"""The network: who sits where, what the adversary hears, and what each node gave away."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from leakaudit.adversary import Adversary
from leakaudit.errors import LeakauditError
from leakaudit.rendering.html import svg
from leakaudit.rendering.html.shades import STEPS
from leakaudit.trace import Json

MOST, NUMBERED, CAREFUL = (
    150,
    60,
    40,
)  # nodes that are drawn, that bear numbers, and whose layout is the slow one
SIDE, ROOM = 420.0, 28.0

Point = tuple[float, float]


def parsed(adversary: str) -> Adversary | None:
    """Return who listens, None for a name that does not say."""
    try:
        return Adversary.parse(adversary)
    except (LeakauditError, ValueError):
        return None


def network(trace: Mapping[str, Json], adversary: str, steps: Mapping[int, int]) -> Markup | None:
    """Draw the network as one adversary hears it, None where it is not known or too large.

    steps: node -> what it gave away, of `shades.STEPS`; a node that is not there was not attacked.
    """
    links, nodes = trace.get("links"), trace["nodes"]
    if (
        not links
        or len(links) < trace["edges"]
        or not 1 < nodes <= MOST
        or max(map(max, links)) >= nodes
    ):
        return None
    who, at = parsed(adversary), _layout(nodes, links)
    small = nodes > NUMBERED
    parts = [_wire(edge, at, who, steps) for edge in links]
    parts += [_node(n, at[n], who, steps.get(n), small) for n in range(nodes)]
    heard = sum(_hears(who, edge) for edge in links)
    label = (
        f"Network of {nodes} nodes and {len(links)} wires. {adversary} hears {heard} of the wires."
    )
    return svg.drawing(SIDE, SIDE, parts, label)


def _hears(who: Adversary | None, edge: Sequence[int]) -> bool:
    """Whether something of this wire is heard."""
    i, j = edge
    if who is None:
        return False
    return who.observes(i, j) or who.observes(j, i)


def _wire(
    edge: Sequence[int], at: Sequence[Point], who: Adversary | None, steps: Mapping[int, int]
) -> Markup:
    """A wire that is heard is shaded by what the node at its worse end gave away."""
    (x1, y1), (x2, y2) = (at[n] for n in edge)
    if not _hears(who, edge):
        return svg.line(x1, y1, x2, y2, "wire deaf")
    return svg.line(x1, y1, x2, y2, f"wire heard s{max(steps.get(n, 0) for n in edge)}")


def _node(n: int, at: Point, who: Adversary | None, step: int | None, small: bool) -> Markup:
    corrupt = who is not None and n in who.corrupt
    said = "the adversary's own" if corrupt else "not attacked" if step is None else STEPS[step]
    radius = 5.0 if small else 14.0
    shape = "node own" if corrupt else "node unknown" if step is None else f"node s{step}"
    x, y = at
    title = f"node {n}: {said}"
    body = (
        svg.rectangle(x - radius, y - radius, 2 * radius, 2 * radius, shape, title)
        if corrupt
        else svg.circle(x, y, radius, shape, title)
    )
    ink = "number own" if corrupt else f"number s{step}" if step is not None else "number"
    return body if small else body + svg.text(x, y + 4.5, n, ink)


def _layout(nodes: int, links: Sequence[Sequence[int]]) -> list[Point]:
    """Places in pixels; the same for the same network."""
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from(tuple(edge) for edge in links)
    if nodes <= CAREFUL and nx.is_connected(graph):
        found = nx.kamada_kawai_layout(graph, pos=nx.circular_layout(graph))
    else:
        found = nx.spring_layout(graph, seed=0, iterations=100, k=1.6 / math.sqrt(nodes))
    xs, ys = ([float(found[n][k]) for n in range(nodes)] for k in (0, 1))
    return list(zip(_spread(xs), _spread(ys), strict=True))


def _spread(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    wide = high - low
    return [
        SIDE / 2 if wide < 1e-9 else ROOM + (v - low) / wide * (SIDE - 2 * ROOM) for v in values
    ]
