"""What a protocol file says, after it is read: constants, matrices and equations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias, get_args

from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph
from leakaudit.protocols.equations.syntax import (
    Assign,
    IndexedVector,
    Send,
    Statement,
    Symbol,
    flat,
)
from leakaudit.protocols.mixing import metropolis

Rule: TypeAlias = Literal["metropolis", "uniform", "max-degree", "sign"]
RULES: tuple[str, ...] = get_args(Rule)
Rows: TypeAlias = tuple[tuple[Fraction, ...], ...]
Entries: TypeAlias = Mapping[tuple[int, int], Fraction]


@dataclass(frozen=True)
class Definition:
    """The contents of a protocol file."""

    name: str
    summary: str  # what it does, in one sentence
    paper: str
    server: bool  # whether the last node is a server without data
    constants: Mapping[str, float]  # constants by name, with their default values
    # matrices by name: the rule that gives their entries, or the rows
    matrices: Mapping[str, Rule | Rows]
    public: tuple[str, ...]  # names of vectors that everybody knows
    start: tuple[Statement, ...]  # equations that hold before the first round
    # equations of the first round, if it differs from the others; else empty
    first: tuple[Statement, ...]
    round: tuple[Statement, ...]  # equations of every round
    text: str  # the file itself

    @property
    def statements(self) -> Iterator[Statement]:
        """All statements, in the order of the file."""
        yield from flat(self.start)
        yield from flat(self.first)
        yield from flat(self.round)

    @property
    def vectors(self) -> dict[str, int]:
        """Vectors that have equations, with the number of their indices."""
        found: dict[str, int] = {}
        for statement in self.statements:
            target = getattr(statement, "target", None)
            if isinstance(target, IndexedVector):
                found.setdefault(target.name, len(target.at))
        return found

    @property
    def numbers(self) -> set[str]:
        """Numbers that have equations."""
        found: set[str] = set()
        for statement in self.statements:
            if isinstance(statement, Assign) and isinstance(statement.target, Symbol):
                found.add(statement.target.name)
        return found

    @property
    def kinds(self) -> set[str]:
        """Kinds of messages."""
        return {one.target.name for one in self.statements if isinstance(one, Send)}


def entries(rule: Rule | Rows, graph: Graph) -> Entries:
    """Return the entries of a matrix on a graph."""
    if not isinstance(rule, str):
        return _of_rows(rule, graph)
    if rule == "metropolis":
        return metropolis(graph)
    found: dict[tuple[int, int], Fraction] = {}
    degrees = [graph.degree(i) for i in range(graph.nodes)]
    for i, near in enumerate(graph.neighbours):
        for j in near:
            if rule == "sign":
                found[i, j] = Fraction(1 if i < j else -1)
            elif rule == "uniform":
                found[i, j] = Fraction(1, 1 + degrees[i])
            else:
                found[i, j] = Fraction(1, 1 + max(degrees))
        if rule != "sign":
            found[i, i] = 1 - sum((found[i, j] for j in near), Fraction(0))
    return found


def _of_rows(rows: Rows, graph: Graph) -> Entries:
    if len(rows) != graph.nodes:
        raise LeakauditError(
            f"the matrix has {len(rows)} rows, but the graph has {graph.nodes} nodes"
        )
    found: dict[tuple[int, int], Fraction] = {}
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            found[i, j] = value
    return found
