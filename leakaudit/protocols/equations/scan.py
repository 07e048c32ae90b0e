"""Splits the text of a protocol file into equations, and these into words and signs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

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


Sentence: TypeAlias = tuple[Token, ...]  # one equation before it is parsed, ending with `end`


def sentences(text: str, first: int) -> list[Sentence]:
    """Split a block of equations, which begins on line `first`; ``#`` begins a comment."""
    found: list[Sentence] = []
    held: list[tuple[int, str]] = []  # the lines of an equation, with their numbers
    depth = 0

    def close() -> None:
        if held:
            found.append(_sentence(held))
        held.clear()

    for number, written in enumerate(text.split("\n"), first):
        content = written.partition("#")[0].rstrip().expandtabs(4)
        if not content:
            continue
        if "=" in content:
            # No equation contains another one, so parentheses that are open were not closed.
            close()
        if not held:
            depth = 0
        held.append((number, content))
        depth += sum(map(content.count, OPEN)) - sum(map(content.count, CLOSED))
        if depth <= 0:
            close()
    close()
    return found


def _sentence(held: list[tuple[int, str]]) -> Sentence:
    first = held[0][0]
    line = EquationLine(first, " ".join(" ".join(content.split()) for _, content in held))
    tokens: list[Token] = []
    for number, content in held:
        for match in _TOKEN.finditer(content):
            kind = str(match.lastgroup)
            text = match.group()
            place = SourcePosition(line, number, match.start() + 1)
            if kind == "other":
                place.error(f"the character {text!r} is not part of the notation")
            if kind == "number" and len(text) > LARGEST_NUMBER:
                place.error(f"expected a number of at most {LARGEST_NUMBER} characters")
            if kind != "space":
                tokens.append(Token(kind, "^" if text == "**" else text, place))
    if len(tokens) > LONGEST:
        tokens[0].place.error(
            f"expected an equation of at most {LONGEST} words and signs, got {len(tokens)}; "
            "split it"
        )
    number, content = held[-1]
    end = SourcePosition(line, number, len(content) + 1)
    return (*tokens, Token("end", "the end of the equation", end))
