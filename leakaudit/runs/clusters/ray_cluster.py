"""Jobs on a cluster of ray, whose scheduler repeats a job whose worker died."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from leakaudit._util.jobs import REPEATS, JobOutcome, Stop
from leakaudit.runs.clusters import cluster
from leakaudit.runs.workers import shipping
from leakaudit.runs.workers.shipping import ShippedFunction


def run(
    shipped: ShippedFunction, items: Sequence[Any], most: int, stop: Stop, address: str
) -> Iterator[JobOutcome[Any]]:
    """Compute jobs on a cluster of ray, `most` at a time, 0 for one per CPU."""
    try:
        import ray
    except ImportError:
        raise cluster.missing("ray", "ray") from None
    ours = not ray.is_initialized()
    if ours:
        cluster.reachable(address, "ray", "ray start --head")
        try:
            ray.init(
                address=address,
                logging_level=logging.CRITICAL,
                log_to_driver=False,
                configure_logging=False,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise cluster.unreachable("ray", address, str(error)) from None
    pending: dict[Any, int] = {}
    ahead = cluster.jobs_ahead(
        most, lambda: int(ray.cluster_resources().get("CPU", 0)), "ray", address
    )
    try:
        work = ray.remote(max_retries=REPEATS)(shipping.call)
        submit = partial(work.remote, ray.put(shipped))
        yield from cluster.outcomes(pending, items, stop, ahead, submit, _ended, _outcome)
    except ray.exceptions.RayError as error:
        raise cluster.broken("ray", address, error) from None
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)
        if ours:
            ray.shutdown()


def _ended(references: list[Any]) -> list[Any]:
    import ray

    return list(ray.wait(references, num_returns=1, timeout=cluster.CHECKED)[0])


def _outcome(reference: Any, place: int) -> JobOutcome[Any]:
    import ray

    try:
        ended: JobOutcome[Any] = ray.get(reference)
    except (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.OutOfMemoryError,
    ):
        return JobOutcome(place, error=cluster.died("ray"))
    return ended
