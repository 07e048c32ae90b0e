"""The growing end of a file of payloads, written with little processor time.

Nothing here imports torch.
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
CHUNK = 1 << 18  # bytes that are read at once to compare payloads: a plain choice
PREFIX = 64  # bytes at the start of a payload that usually tell it from another, without reading
RESERVED = 64 << 20  # bytes that are reserved on the disk at once: a plain choice
KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE of fallocate(2)
UNAVAILABLE = 1 << 62  # a reservation that no file outgrows, once fallocate has failed
STEP = 4 << 20  # bytes over which the cost is measured, and that are written back at once: a choice
COSTLY = 1e-9  # CPU seconds per byte: five times a copy into pages that are at hand (bench/tap.py)
PATIENCE = 5e-9  # seconds per byte (200 MB/s), beyond which the disk is too slow to be waited for


class Tail:
    """Append payloads to a file; what `append` has written outlives the process.

    If writing costs more than COSTLY, earlier payloads are written back to the disk at once, and
    their memory is reused: on a virtual machine whose host has to find each fresh page, that is
    several times faster. Otherwise the kernel writes back in its own time.

    Not thread-safe.

    Args:
        fd: of a file opened to read and to append; it belongs to this object.
    """

    def __init__(self, fd: int) -> None:
        self.size = 0
        self._fd = fd
        self._room = 0  # up to where the disk is reserved
        self._last = (0, 0)  # offset and bytes of the last payload
        self._prefix = b""  # how it begins
        self._buffer = bytearray(CHUNK)
        self._early: bool | None = None  # whether to write back early; None if not yet measured
        self._cost = 0.0  # CPU seconds of writing since _measured_from
        self._measured_from = 0
        self._written_back = 0

    def append(self, data: Bytes) -> tuple[int, int]:
        """Append a payload.

        Args:
            data: (n,) uint8.

        Returns:
            Its offset, a multiple of ALIGN, and n.

        Raises:
            OSError: the disk refused it.
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
        """Write all of a part; after an error, `size` counts what was written."""
        while part:
            written = os.write(self._fd, part)
            self.size += written
            part = part[written:]

    def last(self, data: Bytes) -> tuple[int, int] | None:
        """Compare a payload with the last one, by reading that back from the file.

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
        """Close the file and release the room that was reserved.

        Args:
            keep_room: leave the reservation, because another process goes on writing.
        """
        if 0 < self._room < UNAVAILABLE and not keep_room:
            with suppress(OSError):
                os.ftruncate(self._fd, self.size)
        os.close(self._fd)
        self._fd = -1

    def _reserve(self, end: int) -> None:
        """Reserve room on the disk in large pieces: that halves the cost of a write (ext4).

        The file's length stays as it is.
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
        """Have the kernel write all payloads but the last, and drop from memory what is written."""
        # The last payload stays in memory, as `last` may have to read it again.
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
