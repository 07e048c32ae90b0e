"""The raw log of one process: the messages that it sent, in order."""

# A log consists of two files in one folder. ``rank3.0.bin`` contains the payloads, each at a
# multiple of 16 bytes. ``rank3.0.jsonl`` contains a first line with format, version and facts about
# the process, then one line per event, written after its payload. A payload that is sent to several
# receivers in succession is stored once. The second number in the names counts restarts of a rank.
#
# A process that ends normally writes a last line ``{"end": true, …}``; one that is killed loses at
# most its last event. `leakaudit.capture.tap.log.reading` reads logs. This module does not import
# torch.

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from leakaudit._util.files import private_folder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes: TypeAlias = NDArray[np.uint8]

FORMAT = "leakaudit.tap"
VERSION = 1
LEFT_OUT = "left_out"  # the note of an event without its payload; its value is the reason
DTYPES = {  # number format -> bytes
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "bool": 1,
}
UNRANKED = 999_999  # rank of logs that hold no messages, only remarks about their process
ATTEMPTS = 1000  # restarts of one rank; arbitrary, but `reading.NAME` allows three digits

ALIGN = 16  # bytes; a mapped payload may then be read as numbers of any format
CHUNK = 1 << 18  # bytes to read at once when comparing payloads: arbitrary
PREFIX = 64  # first bytes of a payload, which usually distinguish it from another without reading
STEP = 4 << 20  # bytes over which the cost is measured, and that are written back at once: a choice
COSTLY = 1e-9  # CPU seconds per byte: five times a copy into available pages (bench/tap.py)
PATIENCE = 5e-9  # seconds per byte (200 MB/s) above which the disk is too slow to wait for


