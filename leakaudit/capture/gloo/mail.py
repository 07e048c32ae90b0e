"""Packets between the processes of one run by gloo: one thread that sends and one that listens for each of the others.

A packet is a header (number of the exchange, rows, columns) and the rows; a goodbye has a negative number, and as many rows, of no
columns, as there were exchanges.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from queue import Queue

import torch
import torch.distributed as dist
from torch import Tensor

from leakaudit.capture.gloo.inbox import CUT, GOODBYE, Inbox

FOREVER = timedelta(days=30)


class Mail:
    """The post of one process. Raises RuntimeError where the others cannot be reached."""

    def __init__(self, folder: Path, rank: int, procs: int, dtype: torch.dtype) -> None:
        """Meet the other processes through a file in `folder`; ports of 127.0.0.1 are chosen by the system."""
        os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
        store = dist.FileStore(str(folder / "store"), procs)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=rank, world_size=procs, timeout=FOREVER)
        peers, self._dtype = [p for p in range(procs) if p != rank], dtype
        self.inbox = Inbox(peers)
        self._out: dict[int, Queue[tuple[int, Tensor] | None]] = {p: Queue() for p in peers}
        self._threads = [
            threading.Thread(target=work, args=(p,), daemon=True)
            for p in peers
            for work in (self._send, self._listen)
        ]
        for thread in self._threads:
            thread.start()

    def post(self, peer: int, number: int, rows: Tensor) -> None:
        """Send rows (k, d) of exchange `number`; whoever is gone does not get them."""
        self._out[peer].put((number, rows))

    def flush(self) -> None:
        """Wait until everything is sent."""
        for queue in self._out.values():
            queue.join()

    def close(self, seconds: float, reached: int) -> None:
        """Say goodbye, after so many exchanges, and wait for the others to do so, lest what they have not read is lost."""
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
        try:
            while True:
                dist.recv(head, peer)
                number, *shape = head.tolist()
                if number == GOODBYE:
                    self.inbox.put(peer, GOODBYE, shape[0])
                    return
                rows = torch.empty(shape, dtype=self._dtype)
                if rows.numel():
                    dist.recv(rows, peer)
                self.inbox.put(peer, number, rows)
        except RuntimeError:
            self.inbox.put(peer, CUT)
