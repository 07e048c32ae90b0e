"""The raw log of one process: what it sent, in the order in which it sent it; a process that is killed leaves all but its last event.

A log is two files in one folder, ``rank3.0.bin`` (payloads, each at a multiple of 16 bytes) and ``rank3.0.jsonl``: a first line that
says what the file is, then one line an event, written after its payload. What is sent to several one after the other is kept once. The
second number counts restarts of a rank. A process that ends in order writes a last line ``{"end": true, …}``. `leakaudit.capture.tap.reading`
reads logs; nothing here imports torch.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any, Self

from leakaudit.capture.tap.tail import Tail

FORMAT, VERSION = "leakaudit.tap", 1
LEFT_OUT = "left_out"  # the note of an event whose payload was not kept, and why
DTYPES = {
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


class Log:
    """Append events of one rank. Several threads may write; after a fork the child needs a log of its own (`owner`).

    folder: is made where it is missing. rank: of this process. max_bytes: of payload; events beyond are logged without theirs.
    about: plain values for the first line, such as the number of processes.
    Raises OSError where the folder or the first file cannot be written; later errors (a full disk) end the payloads, and `write`
    goes on to return False: the program that is listened to must not suffer.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        rank: int,
        max_bytes: float | None = None,
        **about: Any,
    ) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.rank, self.owner, self.trouble = rank, os.getpid(), ""
        self.spent = 0.0  # seconds that the caller says the tap took so far; goes into every line
        self._max, self._seq, self._lock = max_bytes, 0, threading.Lock()
        data, self._lines = _fresh(Path(folder), rank)
        self._tail = Tail(data)
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
        """Log one event and return whether its payload was kept.

        op: send, recv, allreduce, broadcast or another word. value: a tensor or array as it is now, None for an event without payload.
        peer: the other rank. notes: plain values, such as round, kind, src and dst; left_out="…" logs the event without its payload.
        """
        with self._lock:
            dtype, shape, nbytes = _form(value)
            offset, size = self._tail.size, 0
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
            }
            line |= {
                "shape": shape,
                "offset": offset,
                "nbytes": size,
                "spent": round(self.spent, 6),
                **notes,
            }
            self._seq += 1
            self._line(line)
            return size > 0

    def close(self, **notes: Any) -> None:
        """Say that the process ended in order, and let go of the files."""
        with self._lock:
            if self._lines < 0:
                return
            self._line(
                {"end": True, "time": round(time.time(), 6), "spent": round(self.spent, 6), **notes}
            )
            self._let_go()

    def abandon(self) -> None:
        """Let go of the files without a word: in the child of a fork, whose parent goes on writing."""
        self._lock = threading.Lock()
        self._let_go(keep_room=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _keep(self, data: Any, notes: dict[str, Any]) -> tuple[int, int]:
        """Write a payload (n,) uint8 behind the others, unless it is the last one again; returns its offset and bytes."""
        if (again := self._tail.last(data)) is not None:
            return again
        if self.trouble or (self._max is not None and self._tail.size + len(data) > self._max):
            notes[LEFT_OUT] = self.trouble or "max_bytes"
            return self._tail.size, 0
        try:
            return self._tail.append(data)
        except OSError as error:
            self.trouble = notes[LEFT_OUT] = error.strerror or "the disk refused it"
            return self._tail.size, 0

    def _line(self, value: dict[str, Any]) -> None:
        try:
            os.write(self._lines, json.dumps(value, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            self.trouble = error.strerror or "the disk refused it"

    def _let_go(self, **how: bool) -> None:
        if self._lines >= 0:
            self._tail.close(**how)
            os.close(self._lines)
            self._lines = -1


def _fresh(folder: Path, rank: int) -> tuple[int, int]:
    """Open the first pair of files that no earlier process of this rank has."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    for attempt in range(1000):
        try:
            data = os.open(folder / f"rank{rank}.{attempt}.bin", flags | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        return data, os.open(folder / f"rank{rank}.{attempt}.jsonl", flags, 0o600)
    raise FileExistsError(f"{folder} holds 1000 logs of rank {rank}")


def _form(value: Any) -> tuple[str | None, list[int], int]:
    """Return dtype, shape and bytes of a tensor or array."""
    if value is None:
        return None, [], 0
    dtype = str(value.dtype).removeprefix("torch.")
    return dtype, list(value.shape), int(value.nbytes) if dtype in DTYPES else 0


def _bytes(value: Any) -> Any:
    """Return the bytes of a tensor or array as an array (n,) uint8, without copying where it is contiguous and in memory."""
    if hasattr(value, "detach"):
        import torch

        return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    import numpy as np

    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
