"""Tables on stdout and progress on stderr, in a form that the terminal or file supports."""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypedDict

from leakaudit.progress import in_notebook, in_one_line, watching

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_SYSTEM: Literal["standard"] = "standard"  # colour system


def stdout() -> Console:
    """Return the console for stdout; no line is wrapped in a file or a pipe."""
    from rich.console import Console

    piped = not sys.stdout.isatty()
    system: Literal["auto"] | None = "auto"
    if piped or "NO_COLOR" in os.environ:
        system = None
    return Console(file=sys.stdout, highlight=False, soft_wrap=piped, color_system=system)


def width() -> int | None:
    """Return the columns of the terminal; None if stdout is a file or a pipe."""
    if not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


class Form(TypedDict, total=False):
    """The form of text on stdout; each text has its own default for what is absent.

    Attributes:
        width: Columns of a line.
        color: Whether terminal codes for colours may be used.
    """

    width: int
    color: bool


def fit() -> Form:
    """Return the width and colours for text on stdout; a file or a pipe has no limit of width."""
    columns = width()
    if columns is None:
        return {}
    return {"width": columns, "color": "NO_COLOR" not in os.environ}


def printed(parts: Iterable[RenderableType], width: int | None, color: bool) -> str:
    """Return the parts of a page as text, without trailing spaces.

    Args:
        parts: The parts in order.
        width: Columns of a line; None if lines are not wrapped.
        color: Whether to add terminal codes for colours.

    Returns:
        The text, with a final line break.
    """
    from rich.console import Console

    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        soft_wrap=width is None,
        color_system=_SYSTEM if color else None,
        force_terminal=color,
        legacy_windows=False,
    )
    for part in parts:
        console.print(part)
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    return "\n".join(lines) + "\n"


@contextmanager
def shown(mode: str, seconds: float = 0.0) -> Iterator[None]:
    """Show the progress of the work inside the block.

    Args:
        mode: ``auto``, ``rich``, ``plain`` or ``none``; ``auto`` is ``rich`` on a terminal, one
            line in a notebook, and otherwise ``plain``.
        seconds: Time limit of the work, 0 for none.

    Yields:
        Nothing.
    """
    limit = seconds or None
    if mode == "auto" and in_notebook():
        with in_one_line(limit):
            yield
        return
    if mode == "auto":
        mode = "plain"
        if sys.stderr.isatty():
            mode = "rich"
    if mode == "rich":
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TaskID,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            known: dict[str, TaskID] = {}

            def draw(what: str, done: int, total: int) -> None:
                if what not in known:
                    known[what] = bars.add_task(what, total=total)
                bars.update(known[what], completed=done, total=total)

            with watching(draw, limit):
                yield
        return
    lines = None
    if mode == "plain":
        lines = _Lines()
    with watching(lines, limit):
        yield


class _Lines:
    """Prints one line every few seconds, for logs."""

    EVERY = 5.0

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last >= self.EVERY:
            self.last = now
            sys.stderr.write(f"{what}: {done} of {total}\n")
            sys.stderr.flush()
