"""Tables on stdout and progress on stderr, in a form that the terminal or file supports."""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from leakaudit.core.progress import Listener, in_notebook, in_one_line, watching
from leakaudit.reporting.rendering import status

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

MANY = 1_000_000  # from this total on, such as of bytes, the words state a percentage
SETTLED = 0.02  # share of the work after which the remaining time is estimated; a choice
_SYSTEM: Literal["standard"] = "standard"  # colour system


def stdout() -> Console:
    """Return the console for stdout; no line is wrapped in a file or a pipe."""
    from rich.console import Console

    class _Output(Console):
        def on_broken_pipe(self) -> None:
            """Let the command end quietly; rich would end the process."""
            raise BrokenPipeError

    piped = not sys.stdout.isatty()
    system: Literal["auto"] | None = "auto"
    if piped or "NO_COLOR" in os.environ:
        system = None
    return _Output(file=sys.stdout, highlight=False, soft_wrap=piped, color_system=system)


def width() -> int | None:
    """Return the columns of the terminal; None if stdout is a file or a pipe."""
    if not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def fit() -> dict[str, int]:
    """Return the `width` and `color` of a report on stdout; empty for a file or a pipe.

    Each report has its own default for what is absent.
    """
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


@dataclass
class _OverallStage:
    """Steps of one kind."""

    what: str  # the units of work
    done: int  # how many are finished
    total: int  # how many there are
    began: float  # when the first was reported

    @property
    def finished(self) -> bool:
        """Whether all steps are done."""
        return self.done >= self.total

    @property
    def words(self) -> str:
        """For example ``nodes 3 of 10``."""
        if self.total >= MANY:
            return f"{self.what} {self.done / self.total:.0%}"
        return f"{self.what} {self.done} of {self.total}"


@dataclass
class _Overall:
    """The steps of a command that are under way, nested: how much is done, in one number and words.

    A step that starts while another is unfinished lies inside it, and the next report of the outer
    one ends it.
    """

    # the outermost steps of the command, in whose share its progress is stated; "" for whatever is
    # outermost. What comes before is only named.
    main: str = ""
    clock: Callable[[], float] = time.monotonic  # returns the time in seconds
    stages: list[_OverallStage] = field(default_factory=list)  # from the outermost to the innermost
    _share: float = 0.0
    _since: tuple[float, float] | None = None  # when the main steps began, and their share then

    def heard(self, what: str, done: int, total: int) -> _OverallStage | None:
        """Take note of a step."""
        if what == self.main and self.stages and self.stages[0].what != what:
            self.stages.clear()
        self._hold(self._depth(what), what, done, total)
        self._measure()
        outermost = self.stages[0]
        return outermost if outermost.finished and len(self.stages) == 1 else None

    def _depth(self, what: str) -> int:
        """The depth of a stage: its own if it is under way, otherwise below the unfinished ones."""
        for depth, stage in enumerate(self.stages):
            if stage.what == what:
                return depth
        for depth, stage in enumerate(self.stages):
            if stage.finished:
                return depth
        return len(self.stages)

    def _hold(self, depth: int, what: str, done: int, total: int) -> None:
        began = self.clock()
        if depth < len(self.stages):
            before = self.stages[depth]
            if before.what == what and not before.finished:
                began = before.began
        self.stages[depth:] = [_OverallStage(what, done, max(1, total), began)]

    def _measure(self) -> None:
        """Compute the share that is done, which never falls while the same steps are under way."""
        if self.main and self.stages[0].what != self.main:
            return
        share = 0.0
        for stage in reversed(self.stages):
            share = min(1.0, (stage.done + share) / stage.total)
        if self._since is None or (not self.main and share < self._share and self._is_new()):
            self._since = (self.stages[0].began, share)
            self._share = share
        self._share = max(self._share, share)

    def _is_new(self) -> bool:
        """Whether the outermost stage began after the share was last counted from zero."""
        return self._since is not None and self.stages[0].began > self._since[0]

    @property
    def share(self) -> float | None:
        """The share of the work that is done; None before the main steps begin."""
        return None if self._since is None else self._share

    @property
    def words(self) -> str:
        """The steps under way, the outermost first; single steps inside are only named."""
        said = []
        for depth, stage in enumerate(self.stages):
            if depth and stage.total == 1:
                said.append(stage.what)
            else:
                said.append(stage.words)
        return ", ".join(said)

    def remaining(self) -> float | None:
        """Return the estimated remaining seconds; None if too little is done to tell."""
        if self._since is None:
            return None
        began, before = self._since
        gained = self._share - before
        if gained < SETTLED or self._share >= 1.0:
            return None
        return (self.clock() - began) * (1.0 - self._share) / gained


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
        with _bar(_Overall(main)) as listener, watching(listener, limit):
            yield
        return
    lines = None
    if mode == "plain":
        lines = _Lines(_Overall(main))
    with watching(lines, limit):
        yield


@contextmanager
def _bar(overall: _Overall) -> Iterator[Listener]:
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

    def __init__(self, overall: _Overall) -> None:
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
