"""What one adversary knows of a declaration: E = [F | B | K] of docs/relations.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from leakaudit.adversary import Adversary
from leakaudit.errors import LeakauditError
from leakaudit.relations.declare import Relation, Relations
from leakaudit.relations.expression import Expression, Vector


@dataclass(frozen=True)
class Knowledge:
    """A declaration, the vectors in it that somebody knows, and the relations that are used.

    declared: the protocol. known: places of the known vectors (K). rows: places of the relations in use.
    A part of the relations gives a lower bound on what leaks; it is never evidence that nothing else does.
    """

    declared: Relations
    known: frozenset[int]
    rows: tuple[int, ...]

    @cached_property
    def relations(self) -> list[Relation]:
        """The relations in use."""
        return [self.declared.relations[r] for r in self.rows]

    @cached_property
    def used(self) -> frozenset[int]:
        """Places of the vectors that occur in them."""
        return frozenset(k for r in self.relations for k in r.terms)

    @cached_property
    def flat(self) -> list[int]:
        """Unknown vectors without a prior (F), in the order of declaration."""
        return [
            k for k in sorted(self.used - self.known) if self.declared.vectors[k].kind != "noise"
        ]

    @cached_property
    def noise(self) -> list[int]:
        """Unknown noise (B), in the order of declaration."""
        return [
            k for k in sorted(self.used - self.known) if self.declared.vectors[k].kind == "noise"
        ]

    def also(self, vectors: Iterable[Expression]) -> Knowledge:
        """Add vectors to what is known."""
        return replace(self, known=self.known | {v.vector for v in vectors})

    def within(self, rounds: range) -> Knowledge:
        """Use only the relations of these rounds."""
        return replace(
            self, rows=tuple(r for r in self.rows if self.declared.relations[r].round in rounds)
        )

    def before(self, gradient: Expression) -> Knowledge:
        """Use only the relations that were declared before this gradient."""
        count = self.declared.points[gradient.vector].before
        return replace(self, rows=tuple(r for r in self.rows if r < count))

    def near(self, nodes: Iterable[int]) -> Knowledge:
        """Use only the relations around some nodes: those whose unknowns all occur beside an unknown of these nodes."""
        relations, by_owner, by_vector = self.declared.relations, *self._index
        touched = {r for node in nodes for k in by_owner[node] for r in by_vector[k]}
        around = {k for r in touched for k in relations[r].terms if k not in self.known}
        beside = {r for k in around for r in by_vector[k]}
        rows = (
            r for r in beside if all(k in around or k in self.known for k in relations[r].terms)
        )
        return replace(self, rows=tuple(sorted(rows)))

    @cached_property
    def _index(self) -> tuple[dict[int | None, list[int]], dict[int, list[int]]]:
        """Unknown vectors in use by owner, and rows by unknown vector."""
        by_owner, by_vector = (
            defaultdict[int | None, list[int]](list),
            defaultdict[int, list[int]](list),
        )
        for r in self.rows:
            for k in self.declared.relations[r].terms:
                if k not in self.known:
                    by_vector[k].append(r)
        for k in by_vector:
            by_owner[self.declared.vectors[k].owner].append(k)
        return by_owner, by_vector


def know(declared: Relations, adversary: Adversary, *, own: bool = True) -> Knowledge:
    """Return what an adversary knows of a declared protocol.

    Messages that it taps, that its corrupt nodes send or receive, or that go to everybody, inside its window; public vectors that
    it `knows` by name; with own=True all vectors of corrupt nodes. Nothing of a round after the window. own=False leaves what a
    recorded trace holds.
    """
    if declared.graph and (
        missing := [n for n in sorted(adversary.corrupt) if n >= declared.graph.nodes]
    ):
        raise LeakauditError(
            f"there is no node {missing[0]}: the graph has nodes 0 to {declared.graph.nodes - 1}"
        )
    known = frozenset(k for k, v in enumerate(declared.vectors) if _knows(adversary, v, own))
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
    if src is None:
        raise LeakauditError(f"{message.label} has no sender")
    if message.dst is None:
        return adversary.observes(src, None, secure=message.secure)
    return any(adversary.observes(src, dst, secure=message.secure) for dst in message.dst)
