"""Parses the equations of a protocol file by recursive descent; nothing in them is executed."""

from __future__ import annotations

from fractions import Fraction
from typing import NoReturn

from leakaudit.core.errors import suggest
from leakaudit.protocols.equations.scan import Sentence, Token, sentences
from leakaudit.protocols.equations.syntax import (
    ALL,
    FUNCTIONS,
    GROUPS,
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

DEEPEST = 40  # levels of parentheses: a choice far above any paper, for bounded recursion
OLDEST = 10  # rounds back that an equation can refer to: a choice
LARGEST_POWER = 300  # of ten, in a number: the range of float64
TERMINAL = "secure"


def parse(text: str, first: int) -> tuple[Statement, ...]:
    """Parse a block of equations."""
    found = sentences(text, first)
    if not found:
        return ()
    statements, rest = _block(found, _indent(found[0]))
    if rest:
        rest[0][0].place.error(
            "expected the indentation of the equations above; only equations below 'repeat' are "
            "indented further"
        )
    return statements


def _indent(sentence: Sentence) -> int:
    """Return the number of spaces in front of an equation."""
    return sentence[0].place.column - 1


def _block(lines: list[Sentence], indent: int) -> tuple[tuple[Statement, ...], list[Sentence]]:
    """Parse the equations with an indentation; return the lines behind them as well."""
    statements: list[Statement] = []
    while lines and _indent(lines[0]) == indent:
        sentence = lines[0]
        lines = lines[1:]
        parser = _Parser(sentence)
        if not parser.begins_repeat():
            statements.append(parser.statement())
            continue
        count = parser.repeat()
        if indent >= DEEPEST or not lines or _indent(lines[0]) <= indent:
            sentence[0].place.error("expected indented equations below 'repeat'")
        body, lines = _block(lines, _indent(lines[0]))
        statements.append(Repeat(count, body, sentence[0].place.equation))
    return tuple(statements), lines


class _Parser:
    """Reads one equation from left to right."""

    def __init__(self, sentence: Sentence) -> None:
        self.line = sentence[0].place.equation
        self.tokens = sentence
        self.at = 0
        self.depth = 0

    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        token = self.tokens[self.at]
        self.at = min(self.at + 1, len(self.tokens) - 1)
        return token

    def saw(self, text: str) -> bool:
        if self.next.kind == "end" or self.next.text != text:
            return False
        self.take()
        return True

    def need(self, text: str, why: str = "") -> Token:
        """Move on if the next sign is this one; otherwise raise an error."""
        if self.next.kind == "end" or self.next.text != text:
            self.fail(f"expected '{text}'{why}")
        return self.take()

    def fail(self, says: str) -> NoReturn:
        got = self.next.text
        if self.next.kind != "end":
            got = f"'{got}'"
        self.next.place.error(f"{says}, got {got}")

    def begins_repeat(self) -> bool:
        """Return whether the line is ``repeat K:``."""
        after = self.tokens[min(1, len(self.tokens) - 1)]
        return self.next.text == "repeat" and after.text not in ("[", "=")

    def repeat(self) -> Expr:
        """Read ``repeat K:`` and return K."""
        self.take()
        count = self.sum()
        self.need(":", " behind the number of repetitions")
        self.end()
        return count

    def end(self) -> None:
        if self.next.kind in ("name", "number") or self.next.text == "(":
            self.fail("expected an operator such as + - * / (a product is written with *)")
        if self.next.kind != "end":
            self.fail("expected the end of the equation")

    def statement(self) -> Statement:
        secure = self.next.text == TERMINAL and self.tokens[1].kind == "name"
        if secure:
            self.take()
        if self.next.kind != "name":
            self.fail("expected an equation such as w[i] = ..., or m[i -> neighbours] = ...")
        name = self.take()
        target: IndexedVector | ReceivedMessage | Symbol = Symbol(name.text, name.place)
        if self.next.text == "[":
            target = self.indexed(name)
        if secure and not isinstance(target, ReceivedMessage):
            name.place.error("only a message can be secure: secure m[i -> j] = ...")
        if self.next.text == "solves" and isinstance(target, IndexedVector):
            self.take()
            left = self.sum()
            self.need("=")
            right = self.sum()
            self.end()
            return Assign(target, right, self.line, left)
        self.need("=")
        value = self.sum()
        self.end()
        if isinstance(target, ReceivedMessage):
            content, width = _channel(value)
            return Send(target, content, width, secure, self.line)
        return Assign(target, value, self.line)

    def sum(self) -> Expr:
        self.depth += 1
        if self.depth > DEEPEST:
            self.fail(f"expected at most {DEEPEST} levels of parentheses")
        value = self.product()
        while self.next.text in ("+", "-"):
            sign = self.take()
            value = Binary(sign.text, value, self.product(), sign.place)
        self.depth -= 1
        return value

    def product(self) -> Expr:
        """Read factors with * and / between them."""
        value = self.signed()
        while self.next.text in ("*", "/"):
            sign = self.take()
            value = Binary(sign.text, value, self.signed(), sign.place)
        return value

    def signed(self) -> Expr:
        if self.next.text in ("-", "+"):
            self.depth += 1
            if self.depth > DEEPEST:
                self.fail(f"expected at most {DEEPEST} signs in a row")
            sign = self.take()
            value = self.signed()
            self.depth -= 1
            if sign.text == "-":
                return _negative(value, sign.place)
            return value
        base = self.atom()
        if self.next.text != "^":
            return base
        sign = self.take()
        return Binary("^", base, self.exponent(), sign.place)

    def exponent(self) -> Expr:
        if self.next.text == "-":
            sign = self.take()
            return _negative(self.atom(), sign.place)
        return self.atom()

    def atom(self) -> Expr:
        if self.next.kind == "number":
            return self.number()
        if self.saw("("):
            value = self.sum()
            self.need(")", " at the end of the parentheses")
            return value
        if self.next.kind != "name":
            self.fail("expected a vector, a number or '('")
        name = self.take()
        if self.next.text == "[" and name.text not in FUNCTIONS:
            return self.indexed(name)
        if self.next.text == "(":
            return self.call(name)
        if name.text in FUNCTIONS:
            self.need("(", f" behind {name.text}, as in {FUNCTIONS[name.text]}")
        return Symbol(name.text, name.place)

    def number(self) -> Expr:
        token = self.take()
        power = token.text.lower().partition("e")[2]
        if power and abs(int(power)) > LARGEST_POWER:
            token.place.error(f"expected a power of ten up to {LARGEST_POWER}, got {token.text}")
        return Constant(Fraction(token.text), token.place)

    def indexed(self, name: Token) -> IndexedVector | ReceivedMessage:
        self.need("[")
        first = self.index()
        if self.saw("->"):
            receivers = self.receivers()
            self.need("]", " behind the receiver")
            return ReceivedMessage(name.text, first, receivers, name.place)
        at = [first]
        back = 0
        while self.saw(","):
            if self.next.text == "t":
                back = self.back()
                break
            at.append(self.index())
        if self.next.text == "->":
            self.fail("expected a single sender before '->'")
        self.need("]", " behind the indices")
        if len(at) > 2:
            name.place.error(f"expected one or two indices, got {len(at)}")
        return IndexedVector(name.text, tuple(at), back, name.place)

    def back(self) -> int:
        """Read ``t-1`` as an index."""
        self.take()
        self.need("-", " and a number, as in w[i,t-1] for the value of the previous round")
        token = self.take()
        wanted = f"a number of rounds from 1 to {OLDEST}"
        if token.kind != "number" or not token.text.isdigit():
            token.place.error(f"expected {wanted}, got '{token.text}'")
        if len(token.text) > 2 or not 1 <= int(token.text) <= OLDEST:
            token.place.error(f"expected {wanted}, got {token.text}")
        return int(token.text)

    def index(self) -> NodeIndex:
        """Read a letter, ``server`` or the number of a node."""
        token = self.next
        if token.kind == "number" and token.text.isdigit() and len(token.text) < 8:
            self.take()
            return NodeIndex("", int(token.text), token.place)
        if token.kind != "name":
            self.fail("expected an index: a letter such as i, a node's number, or server")
        if token.text == "t":
            self.fail("expected an index of a node; the value of round t is meant if none is given")
        if token.text in GROUPS:
            self.fail(f"expected a single node; sum over {token.text} with sum(j in {token.text}:")
        self.take()
        return NodeIndex(token.text, 0, token.place)

    def receivers(self) -> NodeIndex | NodeSet:
        token = self.next
        if token.text == ALL:
            self.take()
            return NodeSet(ALL, None, token.place)
        if token.text in GROUPS:
            return self.group()
        return self.index()

    def group(self) -> NodeSet:
        token = self.take()
        if token.text not in GROUPS:
            near = suggest(token.text, GROUPS)
            token.place.error(f"expected a set of nodes, got '{token.text}'{near}")
        of = None
        if self.saw("("):
            if not GROUPS[token.text]:
                token.place.error(f"'{token.text}' takes no node in parentheses")
            of = self.index()
            self.need(")")
        return NodeSet(token.text, of, token.place)

    def call(self, name: Token) -> Expr:
        if name.text not in FUNCTIONS:
            near = suggest(name.text, FUNCTIONS)
            name.place.error(
                f"there is no function '{name.text}'{near}; declare another step as opaque(...), "
                "and write a product with *"
            )
        self.need("(")
        if name.text in ("sum", "mean"):
            return self.total(name)
        if name.text == "degree":
            node = self.index()
            self.need(")")
            return FunctionCall(name.text, (), node, name.place)
        if name.text == "count":
            nodes = self.group()
            self.need(")")
            return FunctionCall(name.text, (), nodes, name.place)
        arguments: list[Expr] = []
        while self.next.text != ")":
            arguments.append(self.sum())
            if not self.saw(","):
                break
        self.need(")", f" as in {FUNCTIONS[name.text]}")
        return FunctionCall(name.text, tuple(arguments), None, name.place)

    def total(self, name: Token) -> Expr:
        letter = self.index()
        if not letter.is_letter:
            letter.place.error(f"expected a letter, as in {FUNCTIONS[name.text]}")
        self.need("in", f", as in {FUNCTIONS[name.text]}")
        over = self.group()
        self.need(":", f" behind the nodes, as in {FUNCTIONS[name.text]}")
        body = self.sum()
        self.need(")", " at the end of the sum")
        return Total(name.text == "mean", letter, over, body, name.place)


def _negative(value: Expr, place: SourcePosition) -> Expr:
    return Binary("-", Constant(Fraction(0), place), value, place)


def _channel(value: Expr) -> tuple[Expr, Expr | None]:
    """Split ``content + rounding(width)`` into the content and the width."""
    if isinstance(value, Binary) and value.sign == "+":
        last = value.right
        if isinstance(last, FunctionCall) and last.name == "rounding" and len(last.arguments) == 1:
            return value.left, last.arguments[0]
    return value, None
