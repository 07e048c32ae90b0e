"""Tables on stdout and progress on stderr, in a form that the terminal or file supports."""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypedDict

from leakaudit.core.progress import Listener, in_notebook, in_one_line, watching
from leakaudit.reporting.rendering import status
from leakaudit.reporting.rendering.overall import Overall

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_SYSTEM: Literal["standard"] = "standard"  # colour system


def stdout() -> Console:
    """Return the console for stdout; no line is wrapped in a file or a pipe."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            """Let the command end quietly; rich would end the process."""
            raise BrokenPipeError

    piped = not sys.stdout.isatty()
    system: Literal["auto"] | None = "auto"
    if piped or "NO_COLOR" in os.environ:
        system = None
    return Output(file=sys.stdout, highlight=False, soft_wrap=piped, color_system=system)


def width() -> int | None:
    """Return the columns of the terminal; None if stdout is a file or a pipe."""
    if not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


class Form(TypedDict, total=False):
    """The form of text on stdout; each text has its own default for what is absent."""

    width: int  # columns of a line
    color: bool  # whether terminal codes for colours may be used


def fit() -> Form:
    """Return the width and colours for text on stdout; a file or a pipe has no limit of width."""
    columns = width()
    if columns is None:
        return {}
    return {"width": columns, "color": "NO_COLOR" not in os.environ}


def printed(parts: Iterable[RenderableType], width: int | None, color: bool) -> str:
    """Return the parts of a page as text, without trailing spaces."""
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
def shown(mode: str, seconds: float = 0.0, main: str = "") -> Iterator[None]:
    """Show the progress of the work inside the block."""
    limit = seconds or None
    if mode == "auto" and in_notebook():
        with in_one_line(limit):
            yield
        return
    if mode == "auto":
        mode = "plain"
        if sys.stderr.isatty():
            mode = "rich"
    status.clear()
    if mode == "rich":
        with _bar(Overall(main)) as listener, watching(listener, limit):
            yield
        return
    lines = None
    if mode == "plain":
        lines = _Lines(Overall(main))
    with watching(lines, limit):
        yield


@contextmanager
def _bar(overall: Overall) -> Iterator[Listener]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    words = Column(no_wrap=True, overflow="ellipsis")
    columns = (
        BarColumn(bar_width=20),
        TextColumn("{task.fields[share]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.fields[words]}", table_column=words, markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=None, share="", left="", words="starting")

        def draw(what: str, done: int, total: int) -> None:
            overall.heard(what, done, total)
            bars.update(task, words=overall.words)
            share = overall.share
            if share is not None:
                percent = f"{share:4.0%}"
                left = _left(overall.remaining())
                bars.update(task, completed=share, total=1.0, share=percent, left=left)

        yield draw


def _left(seconds: float | None) -> str:
    if seconds is None:
        return "ETA -:--:--"
    return f"ETA {timedelta(seconds=round(seconds))}"


class _Lines:
    """Prints one line per stage, for logs: at its end, and every minute of a long one."""

    LEAST = 1.0  # seconds; a stage that takes less time is not worth a line
    EVERY = 60.0  # seconds

    def __init__(self, overall: Overall) -> None:
        self.overall = overall
        self.last = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        ended = self.overall.heard(what, done, total)
        now = time.monotonic()
        if ended is not None and now - ended.began >= self.LEAST:
            self._write(f"{ended.words}, {now - ended.began:.1f} s")
        elif now - self.last >= self.EVERY:
            self._write(self.overall.words)

    def _write(self, line: str) -> None:
        self.last = time.monotonic()
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
