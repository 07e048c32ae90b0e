"""Graphs: known edge counts, connectedness, radii and probabilities, and edge lists."""

from __future__ import annotations

import math
from pathlib import Path

import networkx as nx
import pytest
import torch
from torch import Generator

from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph
from leakaudit.protocols import topology


def make(kind: str, nodes: int, seed: int = 0) -> Graph:
    return topology.make(kind, nodes, Generator().manual_seed(seed))


def as_nx(g: Graph) -> nx.Graph:
    out = nx.Graph(g.edges)
    out.add_nodes_from(range(g.nodes))
    return out


def test_ring_star_complete() -> None:
    assert make("ring", 5).edges == ((0, 1), (0, 4), (1, 2), (2, 3), (3, 4))
    assert make("star", 4).edges == ((0, 1), (0, 2), (0, 3))
    assert make("complete", 4).edges == ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
    for kind in topology.KINDS:
        assert make(kind, 2).edges == ((0, 1),)
    for nodes in range(2, 12):
        assert nx.utils.graphs_equal(as_nx(make("ring", nodes)), nx.cycle_graph(nodes))
        assert nx.utils.graphs_equal(as_nx(make("star", nodes)), nx.star_graph(nodes - 1))
        assert nx.utils.graphs_equal(as_nx(make("complete", nodes)), nx.complete_graph(nodes))


def test_grid_is_the_most_square_rectangle() -> None:
    assert make("grid", 6).edges == ((0, 1), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (4, 5))
    for nodes, rows in ((12, 3), (16, 4), (10, 2), (3, 1)):
        columns = nodes // rows
        assert len(make("grid", nodes).edges) == rows * (columns - 1) + columns * (rows - 1)
    with pytest.raises(LeakauditError, match="7 nodes do not form a rectangle; use 6 or 8"):
        make("grid", 7)


@pytest.mark.parametrize("kind", ["rgg", "er"])
@pytest.mark.parametrize("nodes", [2, 3, 10, 60])
def test_random_graphs_are_connected_and_reproducible(kind: str, nodes: int) -> None:
    for seed in range(5):
        g = make(kind, nodes, seed)
        assert nx.is_connected(as_nx(g))
        assert as_nx(g).number_of_nodes() == nodes
        assert g == make(kind, nodes, seed)
    generator = Generator().manual_seed(0)
    if nodes == 60:
        assert topology.make(kind, nodes, generator) != topology.make(kind, nodes, generator)


def test_densities_are_the_stated_ones() -> None:
    n = 60
    p = 2 * math.log(n) / n
    counts = torch.tensor([float(len(make("er", n, s).edges)) for s in range(60)])
    pairs = n * (n - 1) / 2
    assert abs(float(counts.mean()) - p * pairs) < 4 * math.sqrt(p * (1 - p) * pairs / 60)
    counts = torch.tensor([float(len(make("rgg", n, s).edges)) for s in range(60)])
    r = math.sqrt(2 * math.log(n) / n)
    inside = (
        math.pi * r**2 - 8 / 3 * r**3 + r**4 / 2
    )  # distribution of the distance of two points in the unit square
    assert abs(float(counts.mean()) / pairs - inside) < 0.015


def test_the_global_state_stays() -> None:
    before = torch.random.get_rng_state()
    for kind in topology.KINDS:
        make(kind, 9)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_edge_list(tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text("# a triangle with a tail\n2 0  # either order\n0 1\n1 2\n2 1\n\n2 3\n")
    assert make(f"file:{path}", 4).edges == ((0, 1), (0, 2), (1, 2), (2, 3))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 1\n1 2 3\n", "line 2: expected two node numbers"),
        ("0 one\n", "line 1: expected two node numbers"),
        ("0 -1\n", "line 1"),
        ("0 99999999999999999999\n", "line 1"),
        ("1 1\n", "two different nodes"),
        ("0 4\n", "0 to 3"),
        ("0 1\n1 2\n", "not connected, node 3 has no edge"),
        ("0 1\n2 3\n", "not connected"),
        ("", "not connected"),
    ],
)
def test_broken_edge_lists(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text(text)
    with pytest.raises(LeakauditError, match=says):
        make(f"file:{path}", 4)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01")
    for name in ("absent", "binary", "."):
        with pytest.raises(LeakauditError, match="cannot be read as text"):
            make(f"file:{tmp_path / name}", 4)


@pytest.mark.parametrize(
    ("kind", "nodes", "says"),
    [
        ("ring", 1, "at least 2 nodes"),
        ("star", 0, "at least 2 nodes"),
        ("rng", 5, "did you mean 'r"),
        ("torus", 5, "unknown graph 'torus'"),
        ("complete", 10**5, "exceeds the limit"),
        ("ring", 10**9, "exceeds the limit"),
    ],
)
def test_graphs_that_are_refused(kind: str, nodes: int, says: str) -> None:
    with pytest.raises(LeakauditError, match=says):
        make(kind, nodes)


def test_the_radius_of_a_random_geometric_graph() -> None:
    """rgg:R connects what is closer than R; the default radius is the same graph."""
    n = 60
    assert make(f"rgg:{math.sqrt(2 * math.log(n) / n)!r}", n) == make("rgg", n)
    r = 0.35
    counts = torch.tensor([float(len(make(f"rgg:{r}", n, s).edges)) for s in range(60)])
    inside = math.pi * r**2 - 8 / 3 * r**3 + r**4 / 2
    assert abs(float(counts.mean()) / (n * (n - 1) / 2) - inside) < 0.015
    assert make("rgg:2", 5) == make("complete", 5)


@pytest.mark.parametrize("radius", ["", "x", "0", "-1", "nan", "inf", "1e-9x"])
def test_a_radius_that_is_none(radius: str) -> None:
    with pytest.raises(LeakauditError, match="expected a radius above 0"):
        make(f"rgg:{radius}", 5)


def test_a_radius_with_which_no_draw_is_connected() -> None:
    with pytest.raises(LeakauditError, match=r"rgg:0\.01: none of 1000 draws was connected"):
        make("rgg:0.01", 9)
