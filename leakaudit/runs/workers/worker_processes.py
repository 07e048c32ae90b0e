"""Worker processes, each with one job at a time, so that it is known which one died with it."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from leakaudit._util import forks
from leakaudit._util.jobs import REPEATS, JobOutcome, Stop, WorkerDied
from leakaudit.core.errors import LeakauditError
from leakaudit.runs.workers import shipping
from leakaudit.runs.workers.shipping import ShippedFunction

READY = "ready"  # the first message of a process


def run(
    shipped: ShippedFunction, items: Sequence[Any], workers: int, stop: Stop
) -> Iterator[JobOutcome[Any]]:
    """Compute jobs in several processes, and yield how each one ended as soon as it has.

    If a process dies, another one is started, and the job is repeated.
    """
    waiting = list(range(len(items)))[::-1]
    deaths = dict.fromkeys(waiting, 0)
    pool = [_Worker(k, shipped) for k in range(min(workers, len(items)))]
    try:
        while any(w.alive for w in pool):
            for channel in connection.wait([w.channel for w in pool if w.alive]):
                worker = next(w for w in pool if w.channel is channel)
                try:
                    received = worker.channel.recv()
                except (EOFError, ConnectionError):
                    how = worker.died()
                    place = worker.held
                    if place is not None:
                        deaths[place] += 1
                        if deaths[place] > REPEATS:
                            yield JobOutcome(place, error=_lost(how), worker=worker.number)
                        else:
                            waiting.append(place)
                    if waiting and not stop():
                        pool[worker.number] = _Worker(worker.number, shipped)
                    continue
                # Send the next job before passing on this result, so that no worker waits.
                place = waiting.pop() if waiting and not stop() else None
                worker.give(place, None if place is None else items[place])
                if received != READY:
                    yield replace(received, worker=worker.number)
    finally:
        for worker in pool:
            worker.end()


def _lost(how: str) -> WorkerDied:
    return WorkerDied(
        f"the process of a job ended {REPEATS + 1} times, the last time with {how}, "
        "possibly out of memory; run the same command again to retry it"
    )


class _Worker:
    """One process and its connection; `held` is the place of the job that it works on."""

    def __init__(self, number: int, shipped: ShippedFunction) -> None:
        context = forks.context()
        self.held: int | None = None
        self.number = number
        self.started = False
        self.alive = True
        self.channel, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_serve, args=(theirs, shipped, dict(os.environ)), daemon=True
        )
        self.process.start()
        theirs.close()

    def give(self, place: int | None, item: Any) -> None:
        self.started = True
        self.held = place
        message = None
        if place is not None:
            message = (place, pickle.dumps(item))
        try:
            self.channel.send(message)
        except (BrokenPipeError, ConnectionError):
            return  # it died; the next wait on its connection detects this
        if place is None:
            self.alive = False

    def died(self) -> str:
        self.alive = False
        self.process.join()
        code = self.process.exitcode or 0
        how = f"exit code {code}"
        if code < 0:
            how = f"signal {-code} ({signal.Signals(-code).name})"
        if not self.started:
            guard = "a script must start its work below if __name__ == '__main__'"
            raise LeakauditError(f"a worker could not start (it ended with {how}); {guard}")
        return how

    def end(self) -> None:
        if self.held is not None and self.process.is_alive():
            self.process.kill()
        self.channel.close()
        self.process.join()


def _serve(
    channel: Connection[JobOutcome[Any] | str, tuple[int, bytes] | None],
    shipped: ShippedFunction,
    environment: Mapping[str, str],
) -> None:
    """Compute jobs until the end is requested, or until the planning process has ended.

    `environment` is that of the planning process, which may be newer than that of the fork.
    """
    os.environ.update({**environment, **forks.ONE_THREAD})
    threading.Thread(target=_end_with, args=(parent_process(),), daemon=True).start()
    try:
        channel.send(READY)
        while (item := channel.recv()) is not None:
            channel.send(shipping.call(shipped, *item))
    except (EOFError, ConnectionError):
        return


def _end_with(parent: BaseProcess) -> None:
    """Wait for the end of the parent, then exit immediately; partial files are not yet in place."""
    parent.join()
    os._exit(1)
