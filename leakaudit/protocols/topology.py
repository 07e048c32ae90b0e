"""Communication graphs: named kinds, random graphs redrawn until connected, and edge lists."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Generator

from leakaudit.core.errors import LeakauditError, suggest
from leakaudit.core.trace import Graph

if TYPE_CHECKING:
    import networkx as nx

Edges = Iterable[tuple[int, int]]

# Both limits are choices. This number of edges takes several gigabytes as Python objects, and a
# random graph of a kind below is connected more often than not.
LARGEST = 10_000_000  # edges
DRAWS = 1000
RADIUS = "rgg:"  # before the radius of a random geometric graph


def make(kind: str, nodes: int, generator: Generator) -> Graph:
    """Return a connected graph of nodes 0..nodes-1.

    Args:
        kind: ``ring``; ``star``, with node 0 as its hub; ``complete``; ``rgg``, random points of
            the unit square, connected if closer than sqrt(2 log n / n), or ``rgg:R``, if closer
            than R; ``er``, Erdos-Renyi with p = 2 log n / n; ``grid``, the most square rectangle;
            ``file:PATH``, with one line ``i j`` per edge, in which ``#`` begins a comment.

    Raises:
        LeakauditError: The kind is unknown, there are too few nodes, or the graph is not connected.
    """
    if nodes < 2:
        raise LeakauditError(f"graph: expected at least 2 nodes, got {nodes}")
    if kind.startswith("file:"):
        return _connected(_read(Path(kind.removeprefix("file:")), nodes), kind)
    build = KINDS.get(kind)
    if kind.startswith(RADIUS):
        radius = _radius(kind)
        build = partial(_near, kind, radius)
    if build is None:
        known = [*KINDS, f"{RADIUS}R", "file:PATH"]
        raise LeakauditError(f"unknown graph {kind!r}{suggest(kind, known)}")
    if nodes > LARGEST or (kind == "complete" and nodes * (nodes - 1) // 2 > LARGEST):
        raise LeakauditError(f"graph: {kind} of {nodes} nodes exceeds the limit of {LARGEST} edges")
    return _connected(_plain(build(nodes, generator), nodes), kind)


def _radius(kind: str) -> float:
    """Return R of ``rgg:R``."""
    try:
        radius = float(kind.removeprefix(RADIUS))
    except ValueError:
        radius = math.nan
    if not 0 < radius < math.inf:
        raise LeakauditError(
            f"graph {kind}: expected a radius above 0, in units of the square's side, such as "
            f"{RADIUS}0.3"
        )
    return radius


def _plain(edges: Edges, nodes: int) -> Graph:
    return Graph(nodes, tuple(sorted({(min(e), max(e)) for e in edges})))


def _connected(graph: Graph, kind: str) -> Graph:
    if not graph.connected:
        isolated = [n for n in range(graph.nodes) if not graph.neighbours[n]]
        which = f", node {isolated[0]} has no edge" if isolated else ""
        raise LeakauditError(f"graph {kind}: not connected{which}; add edges or lower --nodes")
    return graph


def _redrawn(kind: str, draw: Callable[[], nx.Graph]) -> Edges:
    from networkx import is_connected

    for _ in range(DRAWS):
        graph = draw()
        if is_connected(graph):
            return list(graph.edges())
    raise LeakauditError(
        f"graph {kind}: none of {DRAWS} draws was connected; use another number of nodes or a "
        "larger radius"
    )


def _ring(nodes: int, _: Generator) -> Edges:
    return [*pairwise(range(nodes)), (nodes - 1, 0)]


def _star(nodes: int, _: Generator) -> Edges:
    return [(0, node) for node in range(1, nodes)]


def _complete(nodes: int, _: Generator) -> Edges:
    return combinations(range(nodes), 2)


def _rgg(nodes: int, generator: Generator) -> Edges:
    # 2 pi times the area pi r^2 = log n / n at which such graphs become connected.
    return _near("rgg", math.sqrt(2 * math.log(nodes) / nodes), nodes, generator)


def _near(kind: str, radius: float, nodes: int, generator: Generator) -> Edges:
    from networkx import random_geometric_graph  # slow to import, and most graphs are rings

    device = generator.device

    def draw() -> nx.Graph:
        points = torch.rand(nodes, 2, generator=generator, dtype=torch.float64, device=device)
        return random_geometric_graph(nodes, radius, pos=dict(enumerate(points.tolist())))

    return _redrawn(kind, draw)


def _er(nodes: int, generator: Generator) -> Edges:
    from networkx import gnp_random_graph

    # Twice the probability log n / n at which such graphs become connected.
    p = min(1.0, 2 * math.log(nodes) / nodes)

    def draw() -> nx.Graph:
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        return gnp_random_graph(nodes, p, seed=seed)

    return _redrawn("er", draw)


def _grid(nodes: int, _: Generator) -> Edges:
    from networkx import convert_node_labels_to_integers, grid_2d_graph

    rows = next(r for r in range(math.isqrt(nodes), 0, -1) if nodes % r == 0)
    if rows == 1 and nodes > 3:
        raise LeakauditError(
            f"graph grid: {nodes} nodes do not form a rectangle; use {nodes - 1} or {nodes + 1}"
        )
    rectangle = grid_2d_graph(rows, nodes // rows)
    return list(convert_node_labels_to_integers(rectangle, ordering="sorted").edges())


def _read(path: Path, nodes: int) -> Graph:
    """Read an edge list; an edge that appears twice, or in both directions, counts once."""
    edges = set()
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                words = line.partition("#")[0].split()
                if words:
                    edges.add(_edge(words, nodes, f"{path.name}, line {number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise LeakauditError(f"graph file:{path}: cannot be read as text ({error})") from error
    return Graph(nodes, tuple(sorted(edges)))


def _edge(words: list[str], nodes: int, where: str) -> tuple[int, int]:
    numbers = all(w.isascii() and w.isdigit() and len(w) < 10 for w in words)
    if len(words) != 2 or not numbers:
        raise LeakauditError(
            f"graph {where}: expected two node numbers 'i j', got {' '.join(words)[:60]!r}"
        )
    i, j = sorted(map(int, words))
    if i == j or j >= nodes:
        raise LeakauditError(
            f"graph {where}: expected two different nodes from 0 to {nodes - 1}, "
            f"got {i} and {j}; see --nodes"
        )
    return i, j


KINDS: dict[str, Callable[[int, Generator], Edges]] = {
    "ring": _ring,
    "star": _star,
    "complete": _complete,
    "rgg": _rgg,
    "er": _er,
    "grid": _grid,
}
