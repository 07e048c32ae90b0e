"""The positions of a drawn network, compared with the layouts of networkx."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest

from leakaudit.reporting.rendering.html.positions import distances, positions

GRAPHS = {
    "path": nx.path_graph(12),
    "ring": nx.cycle_graph(10),
    "star": nx.star_graph(8),
    "complete": nx.complete_graph(7),
    "grid": nx.convert_node_labels_to_integers(nx.grid_2d_graph(5, 6)),
    "tree": nx.balanced_tree(2, 4),
    "random": nx.gnp_random_graph(30, 0.2, seed=1),
    "geometric": nx.random_geometric_graph(40, 0.32, seed=2),
}


def stress(points: np.ndarray, graph: nx.Graph) -> float:
    """Mean of (|x_i - x_j| - d_ij)^2 / d_ij^2 over all pairs, at the best scale of the points."""
    apart = []
    wanted = []
    for i, row in dict(nx.all_pairs_shortest_path_length(graph)).items():
        for j, distance in row.items():
            if i < j:
                apart.append(math.dist(points[i], points[j]) / distance)
                wanted.append(1.0)
    ratio = np.array(apart)
    scale = ratio.sum() / (ratio**2).sum()
    return float(((scale * ratio - np.array(wanted)) ** 2).mean())


@pytest.mark.parametrize("name", GRAPHS)
def test_the_stress_is_at_most_that_of_networkx(name: str) -> None:
    graph = GRAPHS[name]
    assert nx.is_connected(graph)
    found = nx.kamada_kawai_layout(graph, pos=nx.circular_layout(graph))
    theirs = stress(np.array([found[n] for n in range(len(graph))]), graph)
    ours = stress(positions(len(graph), list(graph.edges)), graph)
    assert ours <= theirs * 1.02 + 1e-9


@pytest.mark.parametrize("name", GRAPHS)
def test_distances_are_numbers_of_edges(name: str) -> None:
    graph = GRAPHS[name]
    found = distances(len(graph), list(graph.edges))
    for i, row in dict(nx.all_pairs_shortest_path_length(graph)).items():
        assert {j: int(found[i, j]) for j in row} == row


def test_a_ring_is_a_circle_with_node_0_at_the_top() -> None:
    at = positions(6, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5)])
    radii = np.linalg.norm(at, axis=1)
    assert radii == pytest.approx(radii.mean(), rel=1e-3)
    angles = np.degrees(np.arctan2(at[:, 0], -at[:, 1])) % 360
    assert (angles + 1e-6) % 360 == pytest.approx(np.arange(6) * 60, abs=0.1)


def test_parts_without_a_path_between_them_stay_apart() -> None:
    at = positions(6, [(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5)])
    assert np.isfinite(at).all()
    within = max(math.dist(at[i], at[j]) for i, j in ((0, 1), (0, 2), (3, 4), (4, 5)))
    between = min(math.dist(at[i], at[j]) for i in range(3) for j in range(3, 6))
    assert between > 1.2 * within
