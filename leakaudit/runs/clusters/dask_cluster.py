"""Jobs on a cluster of dask.distributed, whose scheduler repeats a job whose worker died."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from leakaudit._util.jobs import JobOutcome, Stop
from leakaudit.runs.clusters.cluster import (
    AHEAD,
    CHECKED,
    REACHED,
    broken,
    core_counts,
    died,
    missing,
    reachable,
    taken,
    unreachable,
    waiting,
)
from leakaudit.runs.workers import shipping
from leakaudit.runs.workers.shipping import ShippedFunction


def run(
    shipped: ShippedFunction, items: Sequence[Any], most: int, stop: Stop, address: str
) -> Iterator[JobOutcome[Any]]:
    """Compute jobs on a cluster of dask.distributed, `most` at a time, 0 for one per thread.

    Its setting ``allowed-failures`` limits how often a job is repeated whose worker died.
    """
    try:
        import distributed
    except ImportError:
        raise missing("dask", "dask") from None
    reachable(address, "dask", "dask scheduler")
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        client = distributed.Client(address, timeout=REACHED, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise unreachable("dask", address, f"no scheduler answers ({error})") from None
    pending: dict[Any, int] = {}
    cores = core_counts(lambda: sum(client.nthreads().values()), "dask", address)
    left = waiting(items, stop)
    try:
        whole = client.submit(_same, shipped, pure=False)
        while True:
            ahead = most or AHEAD * next(cores)
            for place in taken(left, ahead - len(pending)):
                job = client.submit(
                    shipping.call, whole, place, pickle.dumps(items[place]), pure=False
                )
                pending[job] = place
            if not pending:
                return
            try:
                with client.as_current():
                    ended = distributed.wait([*pending], CHECKED, "FIRST_COMPLETED").done
            except TimeoutError:
                continue
            for future in ended:
                place = pending.pop(future)
                failed = future.exception()
                if isinstance(failed, distributed.KilledWorker):
                    yield JobOutcome(place, error=died("dask"))
                elif failed is not None:
                    raise broken("dask", address, failed)
                else:
                    yield future.result()
    except (OSError, distributed.client.FutureCancelledError) as error:
        raise broken("dask", address, error) from None
    finally:
        try:
            client.cancel(list(pending))
            client.close(timeout=REACHED)
        except (OSError, TimeoutError):
            pass  # the scheduler is gone, and its jobs with it


def _same(shipped: ShippedFunction) -> ShippedFunction:
    """Return the function: a task of the scheduler, which can repeat it if a worker is lost."""
    return shipped
