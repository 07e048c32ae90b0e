"""One process of a run, and its connections to the others by gloo."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from queue import Queue

import torch
import torch.distributed as dist
from torch import Tensor

from leakaudit._util.files import replacing
from leakaudit.capture.gloo import node
from leakaudit.capture.gloo.inbox import CUT, GOODBYE, Inbox
from leakaudit.capture.gloo.setup import Setup
from leakaudit.capture.tap.log.writing import Log
from leakaudit.core.errors import LeakauditError

# gloo's own timeout would end a waiting process; `Inbox` decides how long to wait for a peer.
FOREVER = timedelta(days=30)


def run(setup: Setup, rank: int) -> int:
    """Run the nodes of one process; an error is written to ``error<rank>`` as one line."""
    try:
        task = node.task_of(setup)
        with Log(setup.folder, rank, engine="gloo", nodes=setup.here(rank)) as log:
            mail = _Connections(setup.folder, rank, setup.options.procs, task.dtype)
            reached = node.serve(setup, rank, task, mail, log, _die)
            mail.close(setup.options.timeout, reached)
    except Exception as error:
        failed(setup.folder, rank, error)
        return 1
    return 0


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def failed(folder: Path, rank: int, error: Exception) -> None:
    """Write an error as one line, for the parent process."""
    text = str(error) if isinstance(error, LeakauditError) else f"{type(error).__name__}: {error}"
    line = " ".join(text.split())
    try:
        with replacing(folder / f"error{rank}") as file:
            file.write(line.encode())
    except LeakauditError:  # the disk itself may be what failed
        sys.stderr.write(f"{line}\n")


class _Connections:
    """The connections of one process: a thread per peer that sends, and one that receives.

    A packet is a header (number of the exchange, rows, columns) and the rows. A goodbye has a
    negative number and, as its number of rows, the number of exchanges so far.
    """

    def __init__(self, folder: Path, rank: int, procs: int, dtype: torch.dtype) -> None:
        """Connect to the other processes; the system chooses ports on 127.0.0.1."""
        os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
        store = dist.FileStore(str(folder / "store"), procs)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=rank, world_size=procs, timeout=FOREVER)
        peers = [p for p in range(procs) if p != rank]
        self._dtype = dtype
        self.inbox = Inbox(peers)
        self._out: dict[int, Queue[tuple[int, Tensor] | None]] = {p: Queue() for p in peers}
        self._threads: list[threading.Thread] = []
        for peer in peers:
            for work in (self._send, self._listen):
                self._threads.append(threading.Thread(target=work, args=(peer,), daemon=True))
        for thread in self._threads:
            thread.start()

    def post(self, peer: int, number: int, rows: Tensor) -> None:
        self._out[peer].put((number, rows))

    def flush(self) -> None:
        for queue in self._out.values():
            queue.join()

    def close(self, seconds: float, reached: int) -> None:
        """Send a goodbye and wait for those of the others, so that unread packets are not lost."""
        for queue in self._out.values():
            queue.put((GOODBYE, torch.empty(reached, 0)))
            queue.put(None)
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _send(self, peer: int) -> None:
        dead = False
        while (packet := self._out[peer].get()) is not None:
            number, rows = packet
            try:
                if not dead:
                    dist.send(torch.tensor([number, *rows.shape]), peer)
                    if rows.numel():
                        dist.send(rows, peer)
            except RuntimeError:
                dead = True
            self._out[peer].task_done()

    def _listen(self, peer: int) -> None:
        head = torch.empty(3, dtype=torch.int64)
        number = 0
        try:
            while number != GOODBYE:
                dist.recv(head, peer)
                number, *shape = head.tolist()
                rows = torch.empty(shape, dtype=self._dtype)
                if rows.numel():
                    dist.recv(rows, peer)
                self.inbox.put(peer, number, rows)
        except RuntimeError:
            self.inbox.end(peer, CUT)
