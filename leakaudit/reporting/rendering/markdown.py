"""GitHub-flavoured Markdown in which no text of a trace acts as markup, a link or a mention."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from leakaudit.reporting.findings.wording import clean

# Characters that must be replaced, with their replacements; "&" comes first because the other
# replacements insert it.
_REPLACED = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("@", "(at)"))
_MARKUP = r"[\\`*_\[\]#|~$]"  # acts as markup anywhere
_LINK = r"(?i)(?<=\bwww)\.|:(?=//)"  # is turned into a link automatically
_BEGINNING = r"^(\d{1,9}(?=[.)]( |$))|(?=[-+=]))"  # starts a list or a heading


def escape(text: object) -> str:
    """Return text that Markdown shows literally, on one line."""
    out = clean(text)
    for character, written in _REPLACED:
        out = out.replace(character, written)
    out = re.sub(_MARKUP, r"\\\g<0>", out)
    out = re.sub(_LINK, r"\\\g<0>", out)
    return re.sub(_BEGINNING, r"\1\\", out)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [_row(headings), _row(["---"] * len(headings))]
    for row in rows:
        lines.append(_row(list(map(escape, row))))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def items(texts: Iterable[str]) -> str:
    """Return a list."""
    return "\n".join(f"- {escape(text)}" for text in texts)
