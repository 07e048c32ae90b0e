"""GitHub-flavoured Markdown of texts from a trace: nothing in them is markup, a link or a mention."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from leakaudit.results.wording import clean


def escape(text: object) -> str:
    """Text that Markdown shows as it is, on one line."""
    out = (
        clean(text)
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
        .replace("@", "(at)")
    )
    out = re.sub(r"[\\`*_\[\]#|~$]", r"\\\g<0>", out)  # markup anywhere
    out = re.sub(r"(?i)(?<=\bwww)\.|:(?=//)", r"\\\g<0>", out)  # what becomes a link by itself
    return re.sub(
        r"^(\d{1,9}(?=[.)]( |$))|(?=[-+=]))", r"\1\\", out
    )  # what begins a list or a heading


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of escaped cells under headings."""
    lines = [headings, ["---"] * len(headings), *([escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def items(texts: Iterable[str]) -> str:
    """A list of escaped texts."""
    return "\n".join(f"- {escape(text)}" for text in texts)
