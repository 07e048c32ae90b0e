"""Views that are equal by symmetry, which is proved.

mu is a matter of spans and Euclidean norms only, so a vector and its negative are the same. If a
renaming of the nodes carries one node and its adversary to others and gives back every declared
relation, up to the sign of each vector, both views have the same mu. Candidates come from
isomorphisms of the graph, with the target, the tapped wires and the corrupt nodes marked. Each
candidate is then checked on the relations themselves: their terms are matched by the vectors in
them, all ratios of coefficients must have one size, and their signs must be the product of a sign
for each relation and one for each vector. Whether such signs exist is a two-colouring, decided by a
search along the ties (`_Signs`). A renaming that is only likely to work is never used.
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
# Renamings that fail, without one that holds, before the search ends: a choice, time against luck.
PATIENCE = 12


class Symmetry:
    """Finds, for an adversary, an earlier one whose view is provably the same.

    Args:
        graph: Of the network.
        relations: Of the whole network.
    """

    def __init__(self, graph: Graph, relations: Relations) -> None:
        self.graph = graph
        self.relations = relations
        self._first = defaultdict[tuple[object, ...], list[Listener]](list)
        self._proved: dict[Renaming, bool] = {}

    def like(self, one: Listener) -> Listener | None:
        """Return the earlier listener, None where there is none; then this one is remembered."""
        marked = self._marked(one)
        same = self._first[self._key(one, marked)]
        for other in same:
            renaming = self._renaming(self._marked(other), marked)
            if renaming is not None and self._holds(renaming):
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
        if not matcher.is_isomorphic():
            return None
        return tuple(matcher.mapping[n] for n in range(self.graph.nodes))


def invariant(relations: Relations, renaming: Sequence[int], by_node: bool) -> bool:
    """Whether a renaming gives back the same relations and points of gradients, up to signs.

    Node i becomes renaming[i]. Relations that cannot be told apart by the vectors in them count as
    not the same.

    Args:
        relations: Of the whole network.
        renaming: (N,) A permutation of the nodes.
        by_node: Whether the index of a vector is a node and is renamed too.
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
    """All linear forms, by what they belong to and the vectors in them.

    A form belongs to a gradient, to an opaque vector, or, if None, to a relation.
    """
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
    index = v.index
    if by_node and index is not None and index < len(renaming):
        index = renaming[index]
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
