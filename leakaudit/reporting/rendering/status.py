"""One line on a terminal that says what takes time, until there is something else to show."""

from __future__ import annotations

import sys

_shown: list[str] = []  # the line on the terminal, if any


def put(text: str) -> None:
    """Show a line on stderr if that is a terminal."""
    if _shown or not sys.stderr.isatty():
        return
    _shown.append(text)
    sys.stderr.write(text)
    sys.stderr.flush()


def clear() -> None:
    """Erase the line."""
    if _shown:
        blanks = " " * len(_shown.pop())
        sys.stderr.write(f"\r{blanks}\r")
        sys.stderr.flush()
