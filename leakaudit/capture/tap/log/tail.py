"""The growing end of a file of payloads, written with little processor time.

This module does not import torch.
"""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes: TypeAlias = NDArray[np.uint8]

ALIGN = 16  # bytes; a mapped payload may then be read as numbers of any format
CHUNK = 1 << 18  # bytes to read at once when comparing payloads: arbitrary
PREFIX = 64  # first bytes of a payload, which usually distinguish it from another without reading
RESERVED = 64 << 20  # bytes to reserve on the disk at once: arbitrary
KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE of fallocate(2)
UNAVAILABLE = 1 << 62  # a reservation that no file exceeds, once fallocate has failed
STEP = 4 << 20  # bytes over which the cost is measured, and that are written back at once: a choice
COSTLY = 1e-9  # CPU seconds per byte: five times a copy into available pages (bench/tap.py)
PATIENCE = 5e-9  # seconds per byte (200 MB/s) above which the disk is too slow to wait for


class PayloadFile:
    """Append payloads to a file; data written by `append` survive the process.

    If writing costs more than COSTLY, earlier payloads are written back to the disk immediately and
    their memory is reused: on a virtual machine with a host that has to find each fresh page, this
    is several times faster. Otherwise the kernel decides when to write back.

    Not thread-safe.
    """

    def __init__(self, fd: int) -> None:
        self.size = 0
        self._fd = fd
        self._room = 0  # end of the reserved part of the file
        self._last = (0, 0)  # offset and bytes of the last payload
        self._prefix = b""  # its first bytes
        self._buffer = bytearray(CHUNK)
        self._early: bool | None = None  # whether to write back early; None if not yet measured
        self._cost = 0.0  # CPU seconds of writing since _measured_from
        self._measured_from = 0
        self._written_back = 0

    def append(self, data: Bytes) -> tuple[int, int]:
        """Append a payload.

        Args:
            data: (n,) uint8.
        """
        begun = time.thread_time()
        offset = self.size
        self._reserve(offset + len(data))
        self._write(data.data)
        self._write(memoryview(bytes(-len(data) % ALIGN)))
        self._last = (offset, len(data))
        self._prefix = data[:PREFIX].tobytes()
        self._cost += time.thread_time() - begun
        self._write_back()
        return self._last

    def _write(self, part: memoryview) -> None:
        """Write a part completely; after an error, `size` counts what was written."""
        while part:
            written = os.write(self._fd, part)
            self.size += written
            part = part[written:]

    def last(self, data: Bytes) -> tuple[int, int] | None:
        """Compare a payload with the last one, by reading the latter back from the file.

        Args:
            data: (n,) uint8.

        Returns:
            Offset and bytes of the last payload if it equals `data`, else None.
        """
        offset, count = self._last
        if count == 0 or len(data) != count or data[:PREFIX].tobytes() != self._prefix:
            return None
        buffer = (ctypes.c_char * CHUNK).from_buffer(self._buffer)
        done = 0
        while done < count:
            room = memoryview(self._buffer)[: count - done]
            got = os.preadv(self._fd, [room], offset + done)
            if not got:
                return None
            here = ctypes.c_void_p(data.ctypes.data + done)
            if _libc.memcmp(buffer, here, ctypes.c_size_t(got)):
                return None
            done += got
        return self._last

    def close(self, keep_room: bool = False) -> None:
        """Close the file and release the reserved space."""
        if 0 < self._room < UNAVAILABLE and not keep_room:
            with suppress(OSError):
                os.ftruncate(self._fd, self.size)
        os.close(self._fd)
        self._fd = -1

    def _reserve(self, end: int) -> None:
        """Reserve space on the disk in large pieces: this halves the cost of a write (ext4).

        The file's length does not change.
        """
        if end <= self._room or not hasattr(_libc, "fallocate"):
            return
        ahead = max(RESERVED, 2 * (end - self.size))
        start = ctypes.c_int64(self.size)
        if _libc.fallocate(self._fd, KEEP_SIZE, start, ctypes.c_int64(ahead)):
            self._room = UNAVAILABLE
        else:
            self._room = self.size + ahead

    def _write_back(self) -> None:
        """Make the kernel write all payloads but the last, and drop them from memory."""
        # The last payload stays in memory, because `last` may have to read it again.
        measured = self.size - self._measured_from
        if self._early is None and measured >= STEP:
            if self._cost > COSTLY * measured and hasattr(os, "posix_fadvise"):
                self._early = True
            self._cost = 0.0
            self._measured_from = self.size
        waiting = self._last[0] - self._written_back
        if self._early and waiting >= STEP:
            begun = time.perf_counter()
            self._written_back = self._last[0]
            with suppress(OSError):
                os.posix_fadvise(self._fd, 0, self._written_back, os.POSIX_FADV_DONTNEED)
            self._early = time.perf_counter() - begun < PATIENCE * waiting


_libc = ctypes.CDLL(None)
