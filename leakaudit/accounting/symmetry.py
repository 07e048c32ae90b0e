"""Views that are equal by symmetry, proved: a renaming of the nodes that gives back the declared relations, up to signs.

mu asks for spans and Euclidean norms alone, so a vector and its negative are one. A renaming that carries one node and its listener
to others and keeps every relation makes both views one; none that is only likely to is used.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from fractions import Fraction

import networkx as nx
from networkx.algorithms.isomorphism import GraphMatcher, categorical_node_match

from leakaudit.accounting.listeners import Listener
from leakaudit.relations import Relations, Vector
from leakaudit.trace import Graph

Renaming = tuple[int, ...]
PATIENCE = 12  # renamings that fail before the search for others ends


class Symmetry:
    """Finds, for a listener, an earlier one whose view is provably the same. relations: of the whole network."""

    def __init__(self, graph: Graph, relations: Relations) -> None:
        self.graph, self.relations = graph, relations
        self._first = defaultdict[tuple[object, ...], list[Listener]](list)
        self._proved: dict[Renaming, bool] = {}

    def like(self, one: Listener) -> Listener | None:
        """Return the earlier listener, None where there is none; then this one is remembered."""
        marked = self._marked(one)
        same = self._first[self._key(one, marked)]
        for other in same:
            if (found := self._renaming(self._marked(other), marked)) is not None and self._holds(
                found
            ):
                return other
        same.append(one)
        return None

    def _holds(self, renaming: Renaming) -> bool:
        if renaming not in self._proved:
            failed = sum(not good for good in self._proved.values())
            if failed >= PATIENCE and failed == len(self._proved):
                return False
            self._proved[renaming] = any(
                invariant(self.relations, renaming, by_node) for by_node in (False, True)
            )
        return self._proved[renaming]

    def _marked(self, one: Listener) -> nx.Graph:
        """The graph with each node's part: the target, an end of a tapped wire, a curious node."""
        hears = one.adversary.hears
        tapped = {n for arc in hears for n in arc} if isinstance(hears, frozenset) else set()
        graph = nx.Graph()
        for n in range(self.graph.nodes):
            graph.add_node(n, part=(n == one.node, n in tapped, n in one.adversary.corrupt))
        graph.add_edges_from(self.graph.edges)
        return graph

    def _key(self, one: Listener, marked: nx.Graph) -> tuple[object, ...]:
        """What every renaming keeps, to compare few."""
        apart = nx.single_source_shortest_path_length(marked, one.node)
        return one.kind, tuple(
            sorted((apart[n], marked.degree[n], marked.nodes[n]["part"]) for n in marked)
        )

    def _renaming(self, old: nx.Graph, new: nx.Graph) -> Renaming | None:
        matcher = GraphMatcher(old, new, node_match=categorical_node_match("part", None))
        return (
            tuple(matcher.mapping[n] for n in range(self.graph.nodes))
            if matcher.is_isomorphic()
            else None
        )


def invariant(relations: Relations, renaming: Sequence[int], by_node: bool) -> bool:
    """Whether renaming node i to renaming[i] gives the same relations and points of gradients, up to the sign of every vector.

    by_node: the index of a vector is a node and is renamed too. Relations that cannot be told apart by the vectors in them count as
    not the same.
    """
    place = {_name(v): k for k, v in enumerate(relations.vectors)}
    to = [place.get(_name(_renamed(v, renaming, by_node))) for v in relations.vectors]
    if None in to or len(set(to)) < len(to):
        return False
    image = [k for k in to if k is not None]
    forms = _forms(relations)
    if len(forms) < len(relations.relations) + len(relations.points) + sum(
        map(len, relations.opaques.values())
    ):
        return False
    signs = _Signs()
    for n, (key, terms) in enumerate(forms.items()):
        owner = key[0] if key[0] is None else image[key[0]]
        other = forms.get((owner, frozenset(image[k] for k in terms)))
        if other is None:
            return False
        ratios = {k: other[image[k]] / terms[k] for k in terms}
        if len({abs(r) for r in ratios.values()}) > 1:
            return False
        for k, ratio in ratios.items():
            signs.tie(("row", n), ("vector", k), -1 if ratio < 0 else 1)
    return signs.agree()


def _forms(relations: Relations) -> dict[tuple[int | None, frozenset[int]], Mapping[int, Fraction]]:
    """All linear forms by what they belong to, a gradient or an opaque vector, None for a relation, and the vectors in them."""
    found: dict[tuple[int | None, frozenset[int]], Mapping[int, Fraction]] = {}
    for r in relations.relations:
        found[None, frozenset(r.terms)] = r.terms
    for g, point in relations.points.items():
        found[g, frozenset(point.at.terms)] = point.at.terms
    for out, parts in relations.opaques.items():
        for part in parts:
            found[out, frozenset(part.terms)] = part.terms
    return found


def _name(v: Vector) -> tuple[object, ...]:
    to = None if v.dst is None else frozenset(v.dst)
    return v.kind, v.name, v.owner, v.round, v.index, v.std, to, v.secure, v.law


def _renamed(v: Vector, renaming: Sequence[int], by_node: bool) -> Vector:
    owner = None if v.owner is None else renaming[v.owner]
    index = (
        renaming[v.index]
        if by_node and v.index is not None and v.index < len(renaming)
        else v.index
    )
    return Vector(
        v.kind,
        v.name,
        owner,
        v.round,
        index,
        v.std,
        None if v.dst is None else tuple(renaming[j] for j in v.dst),
        v.secure,
        v.law,
    )


class _Signs:
    """Signs that are tied two by two, and whether some choice fits all."""

    def __init__(self) -> None:
        self._ties = defaultdict[tuple[str, int], list[tuple[tuple[str, int], int]]](list)

    def tie(self, a: tuple[str, int], b: tuple[str, int], product: int) -> None:
        """Ask for sign(a) sign(b) = product."""
        self._ties[a].append((b, product))
        self._ties[b].append((a, product))

    def agree(self) -> bool:
        """Try to choose."""
        chosen: dict[tuple[str, int], int] = {}
        for start in self._ties:
            todo = deque([start] if start not in chosen else [])
            chosen.setdefault(start, 1)
            while todo:
                a = todo.popleft()
                for b, product in self._ties[a]:
                    if b not in chosen:
                        chosen[b] = chosen[a] * product
                        todo.append(b)
                    elif chosen[b] != chosen[a] * product:
                        return False
        return True
