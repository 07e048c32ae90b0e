"""The files of one recording; the truth that is known before a message is written before it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from torch import Tensor

from leakaudit._util.files import UNFINISHED, explained, private_folder
from leakaudit._util.uncollected import read_json
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Trace
from leakaudit.traces import trace_file
from leakaudit.traces._storage import shards, sidecar
from leakaudit.traces._storage.table import MessageTable, TableFormat
from leakaudit.traces._storage.tree import decode
from leakaudit.traces._storage.truth_file import TruthFile

Integers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Size = tuple[int | None, int | None]  # numbers of messages and of payload rows; None if unknown


class RecordingWriter:
    """Writes one recording: in memory, to a file, or to shards that each hold complete rounds.

    Nothing is created before the first message.

    Args:
        path: The file or folder; None for memory.
        limit: Maximum total size of all tables in bytes.
        shard_bytes: Size of the shards of a folder; None for one file.
        hash: Whether to write a sha256 next to each file; None does so up to 4 GiB.
    """

    def __init__(
        self,
        path: Path | None,
        format: TableFormat,
        size: Size,
        limit: float,
        shard_bytes: int | None,
        truth: TruthFile,
        hash: bool | None,
    ) -> None:
        self._path = path
        self._format = format
        self._size = size
        self._limit = limit
        self._shard_bytes = shard_bytes
        self._truth = truth
        self._hash = hash
        self.pending = False
        if shard_bytes is not None:
            self._size = _first_shard(size, shard_bytes, format.row_bytes)
        self._manifest = shards.Manifest(read_json(format.head["meta"]))
        self._table: MessageTable | None = None
        # Messages and rows of the current table at the start of the round.
        self._begin_messages = 0
        self._begin_rows = 0
        # The maximum per round so far.
        self._most_messages = 0
        self._most_rows = 0
        self._rounds = 0  # number of rounds in the current table
        self._last = 0  # last round overall
        if path is not None:
            _probe(path, shard_bytes is not None)

    @property
    def started(self) -> bool:
        """Whether a file of messages has been created."""
        return self._table is not None

    def begin(self) -> None:
        """Write the truth that is known when recording starts, so that a killed run has it."""
        if not self.started:
            self._truth.write()

    def append(
        self, round: int, src: Integers, dst: Integers, kind: str, row: Integers, secure: bool
    ) -> Tensor:
        """Return the new payloads (rows, columns), to be filled before the round is committed.

        Args:
            src: (k,) senders, or (1,) for all.
            dst: (k,) receivers.
            row: (k,) index of the new payload of each, counted from 0.
        """
        table = self._table_of(round)
        rows = int(row.max()) + 1 if len(row) else 0
        values = (round, src, dst, table.kind(kind), row, secure)
        payload = table.append(len(dst), rows, values)
        self.pending = True
        return payload

    def commit(self, round: int) -> None:
        """Commit all messages up to this round; they survive if the program is killed."""
        table = self._table_of(round)
        table.commit(round)
        messages = table.messages - self._begin_messages
        if messages > 0:
            self._most_messages = max(self._most_messages, messages)
            self._most_rows = max(self._most_rows, table.rows - self._begin_rows)
            self._begin_messages = table.messages
            self._begin_rows = table.rows
            self._rounds += 1
        self._last = round
        self.pending = False

    def finish(self, rounds: int | None) -> None:
        """Close all files and hash them; `rounds` is None if the recording is incomplete."""
        self._table_of(self._last).finish(rounds)
        self._manifest.complete = rounds is not None
        if self._path is not None:
            if self._shard_bytes is not None:
                self._manifest.write(self._path)
            self._seal(self._path)
        self._truth.write()
        if self._hash is not False:
            self._truth.seal()

    def trace(self) -> Trace:
        """Return the recorded trace, after `finish`."""
        if self._path is None:
            return decode(self._table_of(0).tree, "recording")
        return trace_file.load(self._path, verify=False)

    def _seal(self, path: Path) -> None:
        if self._hash is False:
            return
        files = [path]
        if self._shard_bytes is not None:
            files = [path / name for name in self._manifest.files]
        if self._hash or sum(file.stat().st_size for file in files) <= sidecar.LARGE:
            trace_file.write_sidecar(path)

    def _table_of(self, round: int) -> MessageTable:
        if self._table is None:
            self.begin()
            self._table = self._start(round)
        elif self._shard_bytes is not None and round > self._last:
            # Rounds, each as large as the largest so far, that fit into a shard.
            largest = self._format.size(self._most_messages, self._most_rows)
            room = max(1, self._shard_bytes // largest)
            if self._rounds >= room:
                self._table.finish(self._last)
                self._limit -= self._table.bytes
                self._size = (self._most_messages * room, self._most_rows * room)
                self._begin_messages = 0
                self._begin_rows = 0
                self._rounds = 0
                self._table = self._start(round)
        return self._table

    def _start(self, round: int) -> MessageTable:
        path = self._path
        if path is None:
            return MessageTable(None, self._format, self._size, self._limit)
        with explained(f"cannot write {path}", "; choose another path"):
            if self._shard_bytes is None:
                sidecar.beside(path).unlink(missing_ok=True)
                return MessageTable(path, self._format, self._size, self._limit)
            if not self._manifest.files:
                _clear(path)
            name = shards.name(round)
            table = MessageTable(path / name, self._format, self._size, self._limit)
        self._manifest.files[name] = None
        self._manifest.write(path)
        return table


def _first_shard(whole: Size, shard_bytes: int, row_bytes: int) -> Size:
    """Return the capacity of the first shard; that of later ones follows from recorded rounds."""
    messages, rows = whole
    if messages is None or rows is None:
        return whole
    fitting = max(1, min(rows, shard_bytes // row_bytes))
    return max(1, messages * fitting // max(1, rows)), fitting


def _clear(folder: Path) -> None:
    """Prepare a folder for a recording; an earlier recording in it is removed."""
    private_folder(folder / "shards")
    sidecar.beside(shards.place(folder)).unlink(missing_ok=True)
    shards.place(folder).unlink(missing_ok=True)
    for old in (folder / "shards").glob("r[0-9]*.pt"):
        old.unlink()


def _aborted(folder: Path) -> bool:
    """Return whether a folder is empty, or has no more than a recording that never began."""
    names = {path.name for path in folder.iterdir() if not path.name.endswith(UNFINISHED)}
    if not names:
        return True
    return names == {"shards"} and all(
        path.match("r[0-9]*.pt") or path.match(".r[0-9]*") for path in (folder / "shards").iterdir()
    )


def _probe(path: Path, folder: bool) -> None:
    if folder and path.is_dir() and not _aborted(path):
        try:
            shards.read(path)
        except LeakauditError:
            raise LeakauditError(
                f"{path} is a folder with other contents; "
                "choose a new one, or a file name that ends in .pt"
            ) from None
    if path.exists():
        fits = path.is_dir() if folder else path.is_file()
        if not fits:
            wanted = "folder" if folder else "file"
            raise LeakauditError(f"cannot write {path}: it is not a {wanted}; choose another path")
    where = path if path.is_dir() else path.parent
    if not where.is_dir():
        raise LeakauditError(f"cannot write {path}: folder {where} does not exist; create it first")
    with explained(f"cannot write {path}", "; choose another path"):
        tempfile.TemporaryFile(dir=where).close()
