"""Comma-separated values (RFC 4180) that a spreadsheet reads as data only."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TypeAlias

Cell: TypeAlias = str | int | float | bool | None

# A spreadsheet evaluates a cell that begins with one of these; their wide forms count as well.
# Where the list separator of the system is a semicolon, a semicolon inside a cell starts another.
_FORMULA = re.compile(r"(^|;)(\s*)([=+\-@＝＋－＠\N{MINUS SIGN}])")


def text(columns: Iterable[str], rows: Iterable[Sequence[Cell]], end: str = "\r\n") -> str:
    """Return a table as comma-separated values, with a header.

    Text is quoted and cannot act as a formula; numbers are not quoted, and None and NaN are empty.
    """
    lines = [",".join(map(_cell, columns))]
    for row in rows:
        lines.append(",".join(map(_cell, row)))
    return "".join(f"{line}{end}" for line in lines)


def inert(value: str) -> str:
    """Return one line of text that no spreadsheet evaluates.

    An apostrophe precedes every character that could start a formula.
    """
    kept = []
    for character in value:
        # Control characters, direction marks and line breaks become spaces.
        separates = unicodedata.category(character)[0] in "CZ"
        kept.append(" " if separates else character)
    line = " ".join("".join(kept).split())
    return _FORMULA.sub(r"\1\2'\3", line)


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        quoted = inert(value).replace('"', '""')
        return f'"{quoted}"'
    if math.isnan(value):
        return ""
    return repr(value)
