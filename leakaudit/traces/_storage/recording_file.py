"""The tables of one recording: one in memory or in a file, or one per shard of a folder."""

from __future__ import annotations

import tempfile
from pathlib import Path

from leakaudit._util.files import UNFINISHED, private_folder
from leakaudit._util.uncollected import read_json
from leakaudit.core.errors import LeakauditError
from leakaudit.traces._storage import shards, sidecar
from leakaudit.traces._storage.table import MessageTable, TableFormat, TableSize


class RecordingFile:
    """Starts a table with the first message, and a new one whenever a shard is full.

    Attributes:
        path: The file or folder; None for memory.
    """

    def __init__(
        self,
        path: Path | None,
        format: TableFormat,
        size: tuple[int | None, int | None],
        limit: float,
        shard_bytes: int | None,
    ) -> None:
        """Check that the recording can be made; nothing is created before the first message.

        Args:
            path: The file or folder; None for memory.
            size: (messages, rows) of the whole recording, None for an unknown number.
            limit: Maximum total size of all tables in bytes.
            shard_bytes: Size of the shards of a folder; None for one file.
        """
        self.path = path
        self._format = format
        self._limit = limit
        self._shard_bytes = shard_bytes
        self._size = TableSize(*size)
        if shard_bytes is not None:
            self._size = _first_shard(self._size, shard_bytes, format.row_bytes)
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
        """Whether anything has been created."""
        return self._table is not None

    def table(self, round: int) -> MessageTable:
        """Return the table for messages of a round; a shard contains complete rounds only."""
        if self._table is None:
            self._table = self._start(round)
        elif self._shard_bytes is not None and round > self._last:
            room = self._rounds_in(self._shard_bytes)
            if self._rounds >= room:
                self._table.finish(self._last)
                self._limit -= self._table.bytes
                self._size = TableSize(self._most_messages * room, self._most_rows * room)
                self._begin_messages = 0
                self._begin_rows = 0
                self._rounds = 0
                self._table = self._start(round)
        return self._table

    def commit(self, round: int) -> None:
        """Commit what was appended."""
        table = self.table(round)
        table.commit(round)
        messages = table.messages - self._begin_messages
        if messages > 0:
            self._most_messages = max(self._most_messages, messages)
            self._most_rows = max(self._most_rows, table.rows - self._begin_rows)
            self._begin_messages = table.messages
            self._begin_rows = table.rows
            self._rounds += 1
        self._last = round

    def finish(self, rounds: int | None) -> None:
        """Close the last table.

        Args:
            rounds: Number of rounds of a complete recording; None for an incomplete one.
        """
        self.table(self._last).finish(rounds)
        self._manifest.complete = rounds is not None
        if self.path is not None and self._shard_bytes is not None:
            self._manifest.write(self.path)

    def seal(self, hash: bool | None) -> None:
        """Write the sha256 next to the recording.

        Args:
            hash: Whether to do so; None does up to 4 GiB.
        """
        if self.path is None or hash is False:
            return
        files = [self.path]
        if self._shard_bytes is not None:
            files = [self.path / name for name in self._manifest.files]
        if hash or sum(file.stat().st_size for file in files) <= sidecar.LARGE:
            if self._shard_bytes is None:
                sidecar.write(self.path)
            else:
                shards.seal(self.path)

    def _rounds_in(self, shard_bytes: int) -> int:
        """Return how many rounds, each as large as the largest so far, fit into a shard."""
        return max(1, shard_bytes // self._format.size(self._most_messages, self._most_rows))

    def _start(self, round: int) -> MessageTable:
        """Create the table that starts with this round."""
        path = self.path
        if path is None:
            return MessageTable(None, self._format, self._size, self._limit)
        try:
            if self._shard_bytes is None:
                sidecar.beside(path).unlink(missing_ok=True)
                return MessageTable(path, self._format, self._size, self._limit)
            if not self._manifest.files:
                _clear(path)
            name = shards.name(round)
            table = MessageTable(path / name, self._format, self._size, self._limit)
        except OSError as error:
            raise LeakauditError(
                f"cannot write {path}: {error.strerror}; choose another path"
            ) from None
        self._manifest.files[name] = None
        self._manifest.write(path)
        return table


def _first_shard(whole: TableSize, shard_bytes: int, row_bytes: int) -> TableSize:
    """Return the capacity of the first shard; that of later ones follows from recorded rounds."""
    if whole.messages is None or whole.rows is None:
        return whole
    rows = max(1, min(whole.rows, shard_bytes // row_bytes))
    messages = max(1, whole.messages * rows // max(1, whole.rows))
    return TableSize(messages, rows)


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
    """Raise LeakauditError unless a recording can be written to `path`; leaves nothing behind."""
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
    try:
        tempfile.TemporaryFile(dir=where).close()
    except OSError as error:
        raise LeakauditError(
            f"cannot write {path}: {error.strerror}; choose another path"
        ) from None
