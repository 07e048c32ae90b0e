"""The growing end of a file of payloads, written for little processor time. Nothing here imports torch."""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress
from typing import Any

ALIGN, CHUNK = 16, 1 << 18
FIRST = 64  # bytes of a payload that mostly tell it from another
RESERVED, KEEP_SIZE = 64 << 20, 1
STEP = 4 << 20  # bytes after which it is judged what writing costs
DEAR = 1e-9  # CPU seconds a byte: five times a copy into pages that the machine has at hand (bench/tap.py)
PATIENCE = 5e-9  # seconds a byte, beyond which the disk is too slow to be waited for


class Tail:
    """Append payloads to a file; whatever `append` returned from outlives the process.

    fd: of a file opened to read and to append; it belongs to this object. Not for several threads at once.

    Where writing costs more than DEAR, what was written is given to the disk early and its memory is used again: a virtual machine whose
    host has to find each fresh page writes several times as fast that way. Elsewhere the kernel writes in its own time.
    """

    def __init__(self, fd: int) -> None:
        self.size = 0
        self._fd, self._room = fd, 0  # how far the disk is reserved
        self._last, self._first, self._buffer = (
            (0, 0),
            b"",
            bytearray(CHUNK),
        )  # the last payload's offset and bytes, and how it begins
        self._early: bool | None = (
            None  # whether the disk gets it early, None where that is still to be judged
        )
        self._cost, self._from, self._given = (
            0.0,
            0,
            0,
        )  # CPU seconds since _from; how far the disk was given it early

    def append(self, data: Any) -> tuple[int, int]:
        """Write data (n,) uint8, unless it is the last payload once more, and return its offset, a multiple of ALIGN, and n.

        Raises OSError where the disk refuses it.
        """
        begun, offset = time.thread_time(), self.size
        self._reserve(offset + len(data))
        for part in (memoryview(data), memoryview(bytes(-len(data) % ALIGN))):
            while part:
                written = os.write(self._fd, part)
                self.size, part = self.size + written, part[written:]
        self._last, self._first = (offset, len(data)), data[:FIRST].tobytes()
        self._cost += time.thread_time() - begun
        self._recycle()
        return self._last

    def last(self, data: Any) -> tuple[int, int] | None:
        """Return offset and bytes of the last payload where it is `data`, else None."""
        if not len(data) == self._last[1] > 0 or data[:FIRST].tobytes() != self._first:
            return None
        buffer = (ctypes.c_char * CHUNK).from_buffer(self._buffer)
        at, end = 0, len(data)
        while at < end:
            got = os.preadv(self._fd, [memoryview(self._buffer)[: end - at]], self._last[0] + at)
            if not got or _libc.memcmp(
                buffer, ctypes.c_void_p(data.ctypes.data + at), ctypes.c_size_t(got)
            ):
                return None
            at += got
        return self._last

    def close(self, keep_room: bool = False) -> None:
        """Give back the room that was reserved, unless another process goes on writing, and close the file."""
        if 0 < self._room < 1 << 62 and not keep_room:
            with suppress(OSError):
                os.ftruncate(self._fd, self.size)
        os.close(self._fd)
        self._fd = -1

    def _reserve(self, end: int) -> None:
        """Have the disk set aside room in large pieces, without changing the file's length: that halves the cost of a write (ext4)."""
        if end > self._room and hasattr(_libc, "fallocate"):
            ahead = max(RESERVED, 2 * (end - self.size))
            if _libc.fallocate(
                self._fd, KEEP_SIZE, ctypes.c_int64(self.size), ctypes.c_int64(ahead)
            ):
                self._room = 1 << 62  # not here: never again
            else:
                self._room = self.size + ahead

    def _recycle(self) -> None:
        """Have the disk write all payloads but the last, and drop from memory those that it has written."""
        if self._early is None and (count := self.size - self._from) >= STEP:
            if self._cost > DEAR * count and hasattr(os, "posix_fadvise"):
                self._early = True
            self._cost, self._from = 0.0, self.size
        if self._early and (count := self._last[0] - self._given) >= STEP:
            begun, self._given = time.perf_counter(), self._last[0]
            with suppress(OSError):
                os.posix_fadvise(self._fd, 0, self._given, os.POSIX_FADV_DONTNEED)
            self._early = time.perf_counter() - begun < PATIENCE * count


_libc = ctypes.CDLL(None)