class Log:
    """Append the events of one rank; several threads may write."""

    # After a fork the child needs its own log: `owner` is the process that opened this one. Events
    # beyond `max_bytes` are logged without their payloads. An error of the disk after the first
    # line ends the recording of payloads and makes `write` return False, because it must not affect
    # the tapped program.

    def __init__(
        self,
        folder: str | os.PathLike[str],
        rank: int,
        max_bytes: float | None = None,
        **about: Any,
    ) -> None:
        private_folder(Path(folder))
        self.rank = rank
        self.owner = os.getpid()
        self.trouble = ""  # the first disk error, after which payloads are no longer kept
        self.spent = 0.0  # seconds in the tap so far, set by the caller; part of every line
        self._max = max_bytes
        self._seq = 0
        self._lock = threading.Lock()
        data, self._lines = _fresh(Path(folder), rank)
        self._tail = _PayloadFile(data)
        self._begun = time.time()
        self._line(
            {
                "format": FORMAT,
                "version": VERSION,
                "rank": rank,
                "pid": self.owner,
                "time": self._begun,
                **about,
            }
        )

    def write(
        self, op: str, value: Any = None, peer: int | None = None, tag: int = 0, **notes: Any
    ) -> bool:
        """Log one event, with a tensor or array in its current state, unless left_out is noted."""
        with self._lock:
            dtype, shape, nbytes = _form(value)
            offset = self._tail.size
            size = 0
            if nbytes and LEFT_OUT not in notes:
                offset, size = self._keep(_bytes(value), notes)
            line = {
                "seq": self._seq,
                "time": round(time.time(), 6),
                "rank": self.rank,
                "op": op,
                "peer": peer,
                "tag": tag,
                "dtype": dtype,
                "shape": shape,
                "offset": offset,
                "nbytes": size,
                "spent": round(self.spent, 6),
            }
            line.update(notes)
            self._seq += 1
            self._line(line)
            return size > 0

    def close(self) -> None:
        """Record that the process ended normally, and whether the disk failed; close the files."""
        with self._lock:
            if self._lines < 0:
                return
            line: dict[str, Any] = {"end": True, "time": round(time.time(), 6)}
            line["spent"] = round(self.spent, 6)
            if self.trouble:
                line["trouble"] = self.trouble
            self._line(line)
            self._close_files()

    def abandon(self) -> None:
        """Close the files without a last line: in a fork, because its parent continues writing."""
        self._lock = threading.Lock()
        self._close_files()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _keep(self, data: Bytes, notes: dict[str, Any]) -> tuple[int, int]:
        """Append a payload (n,), unless it repeats the last one; return its offset and bytes."""
        # If it is not kept, the number of bytes is 0 and the reason is added to `notes`.
        again = self._tail.last(data)
        if again is not None:
            return again
        if self.trouble or (self._max is not None and self._tail.size + len(data) > self._max):
            notes[LEFT_OUT] = self.trouble or "max_bytes"
            return self._tail.size, 0
        try:
            return self._tail.append(data)
        except OSError as error:
            self.trouble = error.strerror or "a disk error"
            notes[LEFT_OUT] = self.trouble
            return self._tail.size, 0

    def _line(self, value: dict[str, Any]) -> None:
        try:
            os.write(self._lines, json.dumps(value, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            self.trouble = error.strerror or "a disk error"

    def _close_files(self) -> None:
        if self._lines >= 0:
            self._tail.close()
            os.close(self._lines)
            self._lines = -1


def _fresh(folder: Path, rank: int) -> tuple[int, int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    for attempt in range(ATTEMPTS):
        try:
            data = os.open(folder / f"rank{rank}.{attempt}.bin", flags | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        return data, os.open(folder / f"rank{rank}.{attempt}.jsonl", flags, 0o600)
    raise FileExistsError(f"{folder} contains 1000 logs of rank {rank}")


def _form(value: Any) -> tuple[str | None, list[int], int]:
    """Return dtype, shape and bytes of a tensor or array; 0 bytes if its format is unsupported."""
    if value is None:
        return None, [], 0
    dtype = str(value.dtype).removeprefix("torch.")
    nbytes = 0
    dense = "sparse" not in str(getattr(value, "layout", ""))
    if dtype in DTYPES and dense:
        nbytes = int(value.nbytes)
    return dtype, list(value.shape), nbytes


def _bytes(value: Any) -> Bytes:
    """Return a tensor or array as bytes (n,), without a copy if contiguous and in main memory."""
    if hasattr(value, "detach"):
        import torch

        flat = value.detach().cpu().contiguous().reshape(-1)
        view: Bytes = flat.view(torch.uint8).numpy()
        return view
    import numpy as np

    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


class _PayloadFile:
    """Append payloads to a file; data written by `append` survive the process.

    If writing costs more than COSTLY, earlier payloads are written back to the disk immediately and
    their memory is reused: on a virtual machine with a host that has to find each fresh page, this
    halves the CPU time or better. Otherwise the kernel decides when to write back.

    Not thread-safe.
    """

    def __init__(self, fd: int) -> None:
        self.size = 0
        self._fd = fd
        self._last = (0, 0)  # offset and bytes of the last payload
        self._prefix = b""  # its first bytes
        self._early: bool | None = None  # whether to write back early; None if not yet measured
        self._cost = 0.0  # CPU seconds of writing since _measured_from
        self._measured_from = 0
        self._written_back = 0

    def append(self, data: Bytes) -> tuple[int, int]:
        begun = time.thread_time() if self._early is None else 0.0
        offset = self.size
        self._write(data.data)
        self._write(memoryview(bytes(-len(data) % ALIGN)))
        self._last = (offset, len(data))
        self._prefix = data[:PREFIX].tobytes()
        if self._early is None:
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
        """Return offset and bytes of the last payload if it equals this one (n,), else None."""
        # The last payload is read back from the file.
        offset, count = self._last
        if count == 0 or len(data) != count or data[:PREFIX].tobytes() != self._prefix:
            return None
        for start in range(0, count, CHUNK):
            part = data[start : start + CHUNK].tobytes()
            if os.pread(self._fd, len(part), offset + start) != part:
                return None
        return self._last

    def close(self) -> None:
        os.close(self._fd)
        self._fd = -1

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
