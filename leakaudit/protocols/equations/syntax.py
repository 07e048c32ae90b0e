"""The parts of an equation of a protocol file, each with its place in the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NoReturn, TypeAlias

from leakaudit.errors import LeakauditError

SERVER = "server"  # the index of the server, which is the last node


@dataclass(frozen=True)
class Line:
    """One equation as it is written; it may extend over several lines of the file.

    Attributes:
        number: The line of the file on which it begins.
        text: The equation, with single spaces.
    """

    number: int
    text: str


class PlacedError(LeakauditError):
    """An error whose message names the line of the file."""


@dataclass(frozen=True)
class Place:
    """A place in a file, to which an error refers.

    Attributes:
        equation: The equation.
        line: The line of the file.
        column: The column in this line, counted from 1.
    """

    equation: Line
    line: int
    column: int

    def error(self, says: str) -> NoReturn:
        """Raise an error about this place.

        Args:
            says: What was expected, what was found and what to do.

        Raises:
            PlacedError: Always.
        """
        raise PlacedError(
            f"line {self.line}, column {self.column}, in '{shown(self.equation.text)}': {says}"
        )


def shown(text: str) -> str:
    """Return an equation at a length that fits into a message.

    Args:
        text: The equation.
    """
    if len(text) > 120:
        return f"{text[:117]}..."
    return text


@dataclass(frozen=True)
class Index:
    """A node: a letter that stands for any node, the server, or a number.

    Attributes:
        name: The letter, or `SERVER`; empty for a number.
        node: The number.
        place: Where it is written.
    """

    name: str
    node: int
    place: Place

    @property
    def is_letter(self) -> bool:
        """Whether the index stands for any node."""
        return bool(self.name) and self.name != SERVER


@dataclass(frozen=True)
class Group:
    """A set of nodes, such as ``neighbours(i)``.

    Attributes:
        name: A key of `GROUPS`.
        of: The node whose neighbours are meant; None for the node of the equation.
        place: Where it is written.
    """

    name: str
    of: Index | None
    place: Place


# Group -> whether it belongs to a node.
GROUPS = {"neighbours": True, "closed_neighbours": True, "nodes": False, "clients": False}
ALL = "all"  # the receivers of a message on a public board


@dataclass(frozen=True)
class Constant:
    """A number.

    Attributes:
        value: Its exact value.
        place: Where it is written.
    """

    value: Fraction
    place: Place


@dataclass(frozen=True)
class Name:
    """A constant, the round ``t``, or a public vector.

    Attributes:
        name: Its name.
        place: Where it is written.
    """

    name: str
    place: Place


@dataclass(frozen=True)
class Indexed:
    """A vector such as ``w[i]`` or ``z[i,j]``, or an entry of a matrix.

    Attributes:
        name: Its name.
        at: One or two indices.
        back: Number of rounds by which its value is older: 1 for ``w[i,t-1]``.
        place: Where it is written.
    """

    name: str
    at: tuple[Index, ...]
    back: int
    place: Place


@dataclass(frozen=True)
class Heard:
    """A message such as ``m[j -> i]``, as node i received it.

    Attributes:
        name: Kind of the message.
        src: The sender.
        dst: The receiver, or a group of receivers.
        place: Where it is written.
    """

    name: str
    src: Index
    dst: Index | Group
    place: Place


@dataclass(frozen=True)
class Negative:
    """The negative of an expression.

    Attributes:
        of: The expression.
        place: Where the sign is written.
    """

    of: Expr
    place: Place


@dataclass(frozen=True)
class Binary:
    """Two expressions with ``+``, ``-``, ``*``, ``/`` or ``^`` between them.

    Attributes:
        sign: The operator.
        left: The first operand.
        right: The second operand.
        place: Where the operator is written.
    """

    sign: str
    left: Expr
    right: Expr
    place: Place


@dataclass(frozen=True)
class Total:
    """``sum(j in neighbours: ...)`` or ``mean(j in neighbours: ...)``.

    Attributes:
        mean: Whether the sum is divided by the number of its terms.
        letter: The index.
        over: The nodes.
        body: The term of one node.
        place: Where it is written.
    """

    mean: bool
    letter: Index
    over: Group
    body: Expr
    place: Place


@dataclass(frozen=True)
class Call:
    """A function such as ``grad(w[i])``.

    Attributes:
        name: A key of `FUNCTIONS`.
        arguments: The expressions in parentheses; a group or a word is a `Name`.
        of: The node or group in parentheses, for ``degree(i)`` and ``count(clients)``.
        place: Where it is written.
    """

    name: str
    arguments: tuple[Expr, ...]
    of: Index | Group | None
    place: Place


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

Expr: TypeAlias = Constant | Name | Indexed | Heard | Negative | Binary | Total | Call


@dataclass(frozen=True)
class Assign:
    """``w[i] = ...``; or ``a = ...``, a number of the round.

    Attributes:
        target: What receives a value.
        value: Its value.
        line: The equation.
    """

    target: Indexed | Name
    value: Expr
    line: Line


@dataclass(frozen=True)
class Solve:
    """``w[i] solves ... = ...``: an implicit equation for a new value.

    Attributes:
        target: The unknown.
        left: The left-hand side.
        right: The right-hand side.
        line: The equation.
    """

    target: Indexed
    left: Expr
    right: Expr
    line: Line


@dataclass(frozen=True)
class Send:
    """``m[i -> neighbours] = ...``.

    Attributes:
        target: Kind, sender and receivers.
        value: The content.
        width: Width of the cells to which the channel rounds; None if it does not.
        secure: Whether an outsider cannot read the message.
        line: The equation.
    """

    target: Heard
    value: Expr
    width: Expr | None
    secure: bool
    line: Line


@dataclass(frozen=True)
class Repeat:
    """``repeat K:``, followed by indented equations.

    Attributes:
        count: Number of times.
        body: The equations.
        line: The line that begins it.
    """

    count: Expr
    body: tuple[Statement, ...]
    line: Line


Statement: TypeAlias = Assign | Solve | Send | Repeat


def parts(expression: Expr) -> Iterator[Expr]:
    """Yield an expression and all expressions in it.

    Args:
        expression: Any expression.
    """
    yield expression
    inner: tuple[Expr, ...] = ()
    if isinstance(expression, Negative):
        inner = (expression.of,)
    elif isinstance(expression, Binary):
        inner = (expression.left, expression.right)
    elif isinstance(expression, Total):
        inner = (expression.body,)
    elif isinstance(expression, Call):
        inner = expression.arguments
    for one in inner:
        yield from parts(one)


def flat(statements: tuple[Statement, ...]) -> Iterator[Statement]:
    """Yield statements, and those inside of repetitions.

    Args:
        statements: The statements of a block.
    """
    for statement in statements:
        yield statement
        if isinstance(statement, Repeat):
            yield from flat(statement.body)


def expressions(statement: Statement) -> tuple[Expr, ...]:
    """Return the expressions of a statement, without those of repeated statements.

    Args:
        statement: Any statement.
    """
    if isinstance(statement, Repeat):
        return (statement.count,)
    if isinstance(statement, Solve):
        return (statement.left, statement.right)
    if isinstance(statement, Send) and statement.width is not None:
        return (statement.value, statement.width)
    return (statement.value,)
