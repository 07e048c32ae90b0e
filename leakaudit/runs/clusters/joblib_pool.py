"""Jobs on joblib's backends."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from leakaudit._util import forks
from leakaudit._util.jobs import REPEATS, JobOutcome, Stop, WorkerDied
from leakaudit.core.errors import LeakauditError
from leakaudit.runs.clusters import cluster
from leakaudit.runs.workers import shipping
from leakaudit.runs.workers.shipping import ShippedFunction


def run(
    shipped: ShippedFunction, items: Sequence[Any], workers: int, stop: Stop, name: str
) -> Iterator[JobOutcome[Any]]:
    """Compute jobs with joblib's backend `name`, "" for that of a `joblib.parallel_config`.

    If a process of loky dies, all are lost with it, and jobs without a result are submitted again.
    """
    try:
        from joblib import Parallel, delayed, parallel_config
        from joblib.externals.loky.process_executor import TerminatedWorkerError
    except ImportError:
        raise cluster.missing("joblib", "sweep") from None
    chosen = {"backend": name} if name else {}
    left = dict(enumerate(items))
    deaths = 0
    while left:
        try:
            with parallel_config(**chosen), forks.environment(forks.SAFE_PATH):
                pool = Parallel(n_jobs=max(1, workers), return_as="generator_unordered")
                work = delayed(shipping.call)
                jobs = (
                    work(shipped, place, pickle.dumps(item))
                    for place, item in tuple(left.items())
                    if not stop()
                )
                for outcome in pool(jobs):
                    del left[outcome.place]
                    deaths = 0
                    yield outcome
            return
        except TerminatedWorkerError:
            deaths += 1
            if deaths > REPEATS:
                raise WorkerDied(
                    f"backend joblib: workers died {deaths} times in a row, possibly out of memory"
                ) from None
        except (ValueError, ImportError) as error:
            # An unknown backend, or one that is not installed or has no client.
            line = " ".join(str(error).split())
            raise LeakauditError(f"backend joblib:{name}: {line}") from None
