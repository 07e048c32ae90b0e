"""Worker processes that compute cells one after another until all are done.

torch is imported once for all of them. A process works on one cell at a time, so that it is known
which cell was lost if it dies. It ends when the process that started it ends, for whatever reason.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from leakaudit._util import forks
from leakaudit.errors import LeakauditError
from leakaudit.sweeping.cell_files import DIED
from leakaudit.sweeping.cells import PlannedCell
from leakaudit.sweeping.work import Ended, Job, one_thread

READY = "ready"  # the first message of a process
Items = Sequence[tuple[str, PlannedCell]]
Stop = Callable[[], bool]


def here(job: Job, items: Items, stop: Stop) -> Iterator[Ended]:
    """Compute cells in this process.

    Args:
        job: Computes a cell.
        items: Cells with their keys.
        stop: Called before each cell; true ends the work.
    """
    for key, cell in items:
        if stop():
            return
        yield job(key, cell)


def processes(job: Job, items: Items, workers: int, stop: Stop) -> Iterator[Ended]:
    """Compute cells in several processes, and yield how each one ended as soon as it has.

    If a process dies, its current cell is lost and another process is started.

    Args:
        job: Computes a cell.
        items: Cells with their keys.
        workers: Largest number of processes at a time.
        stop: Called before each cell; true ends the work.

    Raises:
        LeakauditError: A process cannot start.
    """
    waiting = list(items)[::-1]
    pool = [_Worker(k, job) for k in range(min(workers, len(items)))]
    try:
        while any(w.alive for w in pool):
            for channel in connection.wait([w.channel for w in pool if w.alive]):
                worker = next(w for w in pool if w.channel is channel)
                try:
                    received = worker.channel.recv()
                except (EOFError, ConnectionError):
                    yield from worker.died()
                    if waiting and not stop():
                        pool[worker.number] = _Worker(worker.number, job)
                    continue
                # Send the next cell before passing on this result, so that no worker waits.
                worker.give(waiting.pop() if waiting and not stop() else None)
                if received != READY:
                    yield received
    finally:
        for worker in pool:
            worker.end()


def parallel(job: Job, items: Items, workers: int, stop: Stop, name: str | None) -> Iterator[Ended]:
    """Compute cells with joblib.

    Args:
        job: Computes a cell.
        items: Cells with their keys.
        workers: Number of joblib's workers.
        stop: Called before a cell is submitted; true skips it.
        name: Name of joblib's backend, None for that of a surrounding `joblib.parallel_config`.

    Raises:
        LeakauditError: joblib is not installed, or the backend cannot be used.
    """
    try:
        import joblib
    except ImportError:
        raise LeakauditError(
            "backend joblib: joblib is not installed; run pip install 'leakaudit[sweep]'"
        ) from None
    chosen = {"backend": name} if name else {}
    try:
        with joblib.parallel_config(**chosen), forks.environment(forks.SAFE_PATH):
            run = joblib.Parallel(n_jobs=workers, return_as="generator_unordered")
            work = joblib.delayed(_alone)
            yield from run(work(job, key, cell) for key, cell in items if not stop())
    except (ValueError, ImportError) as error:
        # An unknown backend, or one that is not installed or has no client.
        raise LeakauditError(f"backend joblib:{name}: {' '.join(str(error).split())}") from None


class _Worker:
    """One process and its connection; `held` is the cell that it works on."""

    def __init__(self, number: int, job: Job) -> None:
        context = forks.context()
        self.held: tuple[str, PlannedCell] | None = None
        self.number = number
        self.started = False
        self.alive = True
        self.channel, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_serve, args=(theirs, job, number, dict(os.environ)), daemon=True
        )
        self.process.start()
        theirs.close()

    def give(self, item: tuple[str, PlannedCell] | None) -> None:
        """Send a cell, or None, which ends the process."""
        self.started = True
        self.held = item
        try:
            self.channel.send(item)
        except (BrokenPipeError, ConnectionError):
            return  # it died; the next wait on its connection detects this
        if item is None:
            self.alive = False

    def died(self) -> Iterator[Ended]:
        """Yield the cell that was lost; raise LeakauditError if the process never started."""
        self.alive = False
        self.process.join()
        code = self.process.exitcode or 0
        how = f"exit code {code}"
        if code < 0:
            how = f"signal {-code} ({signal.Signals(-code).name})"
        if not self.started:
            guard = "a script must start a sweep below if __name__ == '__main__'"
            raise LeakauditError(f"sweep: a worker could not start (it ended with {how}); {guard}")
        if self.held is not None:
            says = (
                f"its process ended with {how}, possibly out of memory; "
                "run the sweep again to retry it"
            )
            yield Ended(self.held[0], DIED, says, 0.0, 0.0, self.number)

    def end(self) -> None:
        """End the process."""
        if self.held is not None and self.process.is_alive():
            self.process.kill()
        self.channel.close()
        self.process.join()


def _serve(
    channel: Connection[Ended | str, tuple[str, PlannedCell] | None],
    job: Job,
    number: int,
    environment: Mapping[str, str],
) -> None:
    """Compute cells until the end is requested, or until the planning process has ended.

    `environment` is that of the planning process, which may be newer than that of the fork.
    """
    os.environ.update({**environment, **forks.ONE_THREAD})
    threading.Thread(target=_end_with, args=(parent_process(),), daemon=True).start()
    one_thread()
    try:
        channel.send(READY)
        while (item := channel.recv()) is not None:
            channel.send(replace(job(*item), worker=number))
    except (EOFError, ConnectionError):
        return


def _end_with(parent: BaseProcess) -> None:
    """Wait for the end of the parent, then exit immediately; partial files are not yet in place."""
    parent.join()
    os._exit(1)


def _alone(job: Job, key: str, cell: PlannedCell) -> Ended:
    """Run one cell in a worker of joblib."""
    one_thread()
    return replace(job(key, cell), worker=os.getpid())
