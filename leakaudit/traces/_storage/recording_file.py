"""The tapes of one recording: a single one, in memory or in a file, or one a shard of a folder."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from leakaudit.errors import LeakauditError
from leakaudit.trace import Trace
from leakaudit.traces import trace_file
from leakaudit.traces._storage import shards, sidecar
from leakaudit.traces._storage.sizes import plan_size
from leakaudit.traces._storage.table import Tape

Size = tuple[int | None, int | None]  # messages, rows


class Reel:
    """Starts a tape with the first message, and a new one where a shard is full.

    path: None for memory. shard_bytes: of the shards of a folder, None for one file. head: what stands before the
    messages. size: of the whole recording, where known. limit: bytes of all tapes.
    Raises LeakauditError where `path` cannot be written; nothing is created before the first message.
    """

    def __init__(
        self,
        path: Path | None,
        shard_bytes: int | None,
        head: Mapping[str, Any],
        width: int,
        dtype: torch.dtype,
        size: Size,
        limit: float,
    ) -> None:
        self.path, self._shard_bytes, self._head, self._width, self._dtype, self._limit = (
            path,
            shard_bytes,
            head,
            width,
            dtype,
            limit,
        )
        self._size = (
            size if shard_bytes is None else _first_shard(size, shard_bytes, width * dtype.itemsize)
        )
        self._manifest = shards.Manifest(json.loads(head["meta"]))
        self._tape: Tape | None = None
        self._mark = (0, 0)  # messages and rows of this tape when the round began
        self._largest = (0, 0)  # of a round
        self._rounds, self._last = 0, 0  # rounds in this tape; the last round of all
        if path is not None:
            _probe(path, shard_bytes is not None)

    @property
    def started(self) -> bool:
        """Whether anything was created."""
        return self._tape is not None

    def tape(self, round: int) -> Tape:
        """Return the tape for messages of this round."""
        if self._tape is None:
            self._tape = self._start(round)
        elif (
            self._shard_bytes is not None
            and round > self._last
            and self._rounds >= self._fit(self._shard_bytes)
        ):
            self._tape.finish(self._last)
            self._limit -= self._tape.bytes
            self._size = (
                self._largest[0] * self._fit(self._shard_bytes),
                self._largest[1] * self._fit(self._shard_bytes),
            )
            self._mark, self._rounds = (0, 0), 0
            self._tape = self._start(round)
        return self._tape

    def commit(self, round: int) -> None:
        """Make what was appended count, up to this round."""
        tape = self.tape(round)
        tape.commit(round)
        if tape.messages > self._mark[0]:
            self._largest = (
                max(self._largest[0], tape.messages - self._mark[0]),
                max(self._largest[1], tape.rows - self._mark[1]),
            )
            self._mark, self._rounds = (tape.messages, tape.rows), self._rounds + 1
        self._last = round

    def finish(self, rounds: int | None) -> None:
        """Close the last tape; rounds: of a recording that came to its end, None for one that did not."""
        self.tape(self._last).finish(rounds)
        self._manifest.complete = rounds is not None
        if self.path is not None and self._shard_bytes is not None:
            self._manifest.write(self.path)

    def seal(self, hash: bool | None) -> None:
        """Write the sha256 beside the recording; None does so up to 4 GiB."""
        if self.path is None or hash is False:
            return
        files = (
            [self.path]
            if self._shard_bytes is None
            else [self.path / name for name in self._manifest.files]
        )
        if hash or sum(file.stat().st_size for file in files) <= sidecar.LARGE:
            trace_file.write_sidecar(self.path)

    def trace(self) -> Trace:
        """Return what was recorded."""
        return (
            trace_file.decode(self.tape(0).tree, "recording")
            if self.path is None
            else trace_file.load(self.path, verify=False)
        )

    def _fit(self, shard_bytes: int) -> int:
        """Rounds, as large as the largest, that a shard takes."""
        return max(
            1,
            shard_bytes // plan_size(self._largest[0], self._width, self._dtype, self._largest[1]),
        )

    def _start(self, round: int) -> Tape:
        path = self.path
        if path is None:
            return Tape(None, self._head, self._width, self._dtype, self._size, self._limit)
        try:
            if self._shard_bytes is None:
                sidecar.beside(path).unlink(missing_ok=True)
                return Tape(path, self._head, self._width, self._dtype, self._size, self._limit)
            if not self._manifest.files:
                _clear(path)
            name = shards.name(round)
            tape = Tape(path / name, self._head, self._width, self._dtype, self._size, self._limit)
        except OSError as error:
            raise LeakauditError(
                f"cannot write {path}: {error.strerror}; choose another path"
            ) from None
        self._manifest.files[name] = None
        self._manifest.write(path)
        return tape


def _first_shard(size: Size, shard_bytes: int, row_bytes: int) -> Size:
    """Return the capacity of the first shard, which later ones learn from the rounds that came."""
    messages, rows = size
    if messages is None or rows is None:
        return size
    fit = max(1, min(rows, shard_bytes // row_bytes))
    return max(1, messages * fit // max(1, rows)), fit


def _clear(folder: Path) -> None:
    """Make a folder ready for a recording; an earlier recording in it is removed."""
    (folder / "shards").mkdir(parents=True, exist_ok=True)
    sidecar.beside(shards.place(folder)).unlink(missing_ok=True)
    shards.place(folder).unlink(missing_ok=True)
    for old in (folder / "shards").glob("r[0-9]*.pt"):
        old.unlink()


def _probe(path: Path, folder: bool) -> None:
    """Raise LeakauditError unless a recording can stand at `path`; leaves nothing behind."""
    if folder and path.is_dir() and any(path.iterdir()):
        try:
            shards.read(path)
        except LeakauditError:
            raise LeakauditError(
                f"{path} is a folder with other things in it; choose a new one, or a file name that ends in .pt"
            ) from None
    if path.exists() and not (path.is_dir() if folder else path.is_file()):
        raise LeakauditError(
            f"cannot write {path}: it is no {'folder' if folder else 'file'}; choose another path"
        )
    where = path if path.is_dir() else path.parent
    if not where.is_dir():
        raise LeakauditError(f"cannot write {path}: there is no folder {where}; make it first")
    try:
        tempfile.TemporaryFile(dir=where).close()
    except OSError as error:
        raise LeakauditError(
            f"cannot write {path}: {error.strerror}; choose another path"
        ) from None
