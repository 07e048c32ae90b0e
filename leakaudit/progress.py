"""Progress reporting and cooperative deadlines: one callback and one deadline, both optional."""

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
    """Report the progress of the work inside to one more listener.

    Args:
        listener: As in `watching`; the current listener is called as well.
    """
    other = _listener.get()

    def both(what: str, done: int, total: int) -> None:
        listener(what, done, total)
        if other is not None:
            other(what, done, total)

    with watching(both):
        yield


def step(what: str, done: int, total: int) -> None:
    """Report progress.

    Args:
        what: Units of work, such as "nodes".
        done: How many are finished.
        total: How many there are.
    """
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total)


def remaining() -> float:
    """Remaining seconds, at least 0; infinite if there is no deadline."""
    return max(0.0, _deadline.get() - time.monotonic())


@contextmanager
def sharing(parts: float) -> Iterator[None]:
    """Give the work inside an equal share of the remaining time.

    Args:
        parts: Number of equal parts into which that time is divided.
    """
    left = remaining()
    share = None if math.isinf(left) else left / parts
    with watching(seconds=share):
        yield


def expired() -> bool:
    """Whether the deadline has passed; the work then returns its best result so far."""
    return time.monotonic() >= _deadline.get()
