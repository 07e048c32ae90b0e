"""The log of one process: its events, and their payloads."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit.capture.tap.log.event import Event
from leakaudit.capture.tap.log.writing import LEFT_OUT
from leakaudit.core import mapping
from leakaudit.core.errors import LeakauditError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RankLog:
    """The events of one process."""

    rank: int
    attempt: int  # number of earlier starts of the rank
    path: Path  # the file of lines; the payloads are beside it
    about: Mapping[str, Any]  # values of its first line, empty if that was truncated
    events: tuple[Event, ...]  # in the order in which they were logged
    closed: bool  # whether the process ended normally
    trouble: str  # an error of the disk, after which messages are missing; empty if there was none
    torn: bool  # whether the last event was truncated
    seconds: float  # time between its first line and its last
    spent: float  # seconds of this time that the tap used

    def tensor(self, event: Event) -> Tensor:
        """Return an event's payload, mapped rather than read; the file is never modified."""
        import torch

        if not event.kept or event.dtype is None:
            reason = event.notes.get(LEFT_OUT, "omitted")
            raise LeakauditError(f"event {event.seq} of rank {self.rank} has no payload: {reason}")
        dtype = getattr(torch, event.dtype)
        if not event.numel:
            return torch.empty(event.shape, dtype=dtype)
        flat = torch.frombuffer(self._map, dtype=dtype, count=event.numel, offset=event.offset)
        mapping.use(flat)
        return flat.view(event.shape)

    @cached_property
    def _map(self) -> mmap.mmap:
        payloads = self.path.with_suffix(".bin")
        fd = os.open(payloads, os.O_RDONLY | os.O_NOFOLLOW)
        # torch accepts only writable buffers; with a private mapping, writes do not reach the file.
        writable = mmap.PROT_READ | mmap.PROT_WRITE
        try:
            size = os.fstat(fd).st_size
            data = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=writable)
            mapping.register(data, payloads)
            return data
        finally:
            os.close(fd)
