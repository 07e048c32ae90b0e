"""The files of one recording: its messages, its truth, and a sha256 next to each.

A `leakaudit.traces.recorder.Recorder` decides what is recorded and when a round ends; this module
decides in which order data reach the disk. A run may be killed at any moment, so the truth that is
known when the first message arrives is written before that message.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from leakaudit.core.trace import Trace, Truth
from leakaudit.traces import trace_file
from leakaudit.traces._storage import sidecar
from leakaudit.traces._storage.recording_file import RecordingFile
from leakaudit.traces._storage.tree import decode
from leakaudit.traces._storage.truth_file import TruthBuilder

Integers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class RecordingWriter:
    """Writes one recording, in memory or on disk.

    Attributes:
        truth: Contents of the truth file; changes are written when recording starts and when it
            ends.
        pending: Whether there are uncommitted messages because their round has not ended.
    """

    def __init__(
        self,
        messages: RecordingFile,
        truth: TruthBuilder,
        truth_path: Path | None,
        id: str,
        hash: bool | None,
    ) -> None:
        """Store the arguments; nothing is created yet.

        Args:
            truth_path: Path of the truth; None if it is not written.
            hash: Whether to write a sha256 next to each file; None does so up to 4 GiB.
        """
        self.truth = truth
        self._messages = messages
        self._truth_path = truth_path
        self._truth_written = False
        self._id = id
        self._hash = hash
        self.pending = False

    @property
    def started(self) -> bool:
        """Whether a file of messages has been created."""
        return self._messages.started

    def append(
        self, round: int, src: Integers, dst: Integers, kind: str, row: Integers, secure: bool
    ) -> Tensor:
        """Add messages of one round.

        Args:
            src: (k,) senders, or (1,) for all.
            dst: (k,) receivers.
            row: (k,) index of the new payload of each, counted from 0.

        Returns:
            (rows, columns) the new payloads, to be filled before the round is committed.
        """
        self.begin()
        table = self._messages.table(round)
        rows = int(row.max()) + 1 if len(row) else 0
        values = (round, src, dst, table.kind(kind), row, secure)
        payload = table.append(len(dst), rows, values)
        self.pending = True
        return payload

    def commit(self, round: int) -> None:
        """Commit all messages up to this round; they survive if the program is killed."""
        self._messages.commit(round)
        self.pending = False

    def begin(self) -> None:
        """Write the truth that is known when recording starts, so that a killed run has it."""
        if not self.started:
            self._write_truth()

    def finish(self, rounds: int | None) -> None:
        """Close all files and hash them.

        Args:
            rounds: Number of rounds of the recording; None if it is incomplete.
        """
        self._messages.finish(rounds)
        self._messages.seal(self._hash)
        self._write_truth()
        if self._truth_path is not None and self._truth_written and self._hash is not False:
            sidecar.write(self._truth_path)

    def trace(self) -> Trace:
        """Return the recorded trace, after `finish`."""
        if self._messages.path is None:
            return decode(self._messages.table(0).tree, "recording")
        return trace_file.load(self._messages.path, verify=False)

    def truth_record(self) -> Truth:
        """Return the truth that was collected."""
        return self.truth.build(self._id)

    def _write_truth(self) -> None:
        if self._truth_path is None or not self.truth.changed:
            return
        # The sha256 of the file about to be replaced would reject the new file.
        sidecar.beside(self._truth_path).unlink(missing_ok=True)
        trace_file.save_truth(self.truth_record(), self._truth_path)
        self.truth.changed = False
        self._truth_written = True
