"""Jobs on a cluster of dask.distributed, whose scheduler repeats a job whose worker died."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from leakaudit._util.jobs import JobOutcome, Stop
from leakaudit.runs.clusters import cluster
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
        raise cluster.missing("dask", "dask") from None
    cluster.reachable(address, "dask", "dask scheduler")
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        client = distributed.Client(address, timeout=cluster.REACHED, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise cluster.unreachable("dask", address, f"no scheduler answers ({error})") from None
    pending: dict[Any, int] = {}
    ahead = cluster.jobs_ahead(most, lambda: sum(client.nthreads().values()), "dask", address)
    ended = partial(_ended, client)
    outcome = partial(_outcome, address)
    try:
        whole = client.submit(_same, shipped, pure=False)
        submit = partial(client.submit, shipping.call, whole, pure=False)
        yield from cluster.outcomes(pending, items, stop, ahead, submit, ended, outcome)
    except (OSError, distributed.client.FutureCancelledError) as error:
        raise cluster.broken("dask", address, error) from None
    finally:
        try:
            client.cancel(list(pending))
            client.close(timeout=cluster.REACHED)
        except (OSError, TimeoutError):
            pass  # the scheduler is gone, and its jobs with it


def _same(shipped: ShippedFunction) -> ShippedFunction:
    """Return the function: a task of the scheduler, which can repeat it if a worker is lost."""
    return shipped


def _ended(client: Any, futures: list[Any]) -> set[Any]:
    import distributed

    try:
        with client.as_current():
            return set(distributed.wait(futures, cluster.CHECKED, "FIRST_COMPLETED").done)
    except TimeoutError:
        return set()


def _outcome(address: str, future: Any, place: int) -> JobOutcome[Any]:
    import distributed

    failed = future.exception()
    if isinstance(failed, distributed.KilledWorker):
        return JobOutcome(place, error=cluster.died("dask"))
    if failed is not None:
        raise cluster.broken("dask", address, failed)
    ended: JobOutcome[Any] = future.result()
    return ended
