"""One growing table of messages, in a file or in memory.

Rows are written before the counter that makes them valid, so a reader finds complete rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.traces._storage import sizes
from leakaudit.traces._storage.mapped_file import MapFile, MemoryFile, hole
from leakaudit.traces._storage.sizes import human, plan_size
from leakaudit.traces._storage.wellformed import INDEX, KINDS

MOST = (1 << 31) - 1  # the maximum count of an index column
# Number of rows of a new table of unknown size. They take no space before they are written, so both
# numbers are a choice: small enough that a small recording never grows far beyond its need.
START = 1024
SPARSE = 256 << 20  # maximum number of payload bytes of a new table


@dataclass(frozen=True)
class TableFormat:
    """What all tables of one recording have in common."""

    head: Mapping[str, Any]  # the contents of a file before the messages
    width: int  # number of entries of a payload
    dtype: torch.dtype  # number format of the payloads

    @property
    def row_bytes(self) -> int:
        """Size of one payload in bytes."""
        return self.width * self.dtype.itemsize

    def size(self, messages: int, rows: int) -> int:
        """Return the size of a table in bytes."""
        return plan_size(messages, self.width, self.dtype, rows)


class MessageTable:
    """A table to which messages are appended.

    Args:
        path: Path of the file, which exists from the start; None for memory.
        size: Expected numbers of messages and rows; None if unknown.
        limit: Maximum size in bytes.
    """

    def __init__(
        self,
        path: Path | None,
        format: TableFormat,
        size: tuple[int | None, int | None],
        limit: float,
    ) -> None:
        self._path = path
        self._format = format
        self._limit = limit
        self.messages = 0
        self.rows = 0
        self._committed = 0
        self._kinds: dict[str, int] = {}
        # Rows (first, stop) that were handed out before the file grew and still have to be copied
        # from the old file's memory, because their owner may write to it until the round ends.
        self._late: list[tuple[int, int, Tensor]] = []
        row_bytes = format.row_bytes
        affordable = limit // (row_bytes + sizes.INDEX)
        start = max(1, int(min(START, SPARSE // row_bytes, affordable)))
        messages, rows = (start if count is None else count for count in size)
        self._file = self._new(messages, rows)
        self._file.publish()
        self._bind()

    @property
    def bytes(self) -> int:
        """Number of bytes in use."""
        return self._format.size(self.messages, self.rows)

    @property
    def tree(self) -> Mapping[str, Any]:
        """The file's contents, as `leakaudit._util.untrusted.safe_reader.read` returns them."""
        return self._file.tree

    def _new(self, messages: int, rows: int) -> MemoryFile:
        table = {
            "written": hole(4, dtype=torch.int64),
            "kinds": hole(KINDS, dtype=torch.uint8),
            **{name: hole(messages, dtype=torch.int32) for name in INDEX},
            "secure": hole(messages, dtype=torch.bool),
            "payload": hole(rows, self._format.width, dtype=self._format.dtype),
        }
        tree = {**self._format.head, "messages": table}
        if self._path is None:
            return MemoryFile(tree)
        return MapFile(self._path, tree)

    def _bind(self) -> None:
        table = self._file.tree["messages"]
        self._index = [table[name].numpy() for name in (*INDEX, "secure")]
        self._payload: Tensor = table["payload"]
        self._written: np.ndarray[Any, np.dtype[np.int64]] = table["written"].numpy()

    def kind(self, name: str) -> int:
        """Return the number of a kind of messages; a new kind receives the next one."""
        if name in self._kinds:
            return self._kinds[name]
        text = "".join(f"{n}\n" for n in (*self._kinds, name)).encode()
        sound = isinstance(name, str) and 1 <= len(name) <= 200 and name.isprintable()
        if not sound or len(text) > KINDS:
            raise LeakauditError(
                f"kind {name!r}: expected a short printable name, "
                f"and at most {KINDS} bytes for all names"
            )
        names = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._file.tree["messages"]["kinds"][: len(text)].copy_(names)
        self._kinds[name] = len(self._kinds)
        return self._kinds[name]

    def append(self, count: int, rows: int, values: tuple[Any, ...]) -> Tensor:
        """Return new payloads (rows, width), to be filled before `commit`, for new messages.

        Args:
            values: Values of the columns round, src, dst, kind, row (counted from the first of the
                new payloads) and secure.
        """
        stop = self.messages + count
        end = self.rows + rows
        if stop > len(self._index[0]) or end > len(self._payload):
            self._grow(stop, end)
        self._file.reserve(end * self._format.row_bytes)
        new = slice(self.messages, stop)
        for column, value in zip(self._index, values, strict=True):
            column[new] = value
        self._index[INDEX.index("row")][new] += self.rows
        payload = self._payload[self.rows : end]
        self.messages = stop
        self.rows = end
        return payload

    def _grow(self, messages: int, rows: int) -> None:
        """Continue in a file of twice the size; it replaces the old one once it has everything."""
        needed = self._format.size(messages, rows)
        if needed > self._limit or max(messages, rows) > MOST:
            raise LeakauditError(
                f"the recording has reached {human(needed)}, "
                f"but max_bytes allows {human(self._limit)} here; "
                "what was recorded so far can be read"
            )
        factor = min(2, self._limit / needed, MOST / max(messages, rows))
        capacity = max(int(messages * factor), len(self._index[0]))
        row_capacity = max(int(rows * factor), len(self._payload))
        old = self._file
        payload = self._payload
        index = self._index
        counters = self._written.copy()
        kinds = old.tree["messages"]["kinds"]
        self._file = self._new(capacity, row_capacity)
        try:
            self._bind()
            for new, column in zip(self._index, index, strict=True):
                new[: self.messages] = column[: self.messages]
            self._file.take(old, self.rows * self._format.row_bytes)
            self._file.tree["messages"]["kinds"].copy_(kinds)
            self._written[:] = counters
            self._file.publish()
        except BaseException:
            self._file.discard()
            self._file = old
            self._bind()
            raise
        old.discard()
        first = self._late[-1][1] if self._late else self._committed
        self._late.append((first, self.rows, payload))

    def commit(self, round: int) -> None:
        """Commit everything that was appended."""
        for first, stop, payload in self._late:
            self._payload[first:stop] = payload[first:stop]
        self._late.clear()
        self._committed = self.rows
        # In this order, one by one, because a reader may come in between.
        self._written[0] = self.rows
        self._written[1] = self.messages
        self._written[2] = round
        self._file.release(self.rows * self._format.row_bytes)

    def finish(self, rounds: int | None) -> None:
        """Truncate the table to its contents; `rounds` is None for an incomplete recording."""
        rows = self._committed
        if rounds is not None:
            rows = self.rows
            self._written[2:4] = rounds, 1
        self._file.finish(rows)
