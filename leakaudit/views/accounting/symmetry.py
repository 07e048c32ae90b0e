"""Views that are provably equal by symmetry."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from leakaudit.core.adversary import Adversary
from leakaudit.core.trace import Graph
from leakaudit.theory.relations import Relations, Vector
from leakaudit.views.accounting.adversaries import Threat

if TYPE_CHECKING:
    import networkx as nx

# mu depends only on spans and Euclidean norms, so a vector and its negative are equivalent. If a
# renaming of the nodes maps one node and its adversary to others and reproduces every declared
# relation, up to the sign of each vector, both views have the same mu. Candidates are isomorphisms
# of the graph, with the target, the observed channels and the corrupt nodes marked. Each candidate
# is then checked on the relations themselves: their terms are matched by the vectors in them, all
# ratios of coefficients must have the same absolute value, and their signs must be the product of a
# sign for each relation and one for each vector. Whether such signs exist is a two-colouring
# problem, which `_agree` decides. A renaming that is only likely to work is
# never used.
#
# The renamed relations may be declared in another order, in which a point is observed before its
# gradient although it is not in the declared one. Nothing that is sent depends on that order, so
# the better certificate holds for both views.

Renaming = tuple[int, ...]
# A linear form: index of a vector -> coefficient.
Form = Mapping[int, Fraction]
# The owner of a form (a gradient, an opaque vector, or None for a relation), and its vectors.
FormKey = tuple[int | None, frozenset[int]]
# The search ends after this number of failed renamings without a valid one: a choice that limits
# its time.
PATIENCE = 12
# Number of nodes above which renamings are searched only if most nodes may have a counterpart: a
# search takes seconds, and in a random graph it would be for a few leaves. A choice.
SEARCHED = 200
ONE = Fraction(1)


def likes(graph: Graph, relations: Relations, threats: Iterable[Threat]) -> list[Threat | None]:
    """Return, for each adversary, an earlier one whose view is provably the same, or None.

    A named adversary is not compared.
    """
    symmetry = _Symmetry(graph, relations)
    return [None if one.kind == "named" else symmetry.like(one) for one in threats]


class _Symmetry:
    """Finds, for an adversary, an earlier one whose view is provably the same."""

    def __init__(self, graph: Graph, relations: Relations) -> None:
        self.graph = graph
        self.relations = relations
        self._colour, _ = _colours(graph, [0] * graph.nodes)
        self._pays = graph.nodes <= SEARCHED or 2 * len(set(self._colour)) < graph.nodes
        self._marked_of: dict[Threat, tuple[list[int], Hashable]] = {}
        self._by_colour = defaultdict[tuple[object, ...], list[Threat]](list)
        self._like: dict[Threat, Threat] = {}  # threat -> the first one with the same view
        self._proved: list[Renaming] = []  # valid renamings and their inverses
        self._failed: set[Renaming] = set()
        self._by_node: Sequence[bool] = (False, True)  # whether renamings also rename indices
        self._home: dict[int, Renaming] = {}

    def like(self, threat: Threat) -> Threat | None:
        """Return the earlier adversary; None if there is none, and this one is remembered."""
        other = self._by_proved(threat)
        if other is None:
            # A renaming preserves colours, so an adversary with other colours than all before needs
            # no comparison. In a random graph, this is nearly every one.
            same = self._by_colour[self._coloured(threat)]
            if same and self._pays:
                other = self._by_search(threat, same)
            if other is None:
                same.append(threat)
        self._like[threat] = other or threat
        return other

    def _by_proved(self, threat: Threat) -> Threat | None:
        to = self._home.get(threat.node)
        if to is None:
            return None
        moved = _mapped(threat, to)
        for candidate in (moved, threat):
            other = self._like.get(candidate)
            if other is not None:
                return other
            for renaming in self._proved:
                other = self._like.get(_mapped(candidate, renaming))
                if other is not None:
                    return other
        return None

    def _by_search(self, threat: Threat, same: list[Threat]) -> Threat | None:
        new, shape = self._marked(threat)
        for other in same:
            if len(self._failed) >= PATIENCE and not self._proved:
                break
            old, other_shape = self._marked(other)
            if other_shape != shape:
                continue
            renaming = self._renaming(old, new)
            if renaming is not None and self._holds(renaming):
                return other
        return None

    def _marked(self, threat: Threat) -> tuple[list[int], Hashable]:
        """Return colours of the nodes, with target and adversary marked, and what these tell.

        A renaming that maps threats preserves both.
        """
        if threat not in self._marked_of:
            parts = self._parts(threat)
            kinds = sorted(set(parts))
            colour, shape = _colours(self.graph, [kinds.index(part) for part in parts])
            self._marked_of[threat] = colour, (tuple(kinds), shape)
        return self._marked_of[threat]

    def _coloured(self, threat: Threat) -> tuple[object, ...]:
        """The colours of the target and of all nodes of the adversary.

        Every renaming that maps one adversary to another preserves them.
        """
        colour = self._colour
        adversary = threat.adversary
        arcs: list[tuple[int, int]] = []
        if isinstance(adversary.hears, frozenset):
            arcs = sorted((colour[a], colour[b]) for a, b in adversary.hears)
        corrupt = sorted(colour[node] for node in adversary.corrupt)
        return (threat.kind, colour[threat.node], tuple(arcs), tuple(corrupt))

    def _holds(self, renaming: Renaming) -> bool:
        """Return whether a renaming is valid; a valid one serves later adversaries as well."""
        if renaming in self._proved:
            return True
        if renaming in self._failed:
            return False
        for by_node in self._by_node:
            if invariant(self.relations, renaming, by_node):
                # Products of valid renamings are valid if all treat indices alike.
                self._by_node = (by_node,)
                self._proved += [renaming, _inverse(renaming)]
                self._home = self._homes()
                return True
        self._failed.add(renaming)
        return False

    def _homes(self) -> dict[int, Renaming]:
        """Return for each node a product of valid renamings to the first node that it reaches."""
        homes: dict[int, Renaming] = {}
        for first in range(self.graph.nodes):
            if first in homes:
                continue
            homes[first] = tuple(range(self.graph.nodes))
            todo = deque([first])
            while todo:
                node = todo.popleft()
                for renaming in self._proved:  # contains the inverse of each
                    before = renaming.index(node)
                    if before not in homes:
                        homes[before] = tuple(map(homes[node].__getitem__, renaming))
                        todo.append(before)
        return homes

    def _parts(self, threat: Threat) -> list[tuple[bool, bool, bool]]:
        """Each node's role: target, end of an observed channel, curious node."""
        tapped: set[int] = set()
        if isinstance(threat.adversary.hears, frozenset):
            tapped.update(*threat.adversary.hears)
        corrupt = threat.adversary.corrupt
        return [
            (node == threat.node, node in tapped, node in corrupt)
            for node in range(self.graph.nodes)
        ]

    def _renaming(self, old: Sequence[int], new: Sequence[int]) -> Renaming | None:
        """Return an isomorphism of the graph that maps colours to equal ones; None if none."""
        from networkx.algorithms.isomorphism import GraphMatcher, categorical_node_match

        same = categorical_node_match("colour", None)
        matcher = GraphMatcher(self._drawn(old), self._drawn(new), node_match=same)
        if not matcher.is_isomorphic():
            return None
        return tuple(map(matcher.mapping.__getitem__, range(self.graph.nodes)))

    def _drawn(self, colours: Sequence[int]) -> nx.Graph:
        import networkx as nx  # slow to import, and most views are compared with no other

        graph = nx.Graph()
        for node, colour in enumerate(colours):
            graph.add_node(node, colour=colour)
        graph.add_edges_from(self.graph.edges)
        return graph


