"""What every process of a run is doing, in a small file that all of them map."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

import numpy as np

STARTING, WORKING, WAITING, DONE = range(4)

# Columns of the file.
_STATE = 0
_SINCE = 1  # seconds of the monotonic clock
_ROUND = 2  # the last one that has ended


class Board:
    """One row for each process: what it does, since when, and the last round that it has ended."""

    def __init__(self, path: str | os.PathLike[str], procs: int, new: bool = False) -> None:
        """Map the file.

        Args:
            path: Where it stands.
            procs: Number of processes.
            new: Whether to create it first.
        """
        mode: Literal["w+", "r+"] = "w+" if new else "r+"
        self._rows = np.memmap(Path(path), dtype=np.float64, mode=mode, shape=(procs, 3))

    def tell(self, rank: int, state: int, round: int | None = None) -> None:
        """Say what a process does from now on.

        Args:
            rank: The process.
            state: `STARTING`, `WORKING`, `WAITING` or `DONE`.
            round: The round that it has just ended, if any.
        """
        self._rows[rank, _STATE] = state
        self._rows[rank, _SINCE] = time.monotonic()
        if round is not None:
            self._rows[rank, _ROUND] = round

    @property
    def started(self) -> bool:
        """Whether every process has met all others."""
        return bool((self._rows[:, _STATE] != STARTING).all())

    def lowest(self) -> int:
        """Return the last round that all running processes have ended."""
        running = self._rows[:, _STATE] != DONE
        if running.any():
            return int(self._rows[running, _ROUND].min())
        return int(self._rows[:, _ROUND].max())

    def stuck(self, seconds: float) -> bool:
        """Return whether no running process has done anything new.

        Args:
            seconds: For how long.
        """
        running = self._rows[:, _STATE] != DONE
        return bool((time.monotonic() - self._rows[running, _SINCE] > seconds).all())

    def silent(self, rank: int, seconds: float) -> bool:
        """Return whether a message of a process is no longer waited for.

        That is so if the process has been at work for too long, or if all processes wait for each
        other. One that waits itself is not silent: whoever keeps it waiting is.

        Args:
            rank: The process.
            seconds: How long it may work.
        """
        state = self._rows[:, _STATE].copy()
        since = self._rows[:, _SINCE].copy()
        now = time.monotonic()
        if state[rank] in (WORKING, DONE) and now - since[rank] > seconds:
            return True
        live = state != DONE
        all_wait = bool((state[live] == WAITING).all())
        return all_wait and now - float(since[live].max(initial=0)) > seconds
