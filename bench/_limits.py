"""A limit on the CPU seconds of an attack, for benchmarks."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class OutOfTimeError(Exception):
    """An attack used more CPU time than it may."""


@contextlib.contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise `OutOfTimeError` after this number of CPU seconds of the process."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
