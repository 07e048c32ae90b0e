"""Steps that Ctrl-C does not split, so that what was measured before it can still be used."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def whole() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the end of a step, which must be short."""
    if threading.current_thread() is not threading.main_thread():  # signals do not reach it
        yield
        return
    waiting: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        waiting.append(number)

    numbers: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
    usual = {number: signal.getsignal(number) for number in numbers}
    handlers = {number: handler for number, handler in usual.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number in waiting:
        handlers[number](number, None)
