"""The parts of an equation of a protocol file, each with its place in the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NoReturn, TypeAlias

from leakaudit.core.errors import LeakauditError

SERVER = "server"  # the index of the server, which is the last node


@dataclass(frozen=True)
class EquationLine:
    """One equation as it is written; it may extend over several lines of the file."""

    number: int  # the line of the file on which it begins
    text: str  # the equation, with single spaces


class PlacedError(LeakauditError):
    """An error whose message names the line of the file."""


@dataclass(frozen=True)
class SourcePosition:
    """A place in a file, to which an error refers."""

    equation: EquationLine
    line: int
    column: int  # the column in this line, counted from 1

    def error(self, says: str) -> NoReturn:
        """Raise an error about this place."""
        raise PlacedError(
            f"line {self.line}, column {self.column}, in '{shown(self.equation.text)}': {says}"
        )


def shown(text: str) -> str:
    """Return an equation at a length that fits into a message."""
    if len(text) > 120:
        return f"{text[:117]}..."
    return text


@dataclass(frozen=True)
class NodeIndex:
    """A node: a letter that stands for any node, the server, or a number."""

    name: str  # the letter, or `SERVER`; empty for a number
    node: int
    place: SourcePosition

    @property
    def is_letter(self) -> bool:
        """Whether the index stands for any node."""
        return bool(self.name) and self.name != SERVER


@dataclass(frozen=True)
class NodeSet:
    """A set of nodes, such as ``neighbours(i)``."""

    name: str  # a key of `GROUPS`
    of: NodeIndex | None  # the node whose neighbours are meant; None for the node of the equation
    place: SourcePosition


# Group -> whether it belongs to a node.
GROUPS = {"neighbours": True, "closed_neighbours": True, "nodes": False, "clients": False}
ALL = "all"  # the receivers of a message on a public board


@dataclass(frozen=True)
class Constant:
    """A number."""

    value: Fraction
    place: SourcePosition


@dataclass(frozen=True)
class Symbol:
    """A constant, the round ``t``, or a public vector."""

    name: str
    place: SourcePosition


@dataclass(frozen=True)
class IndexedVector:
    """A vector such as ``w[i]`` or ``z[i,j]``, or an entry of a matrix."""

    name: str
    at: tuple[NodeIndex, ...]  # one or two indices
    back: int  # number of rounds by which its value is older: 1 for `w[i,t-1]`
    place: SourcePosition


@dataclass(frozen=True)
class ReceivedMessage:
    """A message such as ``m[j -> i]``, as node i received it."""

    name: str  # kind of the message
    src: NodeIndex
    dst: NodeIndex | NodeSet  # the receiver, or a group of receivers
    place: SourcePosition


@dataclass(frozen=True)
class Binary:
    """Two expressions with ``+ - * /`` or ``^`` between them; ``-x`` is ``0 - x``."""

    sign: str
    left: Expr  # the first operand
    right: Expr  # the second operand
    place: SourcePosition  # where the operator is written


@dataclass(frozen=True)
class Total:
    """``sum(j in neighbours: ...)`` or ``mean(j in neighbours: ...)``."""

    mean: bool  # whether the sum is divided by the number of its terms
    letter: NodeIndex
    over: NodeSet
    body: Expr  # the term of one node
    place: SourcePosition


@dataclass(frozen=True)
class FunctionCall:
    """A function such as ``grad(w[i])``."""

    name: str  # a key of `FUNCTIONS`
    arguments: tuple[Expr, ...]  # the expressions in parentheses; a group or a word is a `Symbol`
    # the node or group in parentheses, for `degree(i)` and `count(clients)`
    of: NodeIndex | NodeSet | None
    place: SourcePosition


FUNCTIONS = {
    "grad": "grad(w[i])",
    "noise": "noise(sigma)",
    "secret": "secret()",
    "opaque": "opaque(w[i], g[i])",
    "rounding": "rounding(width)",
    "degree": "degree(i)",
    "count": "count(nodes)",
    "sum": "sum(j in neighbours: w[j])",
    "mean": "mean(j in clients: w[j])",
}

Expr: TypeAlias = (
    Constant | Symbol | IndexedVector | ReceivedMessage | Binary | Total | FunctionCall
)


@dataclass(frozen=True)
class Assign:
    """``w[i] = ...``, ``w[i] solves ... = ...``; or ``a = ...``, a number of the round."""

    target: IndexedVector | Symbol  # what receives a value
    value: Expr  # the right-hand side
    line: EquationLine
    left: Expr | None = None  # the left-hand side, if it is not the target


@dataclass(frozen=True)
class Send:
    """``m[i -> neighbours] = ...``."""

    target: ReceivedMessage  # kind, sender and receivers
    value: Expr
    width: Expr | None  # width of the cells to which the channel rounds; None if it does not
    secure: bool  # whether an outsider cannot read the message
    line: EquationLine


@dataclass(frozen=True)
class Repeat:
    """``repeat K:``, followed by indented equations."""

    count: Expr  # number of times
    body: tuple[Statement, ...]
    line: EquationLine


Statement: TypeAlias = Assign | Send | Repeat


def parts(expression: Expr) -> Iterator[Expr]:
    """Yield an expression and all expressions in it."""
    yield expression
    inner: tuple[Expr, ...] = ()
    if isinstance(expression, Binary):
        inner = (expression.left, expression.right)
    elif isinstance(expression, Total):
        inner = (expression.body,)
    elif isinstance(expression, FunctionCall):
        inner = expression.arguments
    for one in inner:
        yield from parts(one)


def flat(statements: tuple[Statement, ...]) -> Iterator[Statement]:
    """Yield statements, and those inside of repetitions."""
    for statement in statements:
        yield statement
        if isinstance(statement, Repeat):
            yield from flat(statement.body)


def expressions(statement: Statement) -> tuple[Expr, ...]:
    """Return the expressions of a statement, without those of repeated statements."""
    if isinstance(statement, Repeat):
        return (statement.count,)
    if isinstance(statement, Assign) and statement.left is not None:
        return (statement.left, statement.value)
    if isinstance(statement, Send) and statement.width is not None:
        return (statement.value, statement.width)
    return (statement.value,)
