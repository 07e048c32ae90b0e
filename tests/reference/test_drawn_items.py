"""Items that a function computes: SecureD-FL's groups, and the graphs and figures of the thesis."""

from __future__ import annotations

import random
from itertools import combinations

import networkx as nx
import pytest
import torch

from leakaudit.judging.papers.pdmm_thesis import drawn as thesis
from leakaudit.judging.papers.runs import fresh, run
from leakaudit.judging.papers.secured_fl import drawn as secured
from leakaudit.protocols.kirkman import Partition, longest, upper_limit


def assert_disjoint(found: list[Partition], nodes: int, size: int) -> None:
    met = set[tuple[int, int]]()
    for partition in found:
        assert sorted(v for group in partition for v in group) == list(range(nodes))
        for group in partition:
            assert len(group) == size
            pairs = set(combinations(sorted(group), 2))
            assert not met & pairs
            met |= pairs


@pytest.mark.parametrize(("nodes", "size"), [(9, 3), (15, 3), (16, 4), (10, 2)])
def test_algorithm_2_as_printed_never_lets_two_peers_meet_twice(nodes: int, size: int) -> None:
    for seed in range(20):
        found = secured._as_printed(nodes, size, random.Random(seed))
        assert 1 <= len(found) <= upper_limit(nodes, size)
        assert_disjoint(found, nodes, size)


def test_algorithm_2_stops_only_if_no_group_is_left() -> None:
    free = [{1, 2}, {0, 2}, {0, 1}, {4}, {3}, set()]
    group = secured._clique([0, 1, 2, 3, 4, 5], free, 3, random.Random(0))
    assert group is not None
    assert sorted(group) == [0, 1, 2]
    assert secured._clique([1, 2, 3, 4, 5], free, 3, random.Random(0)) is None


@pytest.mark.parametrize(("nodes", "size", "most"), [(9, 3, 4), (16, 4, 5), (6, 3, 1), (8, 4, 1)])
def test_the_longest_search_attains_the_limit_of_small_designs(
    nodes: int, size: int, most: int
) -> None:
    assert upper_limit(nodes, size) == most
    found = longest(nodes, size, 50, fresh())
    assert len(found) == most
    assert_disjoint(found, nodes, size)


def test_the_gap_is_the_shortest_time_between_two_meetings() -> None:
    first: list[tuple[int, ...]] = [(0, 1), (2, 3)]
    second: list[tuple[int, ...]] = [(0, 2), (1, 3)]
    assert secured._gap([first]) == 1
    assert secured._gap([first, second]) == 2
    assert secured._gap([first, second, first]) == 1


@pytest.mark.parametrize("torus", [False, True])
def test_connected_graphs_are_counted_as_by_networkx(torus: bool) -> None:
    nodes, radius, graphs = 12, 0.35, 60
    places = torch.rand(graphs, nodes, 2, generator=fresh(3), dtype=torch.float64)
    count = 0
    for some in places.tolist():
        graph = nx.empty_graph(nodes)
        for a, b in combinations(range(nodes), 2):
            apart = [abs(u - v) for u, v in zip(some[a], some[b], strict=True)]
            if torus:
                apart = [min(d, 1 - d) for d in apart]
            if sum(d * d for d in apart) < radius**2:
                graph.add_edge(a, b)
        count += nx.is_connected(graph)
    assert 0 < count < graphs
    assert thesis.connected(nodes, radius, graphs, fresh(3), torus=torus) == count


def test_the_ratio_of_differences_is_the_input_if_the_update_is_exact() -> None:
    exact = {"rho": 0.4, "z0": 1.0, "update": "exact"}
    done = run(nodes=6, graph="ring", rounds=8, set=exact)
    assert max(thesis._input_errors(done)) < 1e-6
    inexact = {"rho": 0.4, "z0": 1.0, "alpha": 0.1, "k_max": 1}
    done = run(nodes=6, graph="ring", rounds=8, set=inexact)
    assert min(thesis._input_errors(done)) > 0.01
