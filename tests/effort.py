"""Measure the cost of work by counting instead of timing, so that a busy machine does not
matter.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

IO = Path("/proc/self/io")


@dataclass
class Effort:
    """The counts.

    Attributes:
        calls: Calls of Python and C functions.
        pages: Memory pages that were accessed for the first time.
        read: Bytes read from files, 0 if the system does not report them.
    """

    calls: int = 0
    pages: int = 0
    read: int = 0


@contextmanager
def counted() -> Iterator[Effort]:
    """Count what the block does in this thread; the counts are complete when it has ended."""
    effort = Effort()

    def called(_: FrameType, event: str, __: Any) -> None:
        if event in ("call", "c_call"):
            effort.calls += 1

    before, pages, read = sys.getprofile(), _pages(), _read()
    sys.setprofile(called)
    try:
        yield effort
    finally:
        sys.setprofile(before)
        effort.pages, effort.read = _pages() - pages, _read() - read


def _pages() -> int:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


def _read() -> int:
    if not IO.exists():
        return 0
    return int(IO.read_text().split("rchar: ")[1].split()[0])
