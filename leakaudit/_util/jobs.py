"""Independent jobs, and where they are computed, which does not change their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from leakaudit.core.errors import LeakauditError

T = TypeVar("T")
R = TypeVar("R")
Stop = Callable[[], bool]

PROCESS = "process"  # name of own processes among the backends
REPEATS = 2  # times that a job is repeated if its worker dies: a choice


class WorkerDied(LeakauditError):
    """The worker of a job died each time that the job was tried."""

    code = 4


@dataclass(frozen=True)
class JobOutcome(Generic[R]):
    """How one job ended."""

    place: int  # index of its item
    value: R | None = None  # what the job returned; None if it did not return
    error: Exception | None = None  # what the job raised, or `WorkerDied`; None if it returned
    worker: int = 0  # number of the process in the pool, otherwise the process ID

    def result(self) -> R:
        """Return the value; raise the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value] # of type R if there is no error


class Pool:
    """Where jobs are computed: here, or in a subclass elsewhere; the choice changes no result."""

    @property
    def workers(self) -> int:
        """Number of processes, or of jobs at a time; 0 for this process, or for no limit."""
        return 0

    @property
    def inside(self) -> bool:
        """Whether jobs are computed in this process, one after the other."""
        return True

    def completed(
        self,
        job: Callable[[T], R],
        items: Sequence[T],
        stop: Stop = lambda: False,
        files: Sequence[Path] = (),
    ) -> Iterator[JobOutcome[R]]:
        """Compute jobs, and yield how each one ended as soon as it has, in any order.

        Here, what a job raises is raised.
        """
        for place, item in enumerate(items):
            if stop():
                return
            yield JobOutcome(place, job(item))

    def map(
        self, job: Callable[[T], R], items: Sequence[T], files: Sequence[Path] = ()
    ) -> Iterator[R]:
        """Yield the values of jobs in the order of their items; raise what the first one raised."""
        waiting: dict[int, JobOutcome[R]] = {}
        due = 0
        for outcome in self.completed(job, items, files=files):
            waiting[outcome.place] = outcome
            while due in waiting:
                yield waiting.pop(due).result()
                due += 1


IN_PROCESS = Pool()
