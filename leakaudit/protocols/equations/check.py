"""Checks names, indices and kinds of all expressions of a protocol file, before any is used."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias

from leakaudit.core.errors import suggest
from leakaudit.protocols.equations.definition import Definition
from leakaudit.protocols.equations.syntax import (
    ALL,
    FUNCTIONS,
    GROUPS,
    SERVER,
    Assign,
    Binary,
    Constant,
    Expr,
    FunctionCall,
    IndexedVector,
    NodeIndex,
    NodeSet,
    ReceivedMessage,
    Repeat,
    Send,
    SourcePosition,
    Statement,
    Symbol,
    Total,
)
from leakaudit.theory.relations.expression import LAWS

# A number, a vector, or the number 0, which is a vector as well.
Sort: TypeAlias = Literal["number", "vector", "zero"]
WORDS = ("t", "in", "repeat", "secure", "solves", ALL, SERVER)
NESTED = 3  # sums inside of sums: a choice; papers need two
ONCE = ("grad", "noise", "secret", "opaque")  # every occurrence is a new vector


def check(definition: Definition) -> None:
    """Check every equation."""
    _targets(definition)
    for statement in definition.statements:
        _Checker(definition, statement).check()


def _targets(definition: Definition) -> None:
    vectors = definition.vectors
    for statement in definition.statements:
        if isinstance(statement, Repeat):
            continue
        target = statement.target
        name = target.name
        if name in WORDS or name in FUNCTIONS or name in GROUPS:
            target.place.error(f"'{name}' is a word of the notation; choose another name")
        if isinstance(target, ReceivedMessage):
            continue
        for group, known in (
            ("constant", definition.constants),
            ("matrix", definition.matrices),
            ("public vector", definition.public),
        ):
            if name in known:
                target.place.error(f"'{name}' is a {group} already; choose another name")
        if isinstance(target, Symbol):
            if name in vectors:
                target.place.error(f"'{name}' is a vector of every node; write {name}[i] = ...")
        elif name in definition.numbers:
            target.place.error(f"'{name}' is a number of the round already; choose another name")
        elif len(target.at) != vectors[name]:
            wanted = _indices(vectors[name])
            target.place.error(f"'{name}' has {wanted} above; a name has one form")


def _indices(count: int) -> str:
    if count == 1:
        return "one index"
    return f"{count} indices"


@dataclass(frozen=True)
class _Scope:
    """Where an expression stands."""

    letters: frozenset[str]  # the indices that have a meaning
    sums: int = 0  # number of sums around it


class _Checker:
    """Checks one statement."""

    def __init__(self, definition: Definition, statement: Statement) -> None:
        self.known = definition
        self.statement = statement
        self.owner: NodeIndex | None = None
        self.pair = False

    def check(self) -> None:
        statement = self.statement
        if isinstance(statement, Repeat):
            self._number(statement.count, _Scope(frozenset()), "the number of repetitions")
            return
        target = statement.target
        if isinstance(target, Symbol):
            self._number(statement.value, _Scope(frozenset()), f"'{target.name}'")
            return
        scope = _Scope(frozenset(self._of_target(target)))
        if isinstance(statement, Assign) and statement.left is not None:
            self._vector(statement.left, scope)
        if isinstance(statement, Send) and statement.width is not None:
            self._number(statement.width, scope, "the width of a cell")
        self._vector(statement.value, scope)

    def _of_target(self, target: IndexedVector | ReceivedMessage) -> list[str]:
        if isinstance(target, IndexedVector):
            if target.back:
                target.place.error("an equation defines the value of this round; remove t-...")
            indices = list(target.at)
        else:
            indices = [target.src]
            if isinstance(target.dst, NodeIndex):
                indices.append(target.dst)
            else:
                self._receivers(target.dst, target.src)
        letters: list[str] = []
        for index in indices:
            self._server(index)
            if index.is_letter and index.name in letters:
                index.place.error("expected two different indices: a node is not its neighbour")
            if index.is_letter:
                self._letter(index)
                letters.append(index.name)
        self.owner = indices[0]
        self.pair = len(letters) > 1
        return letters

    def _receivers(self, group: NodeSet, src: NodeIndex) -> None:
        if group.name == "clients" and not self.known.server:
            group.place.error('there are no clients without a server; set graph = "server"')
        if group.name == "clients" and src.name != SERVER:
            group.place.error("only the server sends to all clients: m[server -> clients]")
        if group.name not in ("neighbours", "clients", ALL):
            group.place.error(f"expected neighbours, clients, all or a node, got '{group.name}'")
        if group.of is not None and group.of.name != src.name:
            group.place.error("a node sends to its own neighbours only")

    def _letter(self, index: NodeIndex) -> None:
        taken = {**self.known.constants, **self.known.matrices, **self.known.vectors}
        if index.name in WORDS or index.name in taken or index.name in FUNCTIONS:
            index.place.error(f"expected a letter that has no other meaning, got '{index.name}'")

    def _server(self, index: NodeIndex) -> None:
        if index.name == SERVER and not self.known.server:
            index.place.error('there is no server; set graph = "server"')

    def _bound(self, index: NodeIndex, scope: _Scope) -> None:
        self._server(index)
        if index.is_letter and index.name not in scope.letters:
            says = f"'{index.name}' is no index of this equation"
            if index.name in self.known.constants:
                says = f"'{index.name}' is a constant, not an index"
            index.place.error(f"{says}; sum over it, or put it on the left-hand side")

    def _number(self, expression: Expr, scope: _Scope, what: str) -> None:
        if self._sort(expression, scope) == "vector":
            expression.place.error(f"{what} must be a number, got a vector")

    def _vector(self, expression: Expr, scope: _Scope) -> None:
        if self._sort(expression, scope) == "number":
            expression.place.error("expected a vector on this side, got a number")

    def _sort(self, expression: Expr, scope: _Scope) -> Sort:
        if isinstance(expression, Constant):
            return "number" if expression.value else "zero"
        if isinstance(expression, Symbol):
            return self._name(expression)
        if isinstance(expression, IndexedVector):
            return self._indexed(expression, scope)
        if isinstance(expression, ReceivedMessage):
            return self._heard(expression, scope)
        if isinstance(expression, Binary):
            return self._binary(expression, scope)
        if isinstance(expression, Total):
            return self._total(expression, scope)
        return self._call(expression, scope)

    def _name(self, name: Symbol) -> Sort:
        known = self.known
        if name.name == "t" or name.name in known.constants or name.name in known.numbers:
            return "number"
        if name.name in known.public:
            return "vector"
        if name.name in known.vectors:
            at = ",".join("ij"[: known.vectors[name.name]])
            name.place.error(f"'{name.name}' is a vector of a node; write {name.name}[{at}]")
        if name.name in known.matrices:
            name.place.error(f"'{name.name}' is a matrix; write {name.name}[i,j]")
        names = [*known.constants, *known.public, *known.numbers, *known.vectors, "t"]
        name.place.error(f"there is nothing called '{name.name}'{suggest(name.name, names)}")

    def _indexed(self, vector: IndexedVector, scope: _Scope) -> Sort:
        known = self.known
        if vector.name in known.matrices:
            if len(vector.at) != 2 or vector.back:
                vector.place.error(f"expected two indices of the matrix, as in {vector.name}[i,j]")
            self._all_bound(vector.at, scope)
            return "number"
        if vector.name in known.constants or vector.name in known.numbers:
            vector.place.error(f"'{vector.name}' is a number; write it without indices")
        if vector.name not in known.vectors:
            says = f"there is no vector '{vector.name}'"
            if vector.name in known.kinds:
                says += f"; a message is written {vector.name}[j -> i]"
                vector.place.error(says)
            names = [*known.vectors, *known.matrices]
            vector.place.error(f"{says}{suggest(vector.name, names)}")
        if len(vector.at) != known.vectors[vector.name]:
            wanted = _indices(known.vectors[vector.name])
            vector.place.error(f"expected {wanted} of '{vector.name}', got {len(vector.at)}")
        self._all_bound(vector.at, scope)
        return "vector"

    def _heard(self, message: ReceivedMessage, scope: _Scope) -> Sort:
        if message.name not in self.known.kinds:
            near = suggest(message.name, self.known.kinds)
            message.place.error(f"there is no message '{message.name}'{near}")
        self._bound(message.src, scope)
        if isinstance(message.dst, NodeIndex):
            self._bound(message.dst, scope)
        else:
            self._receivers(message.dst, message.src)
        return "vector"

    def _all_bound(self, indices: Collection[NodeIndex], scope: _Scope) -> None:
        for index in indices:
            self._bound(index, scope)

    def _binary(self, binary: Binary, scope: _Scope) -> Sort:
        left = self._sort(binary.left, scope)
        right = self._sort(binary.right, scope)
        if binary.sign in "+-":
            if {left, right} == {"number", "vector"}:
                binary.place.error("cannot add a number and a vector")
            return "vector" if "vector" in (left, right) else _either(left, right)
        if binary.sign == "*":
            if left == right == "vector":
                binary.place.error(
                    "the product of two vectors is not linear; declare the step as opaque(...)"
                )
            return "vector" if "vector" in (left, right) else "number"
        if right == "vector":
            what = "an exponent" if binary.sign == "^" else "a divisor"
            binary.place.error(
                f"{what} must be a number, got a vector; declare a step that is not linear as "
                "opaque(...)"
            )
        if binary.sign == "^" and left == "vector":
            binary.place.error(
                "the power of a vector is not linear; declare the step as opaque(...)"
            )
        return left

    def _total(self, total: Total, scope: _Scope) -> Sort:
        if scope.sums >= NESTED:
            total.place.error(f"expected at most {NESTED} sums inside of each other")
        if total.letter.name in scope.letters:
            total.letter.place.error(
                f"'{total.letter.name}' is an index of the equation already; choose another letter"
            )
        self._letter(total.letter)
        self._group(total.over, scope)
        inside = _Scope(scope.letters | {total.letter.name}, scope.sums + 1)
        return self._sort(total.body, inside)

    def _group(self, group: NodeSet, scope: _Scope) -> None:
        if group.name == "clients" and not self.known.server:
            group.place.error('there are no clients without a server; set graph = "server"')
        if group.of is not None:
            self._bound(group.of, scope)
        elif GROUPS[group.name] and self.owner is None:
            group.place.error(f"whose neighbours? write {group.name}(i)")

    def _call(self, call: FunctionCall, scope: _Scope) -> Sort:
        if call.name == "degree" and isinstance(call.of, NodeIndex):
            self._bound(call.of, scope)
            return "number"
        if call.name == "count" and isinstance(call.of, NodeSet):
            self._group(call.of, scope)
            return "number"
        if call.name == "rounding":
            call.place.error(
                "rounding(width) stands at the end of a message: m[i -> j] = ... + rounding(width)"
            )
        if self.owner is None:
            call.place.error(f"{call.name}() is a vector, but a number is defined here")
        if call.name in ONCE and scope.sums:
            call.place.error(
                f"every {call.name} is a new vector, also in each term of a sum; give it a name "
                f"in an equation of its own: x[i] = {FUNCTIONS[call.name]}"
            )
        self._arguments(call, scope)
        return "vector"

    def _arguments(self, call: FunctionCall, scope: _Scope) -> None:
        given = call.arguments
        wanted = f"expected {FUNCTIONS[call.name]}, got {len(given)} arguments"
        if call.name == "grad":
            if len(given) != 1:
                call.place.error(wanted)
            self._vector(given[0], scope)
            self._gradient(call.place)
        elif call.name == "noise":
            if len(given) not in (1, 2):
                call.place.error(wanted)
            self._number(given[0], scope, "the standard deviation")
            if len(given) == 2:
                _law(given[1])
        elif call.name == "secret":
            if given:
                call.place.error(wanted)
        else:
            if not given:
                call.place.error(wanted)
            for one in given:
                self._vector(one, scope)

    def _gradient(self, place: SourcePosition) -> None:
        """Check that the equation says whose gradient is meant, and takes it once."""
        if self.owner is not None and self.owner.name == SERVER:
            place.error("the server has no data, so it has no gradient")
        if self.pair:
            place.error(
                "this equation holds for every pair of nodes, and each would have a gradient of "
                "its own; take it once: g[i] = grad(w[i])"
            )


def _either(left: Sort, right: Sort) -> Sort:
    """Return the sort of a sum without vectors."""
    if left == right == "zero":
        return "zero"
    return "number"


def _law(expression: Expr) -> None:
    if not isinstance(expression, Symbol) or expression.name not in LAWS:
        given = getattr(expression, "name", "")
        expression.place.error(f"expected a distribution{suggest(given, LAWS)}")