def _mapped(threat: Threat, renaming: Renaming) -> Threat:
    adversary = threat.adversary
    hears = adversary.hears
    if isinstance(hears, frozenset):
        hears = frozenset((renaming[a], renaming[b]) for a, b in hears)
    corrupt = frozenset(renaming[node] for node in adversary.corrupt)
    mapped = Adversary(hears, corrupt, adversary.window, adversary.knows)
    return Threat(renaming[threat.node], threat.kind, mapped)


def _inverse(renaming: Renaming) -> Renaming:
    inverse = [0] * len(renaming)
    for node, to in enumerate(renaming):
        inverse[to] = node
    return tuple(inverse)


def _colours(graph: Graph, start: Sequence[int]) -> tuple[list[int], Hashable]:
    """Return a colour for each node that every renaming preserves, and how colours are adjacent.

    Nodes of one start colour that differ in how many neighbours they have of some colour get
    different colours, until nothing changes (colour refinement, Weisfeiler and Leman 1968).
    """
    colour = list(start)
    count = len(set(colour))
    while True:
        kinds = [
            (colour[node], tuple(sorted(colour[j] for j in graph.neighbours[node])))
            for node in range(graph.nodes)
        ]
        names = {kind: k for k, kind in enumerate(sorted(set(kinds)))}
        colour = [names[kind] for kind in kinds]
        if len(names) == count:
            return colour, tuple(sorted(kinds))
        count = len(names)


