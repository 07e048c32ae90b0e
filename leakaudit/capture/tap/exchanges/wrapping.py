"""Calls in place of a framework's own functions, and remarks of processes that send nothing."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from leakaudit.capture.tap.log.capture import Capture
from leakaudit.capture.tap.log.writing import UNRANKED, Log

_captures: dict[tuple[str, int, str], Capture] = {}


def wrap(owner: Any, name: str, instead: Callable[..., Any]) -> None:
    """Replace a function by a call of another one, with the function as its first argument."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        return instead(function, *args, **named)

    setattr(owner, name, call)


def capture_of(folder: str, rank: int, run: str = "") -> Capture:
    """Return the recording of a rank in this process."""
    key = (folder, rank, run)
    if key not in _captures:
        _captures[key] = Capture(folder, rank=rank, run=run)
    return _captures[key]


class ProcessRemarks:
    """Remarks about what runs in a process, each written once per process."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._written: set[tuple[int, str, str]] = set()

    def write(self, op: str, name: str) -> None:
        """Write a remark; an error must not reach the program."""
        key = (os.getpid(), op, name)
        if key in self._written:
            return
        self._written.add(key)
        notes: dict[str, Any] = {op: name}
        # A log of its own, closed at once: a simulation kills the processes of its clients.
        with suppress(OSError), Log(self.folder, UNRANKED) as log:
            log.write(op, **notes)
