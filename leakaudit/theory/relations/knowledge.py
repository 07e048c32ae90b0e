"""What an adversary knows about a declaration: E = [F | B | K] of docs/relations.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from leakaudit.core.adversary import Adversary
from leakaudit.core.errors import LeakauditError
from leakaudit.theory.relations.declare import Relation, Relations
from leakaudit.theory.relations.expression import Expression, Vector, places
from leakaudit.theory.relations.modular import PRIMES, Row, modular


@dataclass(frozen=True)
class Knowledge:
    """A declaration, its vectors that an adversary knows, and the relations in use.

    A part of the relations gives a lower bound on what leaks; it is never evidence that nothing
    else leaks.
    """

    declared: Relations
    known: frozenset[int]  # places of the known vectors (K)
    rows: tuple[int, ...]  # places of the relations in use

    @cached_property
    def relations(self) -> list[Relation]:
        """The relations in use."""
        return [self.declared.relations[r] for r in self.rows]

    def modular(self, prime: int = PRIMES[0], dropped: Collection[int] = ()) -> list[Row]:
        """Return the relations in use modulo a prime, without some vectors."""
        return [modular(relation.terms, prime, dropped) for relation in self.relations]

    @cached_property
    def used(self) -> frozenset[int]:
        """Places of the vectors that occur in the relations in use."""
        return frozenset(k for r in self.relations for k in r.terms)

    @cached_property
    def flat(self) -> list[int]:
        """Unknown vectors without a prior (F), in the order of declaration."""
        return [k for k in self._unknown if self.declared.vectors[k].kind != "noise"]

    @cached_property
    def noise(self) -> list[int]:
        """Unknown noise (B), in the order of declaration."""
        return [k for k in self._unknown if self.declared.vectors[k].kind == "noise"]

    @cached_property
    def _unknown(self) -> list[int]:
        return sorted(self.used - self.known)

    def gradients(self, node: int) -> list[Expression]:
        """Return a node's gradients that occur in the relations in use, in order."""
        return [g for g in self.declared.gradients(node) if g.vector in self.used]

    def also(self, vectors: Iterable[Expression]) -> Knowledge:
        """Return the knowledge with further known vectors."""
        return replace(self, known=self.known.union(places(vectors)))

    def within(self, rounds: range) -> Knowledge:
        """Use only the relations of some rounds."""
        rows = [r for r in self.rows if self.declared.relations[r].round in rounds]
        return replace(self, rows=tuple(rows))

    def near(self, nodes: Iterable[int]) -> Knowledge:
        """Use only relations whose unknowns all occur together with an unknown of some nodes."""
        relations = self.declared.relations
        by_owner, by_vector = self._index
        touched: set[int] = set()  # relations with an unknown of the nodes
        for node in nodes:
            for k in by_owner[node]:
                touched.update(by_vector[k])
        around: set[int] = set()  # unknowns in these
        for r in touched:
            around.update(k for k in relations[r].terms if k not in self.known)
        beside: set[int] = set()  # relations that contain one of these unknowns
        for k in around:
            beside.update(by_vector[k])
        rows = []
        for r in beside:
            if all(k in around or k in self.known for k in relations[r].terms):
                rows.append(r)
        return replace(self, rows=tuple(sorted(rows)))

    @cached_property
    def _index(self) -> tuple[dict[int | None, list[int]], dict[int, list[int]]]:
        by_owner = defaultdict[int | None, list[int]](list)
        by_vector = defaultdict[int, list[int]](list)
        for r in self.rows:
            for k in self.declared.relations[r].terms:
                if k not in self.known:
                    by_vector[k].append(r)
        for k in by_vector:
            by_owner[self.declared.vectors[k].owner].append(k)
        return by_owner, by_vector


def know(declared: Relations, adversary: Adversary, *, own: bool = True) -> Knowledge:
    """Return what an adversary knows about a declared protocol.

    It knows the messages that it observes inside its window and the public vectors that it `knows`
    by name, but nothing about rounds after the window.

    Args:
        declared: The protocol.
        adversary: The adversary.
        own: Whether it also knows all vectors of its corrupt nodes, and the noise that their
            equations use; if not, it knows only what a recorded trace contains.
    """
    if declared.graph is not None:
        nodes = declared.graph.nodes
        missing = [n for n in sorted(adversary.corrupt) if n >= nodes]
        if missing:
            raise LeakauditError(
                f"node {missing[0]} does not exist (the graph has nodes 0-{nodes - 1})"
            )
    known_places: list[int] = []
    for vector, some in declared.classes(by_round=adversary.window is not None):
        if _knows(adversary, vector, own):
            known_places += some
    if own:
        # A node holds the noise that its equations use, such as masks of a pair. Other vectors may
        # enter them without being shown, as in a secure sum.
        window = adversary.window
        for k, holders in declared.shares.items():
            vector = declared.vectors[k]
            late = window is not None and vector.round >= window.stop
            if vector.kind == "noise" and not late and not holders.isdisjoint(adversary.corrupt):
                known_places.append(k)
    known = frozenset(known_places)
    return Knowledge(declared, known, tuple(range(len(declared.relations))))


def _knows(adversary: Adversary, vector: Vector, own: bool) -> bool:
    window = adversary.window
    if window is not None and vector.round >= window.stop:
        return False
    if vector.kind == "message":
        return (window is None or vector.round in window) and _heard(adversary, vector)
    if vector.kind == "public":
        return adversary.knows == "all" or vector.name in adversary.knows
    return own and vector.owner in adversary.corrupt


def _heard(adversary: Adversary, message: Vector) -> bool:
    src = message.owner
    assert src is not None
    if message.dst is None:
        return adversary.observes(src, None, secure=message.secure)
    return any(adversary.observes(src, dst, secure=message.secure) for dst in message.dst)
