"""The processes of a run as threads of this one: the same exchanges, faults and logs, without gloo."""

from __future__ import annotations

import threading
import time
from typing import NoReturn

from torch import Tensor

from leakaudit import progress
from leakaudit.capture.gloo import process
from leakaudit.capture.gloo.board import Board
from leakaudit.capture.gloo.inbox import CUT, GOODBYE, Inbox
from leakaudit.capture.gloo.setup import Setup
from leakaudit.capture.tap.log import Log

POLL = 0.02  # seconds


class Stopped(BaseException):
    """The thread ends here, as a process does that is killed."""


class Hand:
    """The post of one thread: what is sent lies in the other's inbox at once."""

    def __init__(self, hands: list[Hand], rank: int, procs: int) -> None:
        """hands: of all threads, this one among them when the run begins."""
        self.hands, self.rank, self.halted = hands, rank, False
        self.inbox = Inbox(p for p in range(procs) if p != rank)

    def post(self, peer: int, number: int, rows: Tensor) -> None:
        """Send rows (k, d) of exchange `number`."""
        if self.halted:
            raise Stopped
        self.hands[peer].inbox.put(self.rank, number, rows.clone())

    def flush(self) -> None:
        """Nothing is under way."""

    def end(self, word: int, reached: int = 0) -> None:
        """Tell all others that this one has ended, after so many exchanges, or is gone."""
        for other in self.hands:
            if other is not self:
                other.inbox.put(self.rank, word, reached)


def run(setup: Setup) -> None:
    """Run all threads and wait for them; errors are left as processes leave them. Ctrl-C ends them."""
    procs, hands = setup.options.procs, list[Hand]()
    hands += [Hand(hands, rank, procs) for rank in range(procs)]
    board = Board(setup.folder / "board", procs)
    tasks = [process.task_of(setup) for _ in hands]  # a model serves one thread at a time

    def serve(hand: Hand) -> None:
        word, reached, rank = CUT, 0, hand.rank
        log = Log(setup.folder, rank, engine="threads", nodes=setup.here(rank))
        try:
            reached = process.serve(setup, rank, tasks[rank], hand, log, _stop)
            word = GOODBYE
            log.close()
        except Stopped:
            log.abandon()
        except Exception as error:
            process.failed(setup.folder, rank, error)
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
    raise Stopped
