"""The status of every process of a run, in a small file that all of them map into memory."""

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
_ROUND = 2  # the last completed round


class ProcessBoard:
    """One row per process: its state, the time since when, and the last round that it completed."""

    def __init__(self, path: str | os.PathLike[str], procs: int, new: bool = False) -> None:
        mode: Literal["w+", "r+"] = "w+" if new else "r+"
        self._rows = np.memmap(Path(path), dtype=np.float64, mode=mode, shape=(procs, 3))

    def tell(self, rank: int, state: int, round: int | None = None) -> None:
        """Record the new state of a process."""
        self._rows[rank, _STATE] = state
        self._rows[rank, _SINCE] = time.monotonic()
        if round is not None:
            self._rows[rank, _ROUND] = round

    @property
    def started(self) -> bool:
        """Whether every process is connected to all others."""
        return bool((self._rows[:, _STATE] != STARTING).all())

    def connected(self, rank: int) -> bool:
        """Return whether a process was ever connected to all others."""
        return bool(self._rows[rank, _STATE] != STARTING)

    def lowest(self) -> int:
        """Return the last round that all running processes have completed."""
        running = self._rows[:, _STATE] != DONE
        if running.any():
            return int(self._rows[running, _ROUND].min())
        return int(self._rows[:, _ROUND].max())

    def stuck(self, seconds: float) -> bool:
        """Return whether no running process has made progress."""
        running = self._rows[:, _STATE] != DONE
        return bool((time.monotonic() - self._rows[running, _SINCE] > seconds).all())

    def silent(self, rank: int, seconds: float) -> bool:
        """Return whether to stop waiting for messages of a process.

        It has been working for too long, or all processes wait for each other.
        """
        state = self._rows[:, _STATE].copy()
        since = self._rows[:, _SINCE].copy()
        now = time.monotonic()
        if state[rank] in (WORKING, DONE) and now - since[rank] > seconds:
            return True
        live = state != DONE
        all_wait = bool((state[live] == WAITING).all())
        return all_wait and now - float(since[live].max(initial=0)) > seconds
