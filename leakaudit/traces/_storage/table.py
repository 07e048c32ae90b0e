"""One growing table of messages, in a file or in memory: rows are written first, then the counter that makes them count."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leakaudit.errors import LeakauditError
from leakaudit.traces._storage.mapped_file import Hole, MapFile, MemoryFile
from leakaudit.traces._storage.sizes import INDEX as INDEX_BYTES
from leakaudit.traces._storage.sizes import human, plan_size
from leakaudit.traces._storage.wellformed import INDEX, KINDS

MOST = (1 << 31) - 1  # what an index column can count
START, SPARSE = (
    1024,
    256 << 20,
)  # rows at first, where nothing is known, but no more than so many bytes; they take no space yet


class Tape:
    """A table that takes appended messages.

    path: where the file stands from the first moment on, None for memory. head: what stands before the messages.
    size: messages and rows to begin with, where known; it grows by doubling, up to `limit` bytes.
    Raises LeakauditError where the file cannot be created.
    """

    def __init__(
        self,
        path: Path | None,
        head: Mapping[str, Any],
        width: int,
        dtype: torch.dtype,
        size: tuple[int | None, int | None],
        limit: float,
    ) -> None:
        self._path, self._head, self._width, self._dtype, self._limit = (
            path,
            head,
            width,
            dtype,
            limit,
        )
        self.row_bytes = width * dtype.itemsize
        start = max(
            1, int(min(START, SPARSE // self.row_bytes, limit // (self.row_bytes + INDEX_BYTES)))
        )
        self.messages = self.rows = self._committed = 0
        self._kinds: dict[str, int] = {}
        self._late: list[
            tuple[int, int, Tensor]
        ] = []  # rows handed out before the file grew, to be fetched from the old one
        messages, rows = (start if n is None else n for n in size)
        self._file = self._new(messages, rows)
        self._file.publish()
        self._bind()

    @property
    def bytes(self) -> int:
        """Bytes in use."""
        return plan_size(self.messages, self._width, self._dtype, self.rows)

    @property
    def tree(self) -> Mapping[str, Any]:
        """The file's content, as `leakaudit.traces._storage.safe_reader.read` returns it."""
        return self._file.tree

    def _new(self, messages: int, rows: int) -> MemoryFile:
        index = {name: Hole((messages,), torch.int32) for name in INDEX}
        counters = {"written": Hole((4,), torch.int64), "kinds": Hole((KINDS,), torch.uint8)}
        table = {
            **counters,
            **index,
            "secure": Hole((messages,), torch.bool),
            "payload": Hole((rows, self._width), self._dtype),
        }
        tree = {**self._head, "messages": table}
        return MemoryFile(tree) if self._path is None else MapFile(self._path, tree)

    def _bind(self) -> None:
        table = self._file.tree["messages"]
        self._index = [table[name].numpy() for name in (*INDEX, "secure")]
        self._payload: Tensor = table["payload"]
        self._written: np.ndarray[Any, np.dtype[np.int64]] = table["written"].numpy()

    def kind(self, name: str) -> int:
        """Return the number of a kind of messages, a new one where it was not there."""
        if name not in self._kinds:
            text = "".join(f"{n}\n" for n in (*self._kinds, name)).encode()
            if (
                not isinstance(name, str)
                or not 1 <= len(name) <= 200
                or not name.isprintable()
                or len(text) > KINDS
            ):
                raise LeakauditError(
                    f"kind {name!r}: expected a short printable name, and at most {KINDS} bytes of names in all"
                )
            self._file.tree["messages"]["kinds"][: len(text)].copy_(
                torch.frombuffer(bytearray(text), dtype=torch.uint8)
            )
            self._kinds[name] = len(self._kinds)
        return self._kinds[name]

    def append(self, count: int, rows: int, values: tuple[Any, ...]) -> Tensor:
        """Add `count` messages with `rows` new payloads, and return these (rows, width) to be written before `commit`.

        values: what stands in the columns round, src, dst, kind, row (counted from the first of these rows) and secure.
        """
        stop, end = self.messages + count, self.rows + rows
        if stop > len(self._index[0]) or end > len(self._payload):
            self._grow(stop, end)
        self._file.reserve(end * self.row_bytes)
        for column, value in zip(self._index, values, strict=True):
            column[self.messages : stop] = value
        self._index[4][self.messages : stop] += self.rows
        payload = self._payload[self.rows : end]
        self.messages, self.rows = stop, end
        return payload

    def _grow(self, messages: int, rows: int) -> None:
        """Go on in a file of twice the size, that takes the name of this one when it holds all that this one does."""
        needed = plan_size(messages, self._width, self._dtype, rows)
        if needed > self._limit or max(messages, rows) > MOST:
            allowed = f"max_bytes allows {human(self._limit)} here"
            raise LeakauditError(
                f"the recording reached {human(needed)}, {allowed}; what was recorded up to here can be read"
            )
        factor = min(2, self._limit / needed, MOST / max(messages, rows))
        want = (
            max(int(messages * factor), len(self._index[0])),
            max(int(rows * factor), len(self._payload)),
        )
        old, payload, index = self._file, self._payload, self._index
        counters, kinds = self._written.copy(), old.tree["messages"]["kinds"]
        self._file = self._new(*want)
        try:
            self._bind()
            for new, column in zip(self._index, index, strict=True):
                new[: self.messages] = column[: self.messages]
            self._file.take(old, self.rows * self.row_bytes)
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
        """Make all that was appended count, up to this round."""
        for first, stop, payload in self._late:
            self._payload[first:stop] = payload[first:stop]
        self._late.clear()
        self._committed = self.rows
        for place, value in enumerate(
            (self.rows, self.messages, round)
        ):  # in this order: a reader may come in between
            self._written[place] = value
        self._file.release(self.rows * self.row_bytes)

    def finish(self, rounds: int | None) -> None:
        """Cut the table to its content and write no more; rounds: of a recording that came to its end."""
        if rounds is not None:
            self._written[2:4] = rounds, 1
        self._file.finish(self.rows if rounds is not None else self._committed)
