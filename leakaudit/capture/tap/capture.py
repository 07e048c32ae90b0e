"""What one process of a tapped program keeps: its log, what it leaves out, and how long that took."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections import defaultdict
from typing import Any

from leakaudit.capture.tap.log import LEFT_OUT, Log


class Capture:
    """The tap of this process; the log is opened with the first event.

    folder: of the logs. ranks: whose payloads are kept, None for all. rounds: (first, stop) of those kept. start: number of the first
    round. sizes: lengths of the tensors that make up a model, its own last, None where the model is not described: every message then
    counts as a round of its own. max_bytes: of all processes together. receive: whether what arrives is logged too.
    Nothing here raises into the program.
    """

    def __init__(
        self,
        folder: str,
        ranks: list[int] | None = None,
        rounds: tuple[int, int] | None = None,
        start: int = 1,
        sizes: list[int] | None = None,
        max_bytes: float | None = None,
        receive: bool = False,
    ) -> None:
        self.folder, self.ranks, self.rounds, self.start = folder, ranks, rounds, start
        self.sizes, self.max_bytes, self.receive = sizes, max_bytes, receive
        self._seen: dict[Any, int] = defaultdict(int)
        self._log: Log | None = None
        self._broken = False
        self._busy = threading.local()
        os.register_at_fork(after_in_child=self._forked)

    def event(
        self,
        op: str,
        value: Any,
        peer: int | None = None,
        tag: int = 0,
        at: int | None = None,
        **notes: Any,
    ) -> None:
        """Log one tensor; at: its place among those of its wire, counted here where it is not given."""
        begun = time.perf_counter()
        if self._broken or getattr(self._busy, "deep", False):
            return
        try:
            log = self._log or self._open()
            if LEFT_OUT not in notes and (
                why := self._left_out(log.rank, op, value, peer, tag, at)
            ):
                notes[LEFT_OUT] = why
            log.write(op, value, peer, tag, **notes)
            log.spent += time.perf_counter() - begun
        except Exception as error:
            self._broken = True
            sys.stderr.write(
                f"leakaudit tap: stopped listening to process {os.getpid()}: {error}\n"
            )

    def quietly(self, call: Any, *args: Any) -> Any:
        """Call a function whose own messages are not logged."""
        self._busy.deep = True
        try:
            return call(*args)
        finally:
            self._busy.deep = False

    @property
    def rank(self) -> int:
        """This process's rank in the whole program."""
        import torch.distributed as dist

        return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))

    def _open(self) -> Log:
        import torch.distributed as dist

        world = (
            dist.get_world_size()
            if dist.is_initialized()
            else int(os.environ.get("WORLD_SIZE", "1"))
        )
        share = None if self.max_bytes is None else self.max_bytes / world
        self._log = Log(
            self.folder, self.rank, share, world=world, program=os.path.basename(sys.argv[0])
        )
        if (util := sys.modules.get("multiprocessing.util")) is not None and _is_child():
            util.Finalize(
                None, self.end, exitpriority=-100
            )  # its children leave without running atexit
        else:
            atexit.register(self.end)
        return self._log

    def _left_out(
        self, rank: int, op: str, value: Any, peer: int | None, tag: int, at: int | None
    ) -> str:
        """Return why a payload is not kept, empty where it is."""
        if self.ranks is not None and rank not in self.ranks:
            return "ranks"
        if self.rounds is None or value is None:
            return ""
        at = self._place(op, value, peer, tag) if at is None else at
        if at is None or at + self.start == 0:
            return ""
        first, stop = self.rounds
        return "" if first <= at + self.start < stop else "rounds"

    def _place(self, op: str, value: Any, peer: int | None, tag: int) -> int | None:
        """Return which message of its wire a tensor belongs to, None where it is no part of a model."""
        if self.sizes is None:
            self._seen[op, peer, tag] += 1
            return self._seen[op, peer, tag] - 1
        count, before = int(value.numel()), self._seen[op, peer]
        if count not in self.sizes:
            return None
        self._seen[op, peer] += count
        return before // self.sizes[-1]

    def _forked(self) -> None:
        if self._log is not None:
            self._log.abandon()
        self._log, self._seen, self._busy = None, defaultdict(int), threading.local()

    def end(self) -> None:
        """Close the log; nothing is logged afterwards."""
        if self._log is not None and self._log.owner == os.getpid():
            self._log.close()
            self._log = None
            self._broken = True


def _is_child() -> bool:
    from multiprocessing.process import parent_process

    return parent_process() is not None
