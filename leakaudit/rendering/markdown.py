"""GitHub-flavoured Markdown of texts from a trace.

Nothing in them acts as markup, a link or a mention.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from leakaudit.results.wording import clean

# What must not reach a page as it is, and what is written for it; "&" comes first, because the
# others insert one.
_REPLACED = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("@", "(at)"))
_MARKUP = r"[\\`*_\[\]#|~$]"  # markup anywhere
_LINK = r"(?i)(?<=\bwww)\.|:(?=//)"  # what becomes a link by itself
_BEGINNING = r"^(\d{1,9}(?=[.)]( |$))|(?=[-+=]))"  # what begins a list or a heading


def escape(text: object) -> str:
    """Text that Markdown shows as it is, on one line.

    Args:
        text: Any value; its text is taken.

    Returns:
        Markdown.
    """
    out = clean(text)
    for character, written in _REPLACED:
        out = out.replace(character, written)
    out = re.sub(_MARKUP, r"\\\g<0>", out)
    out = re.sub(_LINK, r"\\\g<0>", out)
    return re.sub(_BEGINNING, r"\1\\", out)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells under headings.

    Args:
        headings: Markdown, one for each column.
        rows: Texts of the cells, which are escaped here.

    Returns:
        Markdown.
    """
    lines = [_row(headings), _row(["---"] * len(headings))]
    for row in rows:
        lines.append(_row(list(map(escape, row))))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def items(texts: Iterable[str]) -> str:
    """A list.

    Args:
        texts: Its items, which are escaped here.

    Returns:
        Markdown.
    """
    return "\n".join(f"- {escape(text)}" for text in texts)
