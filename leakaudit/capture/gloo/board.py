"""What every process of a run is doing, in a small file that all of them map."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

STARTING, WORKING, WAITING, DONE = range(4)


class Board:
    """One row a process: what it does, since when (seconds of the monotonic clock), and the last round that it has ended."""

    def __init__(self, path: str | os.PathLike[str], procs: int, new: bool = False) -> None:
        """Map the file; new: make it first."""
        self._rows = np.memmap(
            Path(path), dtype=np.float64, mode="w+" if new else "r+", shape=(procs, 3)
        )

    def tell(self, rank: int, state: int, round: int | None = None) -> None:
        """Say what a process does from now on, and which round it has ended."""
        self._rows[rank, 0], self._rows[rank, 1] = state, time.monotonic()
        if round is not None:
            self._rows[rank, 2] = round

    @property
    def started(self) -> bool:
        """Whether every process has met all others."""
        return bool((self._rows[:, 0] != STARTING).all())

    def lowest(self) -> int:
        """The round that all processes which still run have ended."""
        running = self._rows[:, 0] != DONE
        return int(self._rows[running, 2].min() if running.any() else self._rows[:, 2].max())

    def stuck(self, seconds: float) -> bool:
        """Whether every process that still runs has done nothing new for so long."""
        running = self._rows[:, 0] != DONE
        return bool((time.monotonic() - self._rows[running, 1] > seconds).all())

    def silent(self, rank: int, seconds: float) -> bool:
        """Whether a process has been at work for so long that a message is not waited for any longer, or all wait for each other.

        One that waits itself is not silent: whoever keeps it waiting is.
        """
        state, since = self._rows[:, 0].copy(), self._rows[:, 1].copy()
        now, live = time.monotonic(), state != DONE
        if state[rank] in (WORKING, DONE) and now - since[rank] > seconds:
            return True
        return (
            bool((state[live] == WAITING).all())
            and now - float(since[live].max(initial=0)) > seconds
        )