def invariant(relations: Relations, renaming: Sequence[int], by_node: bool) -> bool:
    """Return whether a renaming reproduces the relations and points of gradients, up to signs.

    Node i becomes renaming[i]. Relations that cannot be distinguished by the vectors in them count
    as different. Vectors that do not mention a renamed node keep their signs.

    Args:
        renaming: (N,) A permutation of the nodes.
    """
    image = _image(relations, renaming, by_node)
    if image is None:
        return False
    # Forms of other vectors are their own images.
    forms: dict[FormKey, Form] = {}
    for owner, terms in _forms(relations):
        if owner not in image and image.keys().isdisjoint(terms):
            continue
        key = (owner, frozenset(terms))
        if key in forms:
            return False
        forms[key] = terms
    # A form and its image are equal up to one sign of the form and one of each vector. Therefore,
    # all ratios of coefficients must have the same absolute value, and their signs must be products
    # of such signs.
    ties: list[tuple[Hashable, Hashable, int]] = []
    for n, ((owner, vectors), terms) in enumerate(forms.items()):
        if owner is not None:
            owner = image.get(owner, owner)
        other = forms.get((owner, frozenset(image.get(k, k) for k in vectors)))
        if other is None:
            return False
        sizes: set[Fraction] = set()
        for k, coefficient in terms.items():
            target = other[image.get(k, k)]
            ratio = ONE if target == coefficient else target / coefficient
            sizes.add(abs(ratio))
            vector = ("vector", k) if k in image else ("kept", 0)
            ties.append((("row", n), vector, -1 if ratio < 0 else 1))
        if len(sizes) > 1:
            return False
    # What a record attains depends on the sum of the gradients that it moves, so those of a node
    # have one sign.
    for k in image:
        if relations.vectors[k].kind == "gradient":
            ties.append((("owner", relations.vectors[k].owner), ("vector", k), 1))
    return _agree(ties)


def _image(relations: Relations, renaming: Sequence[int], by_node: bool) -> dict[int, int] | None:
    """Return the image of each vector that mentions a renamed node.

    Returns:
        None if one has no image, or two have the same.
    """
    moved = {node for node, to in enumerate(renaming) if node != to}
    mentions = [k for k, v in enumerate(relations.vectors) if _mentions(v, moved, by_node)]
    place = {_name(relations.vectors[k]): k for k in mentions}
    image: dict[int, int] = {}
    for k in mentions:
        to = place.get(_name(_renamed(relations.vectors[k], renaming, by_node)))
        if to is None or (k in relations.firmly) != (to in relations.firmly):
            return None
        image[k] = to
    if len(set(image.values())) < len(image):
        return None
    return image


def _mentions(vector: Vector, nodes: Collection[int], by_node: bool) -> bool:
    if vector.owner in nodes or (by_node and vector.index in nodes):
        return True
    return vector.dst is not None and any(node in nodes for node in vector.dst)


def _forms(relations: Relations) -> Iterator[tuple[int | None, Form]]:
    """Yield all linear forms, and the gradient or opaque vector to which each belongs."""
    for relation in relations.relations:
        yield None, relation.terms
    for gradient, point in relations.points.items():
        yield gradient, point.terms
    for out, parts in relations.opaques.items():
        for part in parts:
            yield out, part.terms
    for out, (of, _) in relations.firmly.items():
        if out not in relations.opaques:  # otherwise, it has the same input
            yield out, of.terms


def _name(v: Vector) -> tuple[object, ...]:
    """Return what identifies a vector; the order of its receivers does not matter."""
    to = None
    if v.dst is not None:
        to = frozenset(v.dst)
    return (v.kind, v.name, v.owner, v.round, v.index, v.std, to, v.secure, v.law, v.width)


def _renamed(v: Vector, renaming: Sequence[int], by_node: bool) -> Vector:
    owner = v.owner
    if owner is not None:
        owner = renaming[owner]
    index = v.index
    if by_node and index is not None and index < len(renaming):
        index = renaming[index]
    dst = v.dst
    if dst is not None:
        dst = tuple(map(renaming.__getitem__, dst))
    # Spelt out: `replace` takes three times as long.
    return Vector(v.kind, v.name, owner, v.round, index, v.std, dst, v.secure, v.law, v.width)


def _agree(ties: Sequence[tuple[Hashable, Hashable, int]]) -> bool:
    """Return whether signs exist of which each tied pair has a given product."""
    import scipy.sparse as sp
    from scipy.sparse.csgraph import connected_components

    if not ties:
        return True
    # Everything is two points, one for each sign. A product of 1 joins the points of equal signs,
    # and one of -1 those of opposite signs; no choice fits if both points of one are connected.
    place: dict[Hashable, int] = {}
    ends = np.array([[place.setdefault(one, len(place)) for one in tie[:2]] for tie in ties])
    product = np.array([tie[2] for tie in ties])
    count = len(place)
    plus = np.concatenate([ends[:, 0], ends[:, 0] + count])
    minus = np.concatenate([ends[:, 1], ends[:, 1] + count])
    minus = (minus + np.tile(product < 0, 2) * count) % (2 * count)
    cover = sp.coo_array((np.ones(len(plus)), (plus, minus)), (2 * count,) * 2)
    of = connected_components(cover, directed=False)[1]
    return bool((of[:count] != of[count:]).all())
