"""Memory of large vectors that is used again instead of being returned to the operating system.

glibc returns a block of more than 32 MiB when it is freed, and the kernel clears the next one,
which took half of the time of a search on ResNet-18.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD = -1  # parameters of mallopt(3)
MMAP_THRESHOLD = -3
LARGEST = 1 << 30  # bytes of a block that is used again, and of free memory that is kept
USUAL = 32 << 20  # the largest threshold that glibc chooses by itself
BYTES = 8  # of a number in float64

_users = 0  # searches that keep blocks at present; the settings are those of the process


@contextmanager
def kept(numbers: int) -> Iterator[None]:
    """Keep the blocks of large vectors for the next ones, if the C library is glibc."""
    global _users
    if numbers * BYTES <= USUAL or platform.libc_ver()[0] != "glibc":
        yield
        return
    libc = ctypes.CDLL(None)
    _users += 1
    libc.mallopt(MMAP_THRESHOLD, LARGEST)
    libc.mallopt(TRIM_THRESHOLD, LARGEST)
    try:
        yield
    finally:
        _users -= 1
        if not _users:
            libc.mallopt(MMAP_THRESHOLD, USUAL)
            libc.mallopt(TRIM_THRESHOLD, 2 * USUAL)
            libc.malloc_trim(0)
