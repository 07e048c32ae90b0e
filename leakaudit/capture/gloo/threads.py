"""The processes of a run as threads: the same exchanges, faults and logs, without gloo."""

from __future__ import annotations

import threading
import time
from typing import NoReturn

from torch import Tensor

from leakaudit.capture.gloo import node
from leakaudit.capture.gloo.board import ProcessBoard
from leakaudit.capture.gloo.inbox import CUT, GOODBYE, Inbox
from leakaudit.capture.gloo.process import failed
from leakaudit.capture.gloo.setup import Setup
from leakaudit.capture.tap.log.writing import Log
from leakaudit.core import progress

POLL = 0.02  # seconds between two checks of the threads: a choice


class _ThreadStop(BaseException):
    """Ends a thread, as a process ends when it is killed."""


class _ThreadConnections:
    def __init__(self, hands: list[_ThreadConnections], rank: int, procs: int) -> None:
        self.hands = hands
        self.rank = rank
        self.halted = False
        self.inbox = Inbox(p for p in range(procs) if p != rank)

    def post(self, peer: int, number: int, rows: Tensor) -> None:
        if self.halted:
            raise _ThreadStop
        self.hands[peer].inbox.put(self.rank, number, rows.clone())

    def flush(self) -> None:
        """Do nothing: packets are delivered immediately."""

    def end(self, word: int, reached: int = 0) -> None:
        for other in self.hands:
            if other is not self:
                other.inbox.end(self.rank, word, reached)


def run(setup: Setup) -> None:
    """Run all threads and wait for them; Ctrl-C ends them, and errors are written to files."""
    procs = setup.options.procs
    hands: list[_ThreadConnections] = []
    hands += [_ThreadConnections(hands, rank, procs) for rank in range(procs)]
    board = ProcessBoard(setup.folder / "board", procs)
    tasks = [node.task_of(setup) for _ in hands]  # a model cannot be shared between threads

    def serve(hand: _ThreadConnections) -> None:
        rank = hand.rank
        word = CUT
        reached = 0
        log = Log(setup.folder, rank, engine="threads", nodes=setup.here(rank))
        try:
            reached = node.serve(setup, rank, tasks[rank], hand, log, _stop)
            word = GOODBYE
            log.close()
        except _ThreadStop:
            log.abandon()
        except Exception as error:
            failed(setup.folder, rank, error)
        hand.end(word, reached)

    threads = [threading.Thread(target=serve, args=(hand,), daemon=True) for hand in hands]
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            progress.step("recording", board.lowest(), setup.scenario.rounds)
            time.sleep(POLL)
    finally:
        for hand in hands:
            hand.halted = True
            hand.end(CUT)
        for thread in threads:
            thread.join(setup.options.timeout)


def _stop() -> NoReturn:
    raise _ThreadStop
