"""Declares the relations of a protocol file on a graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias, cast

from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import LARGEST_SETTING, SMALLEST_SETTING
from leakaudit.core.trace import Graph
from leakaudit.protocols.equations.definition import Definition, Entries, entries
from leakaudit.protocols.equations.parse import OLDEST
from leakaudit.protocols.equations.syntax import (
    ALL,
    SERVER,
    Assign,
    Binary,
    Constant,
    EquationLine,
    Expr,
    FunctionCall,
    IndexedVector,
    NodeIndex,
    NodeSet,
    PlacedError,
    ReceivedMessage,
    Repeat,
    Send,
    SourcePosition,
    Statement,
    Symbol,
    Total,
    expressions,
    parts,
    shown,
)
from leakaudit.theory.relations import Expression, Relations, decimal
from leakaudit.theory.relations.expression import Form, Law, Vector
from leakaudit.theory.relations.repeat import shifted

# Bounds for malicious files. A protocol with four equations on a graph of degree 6 needs about 200
# steps per node and round; a sum over 1,000 nodes needs 5,000. A coefficient with 4096 bits has
# 1,200 digits.
STEPS = 20_000
BITS = 4096
MOST = 1000  # repetitions, and the largest exponent

Key: TypeAlias = tuple[str, int, int]  # name, node, and the other node or -1
NOBODY = -1
DEFAULTS = {"grad": "g", "noise": "noise", "secret": "secret", "opaque": "opaque"}


@dataclass(frozen=True)
class FileRelations:
    """The relations of a protocol file, with the equation behind each."""

    relations: Relations
    lines: Sequence[EquationLine]  # for every relation, the equation from which it comes
    # for every vector, the equation in which it was created; None for public vectors
    origins: Sequence[EquationLine | None]


def declare(
    definition: Definition, constants: Mapping[str, float], graph: Graph, rounds: int
) -> FileRelations:
    """Declare a protocol on a graph."""
    made = _Declaration(definition, constants, graph)
    made.run(rounds)
    return FileRelations(made.p, made.lines, made.origins)


@dataclass(frozen=True)
class _Frame:
    """The nodes for which an expression is evaluated."""

    node: int
    letters: Mapping[str, int]  # index -> node

    def at(self, letter: str, node: int) -> _Frame:
        return _Frame(self.node, {**self.letters, letter: node})


class _Declaration:
    """Evaluates the equations in order."""

    def __init__(
        self, definition: Definition, constants: Mapping[str, float], graph: Graph
    ) -> None:
        # What does not change.
        self.definition = definition
        self.graph = graph
        self.exact = {name: decimal(value) for name, value in constants.items()}
        self.matrices: dict[str, Entries] = {}
        self.server = graph.nodes - 1
        self.holders = range(graph.nodes)
        if definition.server:
            self.holders = self.holders[:-1]

        # What has been declared.
        self.p = Relations(graph)
        self.public = {name: self.p.public(name) for name in definition.public}
        self.lines: list[EquationLine] = []
        self.origins: list[EquationLine | None] = [None] * len(self.p.vectors)

        # How private vectors travel: what shows each vector (vector defined, relation), the other
        # end of random vectors of a pair, and the nodes that hold a vector of another.
        self._indexed_rows = 0
        self._shown = defaultdict[int, list[tuple[int, int]]](list)
        self._ends: dict[int, int] = {}
        self._carried = defaultdict[int, set[int]](set)

        # Current values: of vectors now and at the ends of earlier rounds, of numbers, of messages.
        self.now: dict[Key, Form] = {}
        self.past: list[dict[Key, Form]] = []
        self.numbers: dict[str, Fraction] = {}
        self.heard: dict[Key, Expression] = {}

        # The statement that is evaluated, the number of its repetition, and the names it has used.
        self.value: Expr | None = None
        self.pair = NOBODY
        self.turn = 0
        self.used: dict[tuple[str, int, int], int] = {}
        self.steps = 0
        self.most = STEPS

    def run(self, rounds: int) -> None:
        self.most = STEPS * self.graph.nodes * (rounds + 1)
        self._block(self.definition.start)
        compared = max(1, self._oldest) + 1
        kept: list[object] = []
        for t in self.p.rounds(rounds):
            # Vectors are never changed in place, so a shallow copy keeps the values of a round.
            self.past = [dict(self.now), *self.past[: OLDEST - 1]]
            self.used.clear()
            block = self.definition.round
            if t == 1 and self.definition.first:
                block = self.definition.first
            self._block(block)
            if t > rounds - compared:
                kept.append(self._values(t))
        # A round is determined by the values that it finds. If these are those of a round ago, one
        # round later, then so are all that follow; the relations alone do not tell, because a value
        # may be handed on for many rounds before it is used.
        self.p.settled = len(kept) == compared and all(one == kept[0] for one in kept)

    @property
    def _oldest(self) -> int:
        oldest = 0
        for statement in self.definition.statements:
            for expression in expressions(statement):
                for one in parts(expression):
                    if isinstance(one, IndexedVector):
                        oldest = max(oldest, one.back)
        return oldest

    def _values(self, t: int) -> tuple[object, ...]:
        found: list[object] = [dict(self.numbers)]
        for forms in (self.now, self.heard):
            without_times: dict[Key, object] = {}
            for key, value in forms.items():
                without_times[key] = value
                if isinstance(value, Expression):
                    without_times[key] = shifted(value.terms, -t, self.p.vectors)
            found.append(without_times)
        return tuple(found)

    def _block(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            if isinstance(statement, Repeat):
                self._repeat(statement)
                continue
            with _located(statement.line):
                self._statement(statement)
                self._travelled()
            while len(self.lines) < len(self.p.relations):
                self.lines.append(statement.line)
            while len(self.origins) < len(self.p.vectors):
                self.origins.append(statement.line)

    def _travelled(self) -> None:
        """Reject a private vector of another node that nothing carries to the node that uses it.

        Random vectors of a pair are known to both ends, as from a shared seed.
        """
        self._index_relations()
        vectors = self.p.vectors
        for k, nodes in self.p.shares.items():
            for node in nodes - self._carried[k]:
                if not self._reaches(k, node, set()):
                    raise LeakauditError(
                        f"node {node} uses {vectors[k].label} of node {vectors[k].owner}, but no "
                        f"message carries it to node {node}; send it in an equation above"
                    )
            self._carried[k] |= nodes

    def _index_relations(self) -> None:
        for row in range(self._indexed_rows, len(self.p.relations)):
            relation = self.p.relations[row]
            if not isinstance(relation.lhs, Expression) or len(relation.lhs.terms) != 1:
                continue
            (defined,) = relation.lhs.terms
            self._shown[defined].append((defined, row))
            if self.p.vectors[defined].kind == "message":
                for k in relation.terms.keys() - {defined}:
                    self._shown[k].append((defined, row))
        self._indexed_rows = len(self.p.relations)

    def _reaches(self, k: int, node: int, tried: set[int]) -> bool:
        """Return whether a node can compute a vector from what it holds, by single equations."""
        vector = self.p.vectors[k]
        if vector.owner in (None, node) or self._ends.get(k) == node or _is_to(vector, node):
            return True
        if k in tried:
            return False
        tried.add(k)
        for defined, row in self._shown[k]:
            others = self.p.relations[row].terms.keys() - {k}
            by_message = defined != k
            if by_message and not _is_to(self.p.vectors[defined], node):
                continue
            if all(self._reaches(other, node, tried) for other in others):
                return True
        return False

    def _repeat(self, statement: Repeat) -> None:
        count = self._number(statement.count, _Frame(NOBODY, {}))
        if count.denominator != 1 or not 0 <= count <= MOST:
            statement.count.place.error(
                f"expected a whole number of repetitions up to {MOST}, got {count}"
            )
        outer = self.turn
        for k in range(int(count)):
            self.turn = outer * int(count) + k + 1
            self._block(statement.body)
        self.turn = outer

    def _statement(self, statement: Assign | Send) -> None:
        """Evaluate an equation for all nodes at once: none of them uses a new value of another."""
        target = statement.target
        self.value = statement.value
        if isinstance(target, Symbol):
            self.numbers[target.name] = self._number(statement.value, _Frame(NOBODY, {}))
        elif isinstance(statement, Send):
            self._send(statement, statement.target)
        else:
            new: dict[Key, Form] = {}
            for frame, key in self._instances(cast(IndexedVector, target)):
                if statement.left is None:
                    new[key] = self._assigned(statement.value, key, frame)
                else:
                    new[key] = self._solved(statement.left, statement.value, key, frame)
            self.now.update(new)

    def _instances(self, target: IndexedVector) -> Iterator[tuple[_Frame, Key]]:
        """Yield the nodes, or pairs of neighbours, for which an equation holds."""
        pairs = self._pairs(target.at[0], target.at[-1])
        for frame, i, j in pairs:
            if len(target.at) == 1:
                j = NOBODY
            self.pair = j
            yield frame, (target.name, i, j)

    def _pairs(self, first: NodeIndex, second: NodeIndex) -> Iterator[tuple[_Frame, int, int]]:
        """Yield the values of two indices; both are the same object for a single index."""
        for i in self._range(first):
            letters = {}
            if first.is_letter:
                letters[first.name] = i
            if second is first:
                yield _Frame(i, letters), i, i
                continue
            for j in self._range(second):
                if first.is_letter and second.is_letter and j not in self.graph.neighbours[i]:
                    continue
                both = dict(letters)
                if second.is_letter:
                    both[second.name] = j
                yield _Frame(i, both), i, j

    def _range(self, index: NodeIndex) -> range:
        if index.is_letter:
            return self.holders
        node = self._node(index, _Frame(NOBODY, {}))
        return range(node, node + 1)

    def _assigned(self, right: Expr, key: Key, frame: _Frame) -> Form:
        """Return the new value of a vector: another vector, or a state with its definition."""
        name, i, j = key
        value = self._value(right, frame, name)
        if not isinstance(value, Expression):
            return value
        if len(value.terms) == 1 and next(iter(value.terms.values())) == 1:
            self.p.uses(i, value)
            return value
        return self.p.state(name, i, self._index(name, i, j), eq=value)

    def _solved(self, left: Expr, right: Expr, key: Key, frame: _Frame) -> Form:
        """Return a new state that is known only from an implicit equation."""
        name, i, j = key
        state = self.p.state(name, i, self._index(name, i, j))
        before = dict(self.now)
        self.now[key] = state
        sides = [self._value(side, frame, name) for side in (left, right)]
        self.now = before
        self.p.relate(*sides)
        return state

    def _index(self, name: str, i: int, j: int) -> int | None:
        """Return what distinguishes a vector from others of its name, node and round.

        It is the number of the repetition, or counts the vectors; for pairs of nodes, it is joined
        with the other node.
        """
        count = max(self.used.get((name, i, j), 0), self.turn)
        self.used[name, i, j] = count + 1
        if j == NOBODY:
            return count or None
        return j + self.graph.nodes * count

    def _send(self, statement: Send, target: ReceivedMessage) -> None:
        width = Fraction(0)
        sent: dict[Key, Expression] = {}
        replaced: dict[Key, Form] = {}
        second = target.src
        if isinstance(target.dst, NodeIndex):
            second = target.dst
        for frame, i, j in self._pairs(target.src, second):
            self.pair = NOBODY
            if isinstance(target.dst, NodeIndex):
                self.pair = j
            receivers = self._receivers(target.dst, i, j)
            if receivers is not None and not receivers:
                continue
            if statement.width is not None:
                width = self._number(statement.width, frame)
            content = self._value(statement.value, frame, target.name)
            if not isinstance(content, Expression):
                target.place.error(f"the message of node {i} is 0 in round {self.p.round}")
            # A rounding error is uniform on a cell: its variance is width^2 / 12.
            std = abs(_float(width, target.place)) / 12**0.5
            message = self.p.send(
                i, receivers, content, target.name, std=std, secure=statement.secure
            )
            to = range(self.graph.nodes) if receivers is None else receivers
            for receiver in (*to, i):
                sent[target.name, i, receiver] = message
            variable = self._variable(statement.value, frame)
            if variable is not None and not std and isinstance(target.dst, NodeSet):
                replaced[variable] = message
        self.heard.update(sent)
        # What is sent as it is, is the same vector as the message; then relations between nodes
        # contain messages only.
        self.now.update(replaced)

    def _variable(self, value: Expr, frame: _Frame) -> Key | None:
        if isinstance(value, IndexedVector) and not value.back:
            return self._key(value, frame)
        return None

    def _receivers(self, dst: NodeIndex | NodeSet, i: int, j: int) -> tuple[int, ...] | None:
        if isinstance(dst, NodeIndex):
            return (j,)
        if dst.name == ALL:
            return None
        if dst.name == "clients":
            return tuple(self.holders)
        return self.graph.neighbours[i]

    def _number(self, expression: Expr, frame: _Frame) -> Fraction:
        value = self._value(expression, frame, "")
        if isinstance(value, Expression):
            expression.place.error("expected a number, got a vector")
        return Fraction(value)

    def _value(self, expression: Expr, frame: _Frame, name: str) -> Form:
        """Evaluate an expression; a vector that it creates receives the name of the equation."""
        self.steps += 1
        if self.steps > self.most:
            expression.place.error(
                f"the equations need more than {STEPS} steps per node and round; repeat less, or "
                "sum over neighbours instead of all nodes"
            )
        if isinstance(expression, Constant):
            return expression.value
        if isinstance(expression, Symbol):
            return self._name(expression)
        if isinstance(expression, IndexedVector):
            return self._indexed(expression, frame)
        if isinstance(expression, ReceivedMessage):
            return self._message(expression, frame)
        if isinstance(expression, Total):
            return self._total(expression, frame, name)
        if isinstance(expression, FunctionCall):
            return self._call(expression, frame, name)
        return self._binary(expression, frame, name)

    def _name(self, name: Symbol) -> Form:
        if name.name == "t":
            return Fraction(self.p.round)
        if name.name in self.exact:
            return self.exact[name.name]
        if name.name in self.public:
            return self.public[name.name]
        if name.name not in self.numbers:
            name.place.error(f"'{name.name}' has no value yet in round {self.p.round}")
        return self.numbers[name.name]

    def _indexed(self, vector: IndexedVector, frame: _Frame) -> Form:
        if vector.name in self.definition.matrices:
            return self._entry(vector, frame)
        key = self._key(vector, frame)
        values = self.now
        if vector.back:
            if vector.back > len(self.past):
                vector.place.error(
                    f"round {self.p.round} refers to a value from before the start; give the "
                    'first round equations of its own: first = """..."""'
                )
            values = self.past[vector.back - 1]
        if key not in values:
            node = f"node {key[1]}"
            if key[2] != NOBODY:
                node += f" and node {key[2]}"
            vector.place.error(
                f"'{vector.name}' of {node} has no value yet in round {self.p.round}; give it "
                "one in the start, or in an equation above"
            )
        return values[key]

    def _entry(self, vector: IndexedVector, frame: _Frame) -> Fraction:
        name = vector.name
        if name not in self.matrices:
            try:
                self.matrices[name] = entries(self.definition.matrices[name], self.graph)
            except LeakauditError as error:
                vector.place.error(f"{name}: {error}")
        i = self._node(vector.at[0], frame)
        j = self._node(vector.at[1], frame)
        return self.matrices[name].get((i, j), Fraction(0))

    def _key(self, vector: IndexedVector, frame: _Frame) -> Key:
        nodes = [self._node(index, frame) for index in vector.at]
        if len(nodes) == 1:
            nodes.append(NOBODY)
        return vector.name, nodes[0], nodes[1]

    def _node(self, index: NodeIndex, frame: _Frame) -> int:
        if index.is_letter:
            return frame.letters[index.name]
        if index.name == SERVER:
            return self.server
        if index.node >= self.graph.nodes:
            index.place.error(
                f"node {index.node} does not exist (the graph has nodes 0-{self.graph.nodes - 1})"
            )
        return index.node

    def _message(self, message: ReceivedMessage, frame: _Frame) -> Form:
        i = self._node(message.src, frame)
        j = i
        if isinstance(message.dst, NodeIndex):
            j = self._node(message.dst, frame)
        found = self.heard.get((message.name, i, j))
        if found is None:
            message.place.error(
                f"no message '{message.name}' from node {i} to node {j} has been sent yet in "
                f"round {self.p.round}; use the vector that it contains, with a value in the start"
            )
        return found

    def _total(self, total: Total, frame: _Frame, name: str) -> Form:
        nodes = self._group(total.over, frame)
        value: Form = Fraction(0)
        for j in nodes:
            term = self._value(total.body, frame.at(total.letter.name, j), name)
            value = self._sum(value, term)
        if not total.mean:
            return value
        if not nodes:
            total.place.error(f"node {frame.node} has no {total.over.name}, so there is no mean")
        return value * Fraction(1, len(nodes))

    def _sum(self, left: Form, right: Form) -> Form:
        """Add two values; a vector plus the number 0 is the vector."""
        if isinstance(left, Expression):
            self.steps += len(left.terms)
        elif isinstance(right, Expression):
            return right + left
        return left + right

    def _group(self, group: NodeSet, frame: _Frame) -> Sequence[int]:
        if group.name == "nodes":
            return range(self.graph.nodes)
        if group.name == "clients":
            return self.holders
        node = frame.node
        if group.of is not None:
            node = self._node(group.of, frame)
        near = self.graph.neighbours[node]
        if group.name == "neighbours":
            return near
        return (node, *near)

    def _binary(self, binary: Binary, frame: _Frame, name: str) -> Form:
        left = self._value(binary.left, frame, name)
        right = self._value(binary.right, frame, name)
        if binary.sign == "+":
            return self._sum(left, right)
        if binary.sign == "-":
            return self._sum(left, -right)
        if binary.sign == "*":
            if isinstance(right, Expression):
                return right * self._small(left, binary.place)
            return left * self._small(right, binary.place)
        number = self._small(right, binary.place)
        if binary.sign == "^":
            return self._power(self._small(left, binary.place), number, binary.place)
        if not number:
            binary.place.error(f"division by zero in round {self.p.round}")
        return left * (1 / number)

    def _small(self, value: Form, place: SourcePosition) -> Fraction:
        if isinstance(value, Expression):
            place.error("expected a number, got a vector")
        number = Fraction(value)
        if max(number.numerator.bit_length(), number.denominator.bit_length()) > BITS:
            place.error(f"a number of this equation has more than {BITS} bits")
        return number

    def _power(self, base: Fraction, exponent: Fraction, place: SourcePosition) -> Fraction:
        if exponent.denominator != 1 or abs(exponent) > MOST:
            place.error(f"expected a whole exponent up to {MOST}, got {exponent}")
        if not base and exponent < 0:
            place.error(f"division by zero in round {self.p.round}")
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if bits * abs(exponent) > 2 * BITS:
            place.error(f"a number of this equation has more than {BITS} bits")
        return base ** int(exponent)

    def _call(self, call: FunctionCall, frame: _Frame, name: str) -> Form:
        if call.name == "degree" and isinstance(call.of, NodeIndex):
            return Fraction(self.graph.degree(self._node(call.of, frame)))
        if call.name == "count" and isinstance(call.of, NodeSet):
            return Fraction(len(self._group(call.of, frame)))
        # An equation that is nothing but a gradient, noise or a secret gives it its name.
        own = DEFAULTS[call.name]
        if call is self.value:
            own = name
        if call.name == "noise":
            return self._noise(call, frame, own)
        if call.name == "secret":
            secret = self.p.secret(own, frame.node, self._index(own, frame.node, self.pair))
            self._ends[secret.vector] = self.pair
            return secret
        if call.name == "grad":
            at = self._vector(call.arguments[0], frame, name)
            index = self._index(own, frame.node, NOBODY)
            return self.p.grad(frame.node, at, index, own)
        inputs = [self._vector(one, frame, name) for one in call.arguments]
        state = self.p.state(own, frame.node, self._index(own, frame.node, self.pair))
        self.p.opaque(state, inputs)
        return state

    def _vector(self, expression: Expr, frame: _Frame, name: str) -> Expression:
        """Evaluate an expression that is a vector other than 0."""
        value = self._value(expression, frame, name)
        if not isinstance(value, Expression):
            expression.place.error(f"expected a vector, got 0 in round {self.p.round}")
        return value

    def _noise(self, call: FunctionCall, frame: _Frame, own: str) -> Form:
        """Return fresh noise; 0 if its standard deviation is 0."""
        std = _float(self._number(call.arguments[0], frame), call.place)
        if std < 0:
            call.place.error(f"expected a standard deviation >= 0, got {std:g}")
        if not std:
            return Fraction(0)
        law: Law = "gaussian"
        if len(call.arguments) == 2:
            law = cast(Law, cast(Symbol, call.arguments[1]).name)
        index = self._index(own, frame.node, self.pair)
        noise = self.p.noise(own, std, frame.node, index, law=law)
        self._ends[noise.vector] = self.pair
        return noise


def _is_to(vector: Vector, node: int) -> bool:
    """Return whether a vector is a message that a node receives."""
    return vector.kind == "message" and (vector.dst is None or node in vector.dst)


def _float(number: Fraction, place: SourcePosition) -> float:
    """Return a number as a float; an error at its place if its square is beyond all floats."""
    if number and not SMALLEST_SETTING <= abs(number) <= LARGEST_SETTING:
        place.error(
            f"expected 0 or a number from {SMALLEST_SETTING:g} to {LARGEST_SETTING:g} in size"
        )
    return float(number)


@contextmanager
def _located(line: EquationLine) -> Iterator[None]:
    """Add the equation to errors that do not name their place yet."""
    try:
        yield
    except PlacedError:
        raise
    except LeakauditError as error:
        raise LeakauditError(f"line {line.number}, in '{shown(line.text)}': {error}") from None
