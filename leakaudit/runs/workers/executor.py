"""Where jobs are computed: in this process, in own processes, or on a cluster."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from leakaudit._util.jobs import PROCESS, JobOutcome, Pool, Stop
from leakaudit.core.errors import LeakauditError, suggest
from leakaudit.core.progress import remaining

T = TypeVar("T")
R = TypeVar("R")
CLUSTERS = ("dask", "ray")
# Backend -> its module in the folder `clusters`, which is imported by name only.
ELSEWHERE = {
    "loky": "joblib_pool",
    "dask": "dask_cluster",
    "ray": "ray_cluster",
    "joblib": "joblib_pool",
}
BACKENDS = (PROCESS, *ELSEWHERE)
EXPECTED = ", ".join(BACKENDS).replace("joblib", "joblib or joblib:NAME")


@dataclass(frozen=True)
class Executor(Pool):
    """Where jobs are computed; no field changes a result.

    Attributes:
        workers: Number of processes, with one thread each; 0 uses this process. For a cluster, the
            largest number of jobs at a time, and 0 for as many as it has cores.
        backend: ``process`` for own processes, ``loky``, ``dask``, ``ray``, or ``joblib`` and
            ``joblib:NAME`` for a backend that joblib knows.
        address: Address of the scheduler of dask (``tcp://HOST:PORT``) or of the head of ray
            (``HOST:PORT``).

    Raises:
        LeakauditError: A field has no meaning, or does not fit the others.
    """

    workers: int = 0
    backend: str = PROCESS
    address: str | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        name, _, _ = self.backend.partition(":")
        if self.workers < 0:
            raise LeakauditError(f"--workers: expected an integer >= 0, got {self.workers}")
        if name not in BACKENDS or (name != "joblib" and name != self.backend):
            near = suggest(self.backend, BACKENDS)
            raise LeakauditError(f"--backend: expected {EXPECTED}, got {self.backend!r}{near}")
        if name in CLUSTERS and not self.address:
            raise LeakauditError(
                f"--backend {name}: expected --address HOST:PORT of a cluster that is running"
            )
        if name not in CLUSTERS and self.address:
            raise LeakauditError(
                f"--address: expected it with --backend dask or ray, got --backend {self.backend}"
            )

    @classmethod
    def of(
        cls,
        workers: int | None,
        backend: str = PROCESS,
        address: str | None = None,
        *,
        every_core: bool = False,
    ) -> Executor:
        """Return an executor with a default number of workers.

        Args:
            workers: As for an executor; None for the default.
            backend: As for an executor.
            address: As for an executor.
            every_core: Whether the default is one process per core, also without a backend.
        """
        if workers is None:
            workers = 0
            if backend not in CLUSTERS and (every_core or backend != PROCESS):
                workers = _cores()
        return cls(workers, backend, address)

    @property
    def inside(self) -> bool:
        """Whether jobs are computed in this process, one after the other."""
        return self.backend == PROCESS and not self.workers

    def completed(
        self,
        job: Callable[[T], R],
        items: Sequence[T],
        stop: Stop = lambda: False,
        files: Sequence[Path] = (),
    ) -> Iterator[JobOutcome[R]]:
        """Compute jobs, and yield how each one ended as soon as it has, in any order.

        A job is repeated at most twice if its worker dies. It has the time that is left here, by
        the deadline of `leakaudit.core.progress`.

        Args:
            job: The function of one item. For other processes, pickle must be able to copy it, the
                items and the values.
            items: The items.
            stop: Called before each job; true skips all further ones.
            files: Files that a worker reads.
        """
        if self.inside:
            yield from super().completed(job, items, stop)
            return
        from leakaudit.runs.workers import shipping, worker_processes

        shipped = shipping.pack(job, self.backend, time.time() + remaining(), files)
        if self.backend == PROCESS:
            yield from worker_processes.run(shipped, items, self.workers, stop)
            return
        name, _, where = self.backend.partition(":")
        if name == "loky":
            where = name
        module = importlib.import_module(f"leakaudit.runs.clusters.{ELSEWHERE[name]}")
        yield from module.run(shipped, items, self.workers, stop, self.address or where)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # only Linux can tell which ones are ours
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
