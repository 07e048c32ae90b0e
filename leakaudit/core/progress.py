"""Progress reporting and cooperative deadlines: one callback and one deadline, both optional."""

from __future__ import annotations

import html
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Seconds until a notebook shows progress, and between two changes of it. Both are choices: what
# takes less needs no progress, and more changes would only be sent, not read.
FIRST = 1.0
EVERY = 0.25

Listener = Callable[[str, int, int], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)


@contextmanager
def watching(listener: Listener | None = None, seconds: float | None = None) -> Iterator[None]:
    """Report the progress of the work inside, and limit its time.

    Args:
        listener: Callback with what, done and total of every `step`; None keeps the current one.
        seconds: Time after which the work inside should stop; an outer deadline also applies.
    """
    end = _deadline.get()
    if seconds is not None:
        end = min(end, time.monotonic() + seconds)
    if listener is None:
        listener = _listener.get()
    heard = _listener.set(listener)
    until = _deadline.set(end)
    try:
        yield
    finally:
        _listener.reset(heard)
        _deadline.reset(until)


@contextmanager
def heard(listener: Listener) -> Iterator[None]:
    """Report the progress of the work inside to one more listener."""
    other = _listener.get()

    def both(what: str, done: int, total: int) -> None:
        listener(what, done, total)
        if other is not None:
            other(what, done, total)

    with watching(both):
        yield


def step(what: str, done: int, total: int) -> None:
    """Report progress."""
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total)


def remaining() -> float:
    """Remaining seconds, at least 0; infinite if there is no deadline."""
    return max(0.0, _deadline.get() - time.monotonic())


@contextmanager
def sharing(parts: float) -> Iterator[None]:
    """Give the work inside an equal share of the remaining time."""
    left = remaining()
    share = None if math.isinf(left) else left / parts
    with watching(seconds=share):
        yield


def expired() -> bool:
    """Whether the deadline has passed; the work then returns its best result so far."""
    return time.monotonic() >= _deadline.get()


# ---------------------------------------------------------------------------------------------
# Notebooks
# ---------------------------------------------------------------------------------------------


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which has imported IPython."""
    ipython = sys.modules.get("IPython")
    if ipython is None or not hasattr(ipython, "get_ipython"):
        return False
    return hasattr(ipython.get_ipython(), "kernel")


class _NotebookLine:
    """One line of a notebook that is replaced as the work proceeds, and emptied at its end."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._last = self._start + FIRST - EVERY
        self._shown: Any = None  # a handle of IPython, which is not a dependency

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < EVERY:
            return
        self._last = now
        line = f"{what}: {done} of {total}, {now - self._start:.0f} s"
        bar = f'<progress value="{done}" max="{max(total, 1)}"></progress>'
        self._show({"text/plain": line, "text/html": f"{bar} {html.escape(line)}"})

    def close(self) -> None:
        if self._shown is not None:
            self._show({"text/plain": "", "text/html": ""})

    def _show(self, forms: dict[str, str]) -> None:
        from IPython.display import display

        if self._shown is None:
            self._shown = display(forms, raw=True, display_id=True)
        else:
            self._shown.update(forms, raw=True)


@contextmanager
def in_one_line(seconds: float | None = None) -> Iterator[None]:
    """Show the progress of the work inside in one line of the notebook."""
    line = _NotebookLine()
    try:
        with watching(line, seconds):
            yield
    finally:
        line.close()


def visible(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that shows its progress in a notebook, unless somebody listens."""

    @wraps(function)
    def shown(*args: P.args, **kwargs: P.kwargs) -> T:
        if _listener.get() is not None or not in_notebook():
            return function(*args, **kwargs)
        with in_one_line():
            return function(*args, **kwargs)

    return shown
