"""How long work tells that it goes on, and learns when to stop: one listener and one deadline, both optional."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)


@contextmanager
def watching(listener: Listener | None = None, seconds: float | None = None) -> Iterator[None]:
    """Send every `step` inside to `listener(what, done, total)`; let work inside stop after `seconds`."""
    end = min(_deadline.get(), math.inf if seconds is None else time.monotonic() + seconds)
    heard = _listener.set(listener if listener is not None else _listener.get())
    until = _deadline.set(end)
    try:
        yield
    finally:
        _listener.reset(heard)
        _deadline.reset(until)


def step(what: str, done: int, total: int) -> None:
    """Say that `done` of `total` units of `what` are finished."""
    if (listener := _listener.get()) is not None:
        listener(what, done, total)


def remaining() -> float:
    """Seconds that are left, at least 0; infinite where there is no deadline."""
    return max(0.0, _deadline.get() - time.monotonic())


@contextmanager
def sharing(parts: float) -> Iterator[None]:
    """Let work inside have one of so many equal parts of the time that is left."""
    left = remaining()
    with watching(seconds=None if math.isinf(left) else left / parts):
        yield


def expired() -> bool:
    """Whether the time allowed is over; work then returns the best that it has."""
    return time.monotonic() >= _deadline.get()
