"""Jobs that workers import: pickle finds a function by the name of its module."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from leakaudit.core.errors import NotDetermined
from leakaudit.core.progress import remaining


def slower_first(number: int) -> int:
    """A job whose later items are finished first."""
    time.sleep(0.05 * (4 - number))
    return number * number


def raises(number: int) -> int:
    if number >= 2:
        raise NotDetermined(f"number {number}", understood=False)
    return slower_first(number)


def divides(number: int) -> float:
    return 1 / number


def dies(order: tuple[Path, int]) -> int:
    """A job that kills its process the first times that it is tried."""
    file, times = order
    with file.open("a") as tried:
        tried.write("tried\n")
    if len(file.read_text().splitlines()) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def left(_: int) -> float:
    return remaining()
