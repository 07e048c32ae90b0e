"""Splits the text of a protocol file into equations, and these into words and signs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from leakaudit.protocols.equations.syntax import EquationLine, SourcePosition

# Limits that no paper comes near; they bound the time and the recursion that a malicious file can
# cause. An equation of 400 words nests at most 400 deep, well below Python's own limit.
LONGEST = 400
LARGEST_NUMBER = 40

_TOKEN = re.compile(
    r"(?P<space>[ \t]+)|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[^\W\d]\w*)"
    r"|(?P<sign>->|\*\*|[-+*/^=()\[\],:])|(?P<other>.)"
)
OPEN = "(["
CLOSED = ")]"


@dataclass(frozen=True)
class Token:
    """A word, a number or a sign."""

    kind: str  # `name`, `number`, `sign`, or `end` after the last one
    text: str
    place: SourcePosition


@dataclass(frozen=True)
class Sentence:
    """One equation before it is parsed."""

    line: EquationLine
    indent: int  # number of spaces in front of it
    tokens: tuple[Token, ...]  # its words and signs, ending with `end`


@dataclass(frozen=True)
class _Raw:
    kind: str
    text: str
    line: int
    column: int


def sentences(text: str, first: int) -> list[Sentence]:
    """Split a block of equations.

    Args:
        text: The block; ``#`` begins a comment.
    """
    found: list[Sentence] = []
    held: list[_Raw] = []
    words: list[str] = []
    indent = 0

    def close() -> None:
        if held:
            found.append(_sentence(held, words, indent))
        held.clear()
        words.clear()

    for number, written in enumerate(text.split("\n"), first):
        content = written.partition("#")[0].rstrip().expandtabs(4)
        if not content:
            continue
        scanned = list(_scan(content, number))
        if any(raw.text == "=" for raw in scanned):
            # No equation contains another one, so parentheses that are open were not closed.
            close()
        if not held:
            indent = len(content) - len(content.lstrip())
        words.append(" ".join(content.split()))
        held += scanned
        depth = sum((raw.text in OPEN) - (raw.text in CLOSED) for raw in held)
        if depth <= 0 or len(held) > LONGEST:
            close()
    close()
    return found


def _scan(content: str, number: int) -> Iterator[_Raw]:
    for match in _TOKEN.finditer(content):
        if match.lastgroup != "space":
            yield _Raw(str(match.lastgroup), match.group(), number, match.start() + 1)


def _sentence(held: list[_Raw], words: list[str], indent: int) -> Sentence:
    line = EquationLine(held[0].line, " ".join(words))
    tokens: list[Token] = []
    for raw in held:
        place = SourcePosition(line, raw.line, raw.column)
        if raw.kind == "other":
            place.error(f"the character {raw.text!r} is not part of the notation")
        if raw.kind == "number" and len(raw.text) > LARGEST_NUMBER:
            place.error(f"expected a number of at most {LARGEST_NUMBER} characters")
        sign = raw.text
        if sign == "**":
            sign = "^"
        tokens.append(Token(raw.kind, sign, place))
    if len(tokens) > LONGEST:
        tokens[0].place.error(
            f"expected an equation of at most {LONGEST} words and signs, got {len(tokens)}; "
            "split it"
        )
    last = held[-1]
    end = SourcePosition(line, last.line, last.column + len(last.text))
    return Sentence(line, indent, (*tokens, Token("end", "the end of the equation", end)))
