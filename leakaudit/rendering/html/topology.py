"""The network: who sits where, what the adversary hears, and what each node gave away."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from leakaudit.adversary import Adversary
from leakaudit.errors import LeakauditError
from leakaudit.rendering.html import svg
from leakaudit.rendering.html.shades import STEPS
from leakaudit.results.model import TraceSummary, given

MOST = 150  # nodes that are drawn; more cannot be told apart on a page
NUMBERED = 60  # nodes that bear numbers
CAREFUL = 40  # nodes whose layout is the slow one, which takes cubic time
SIDE = 420.0  # of the drawing, in pixels
ROOM = 28.0  # around the nodes
SMALL_NODE = 5.0  # radius of a node without a number
NODE = 14.0  # the same with one

Point = tuple[float, float]
Edge = Sequence[int]


def parsed(adversary: str) -> Adversary | None:
    """Read the name of an adversary.

    Args:
        adversary: As it stands in a record.

    Returns:
        Who listens; None for a name that does not say.
    """
    try:
        return Adversary.parse(adversary)
    except (LeakauditError, ValueError):
        return None


def network(trace: TraceSummary, adversary: str, steps: Mapping[int, int]) -> Markup | None:
    """Draw the network as one adversary hears it.

    Args:
        trace: The network.
        adversary: Who hears.
        steps: What each node gave away, a place in `shades.STEPS`; a node that is not there was not
            attacked.

    Returns:
        The drawing; None if the network is not known in full, or too large.
    """
    links = given(trace.links, ())
    nodes = trace.nodes
    if not links or len(links) < trace.edges or not 1 < nodes <= MOST:
        return None
    if max(map(max, links)) >= nodes:
        return None
    who = parsed(adversary)
    at = _layout(nodes, links)
    small = nodes > NUMBERED
    parts = []
    for edge in links:
        parts.append(_wire(edge, at, who, steps))
    for n in range(nodes):
        parts.append(_node(n, at[n], who, steps.get(n), small))
    heard = sum(_hears(who, edge) for edge in links)
    label = (
        f"Network of {nodes} nodes and {len(links)} wires. {adversary} hears {heard} of the wires."
    )
    return svg.drawing(SIDE, SIDE, parts, label)


def _hears(who: Adversary | None, edge: Edge) -> bool:
    """Whether something of this wire is heard."""
    if who is None:
        return False
    i, j = edge
    return who.observes(i, j) or who.observes(j, i)


def _wire(
    edge: Edge, at: Sequence[Point], who: Adversary | None, steps: Mapping[int, int]
) -> Markup:
    """A wire that is heard is shaded by what the node at its worse end gave away."""
    i, j = edge
    x1, y1 = at[i]
    x2, y2 = at[j]
    if not _hears(who, edge):
        return svg.line(x1, y1, x2, y2, "wire deaf")
    step = max(steps.get(i, 0), steps.get(j, 0))
    return svg.line(x1, y1, x2, y2, f"wire heard s{step}")


def _node(n: int, at: Point, who: Adversary | None, step: int | None, small: bool) -> Markup:
    radius = SMALL_NODE if small else NODE
    x, y = at
    if who is not None and n in who.corrupt:
        ink = "number own"
        title = f"node {n}: the adversary's own"
        corner = x - radius, y - radius
        body = svg.rectangle(*corner, 2 * radius, 2 * radius, "node own", title)
    elif step is None:
        ink = "number"
        body = svg.circle(x, y, radius, "node unknown", f"node {n}: not attacked")
    else:
        ink = f"number s{step}"
        body = svg.circle(x, y, radius, f"node s{step}", f"node {n}: {STEPS[step]}")
    if small:
        return body
    return body + svg.text(x, y + 4.5, n, ink)


def _layout(nodes: int, links: Sequence[Edge]) -> list[Point]:
    """Places in pixels; the same for the same network."""
    import networkx as nx

    graph = nx.Graph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from(map(tuple, links))
    if nodes <= CAREFUL and nx.is_connected(graph):
        found = nx.kamada_kawai_layout(graph, pos=nx.circular_layout(graph))
    else:
        found = nx.spring_layout(graph, seed=0, iterations=100, k=1.6 / math.sqrt(nodes))
    xs = [float(found[n][0]) for n in range(nodes)]
    ys = [float(found[n][1]) for n in range(nodes)]
    return list(zip(_spread(xs), _spread(ys), strict=True))


def _spread(values: Sequence[float]) -> list[float]:
    """Stretch coordinates over the drawing; those that are all alike go to its middle."""
    low = min(values)
    wide = max(values) - low
    if wide < 1e-9:
        return [SIDE / 2] * len(values)
    return [ROOM + (v - low) / wide * (SIDE - 2 * ROOM) for v in values]
