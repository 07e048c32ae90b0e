"""Jobs on a cluster of ray, whose scheduler repeats a job whose worker died."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from leakaudit._util.jobs import REPEATS, JobOutcome, Stop
from leakaudit.runs.clusters.cluster import (
    AHEAD,
    CHECKED,
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
    """Compute jobs on a cluster of ray, `most` at a time, 0 for one per CPU."""
    try:
        import ray
    except ImportError:
        raise missing("ray", "ray") from None
    ours = not ray.is_initialized()
    if ours:
        reachable(address, "ray", "ray start --head")
        try:
            ray.init(
                address=address,
                logging_level=logging.CRITICAL,
                log_to_driver=False,
                configure_logging=False,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise unreachable("ray", address, str(error)) from None
    pending: dict[Any, int] = {}
    cores = core_counts(lambda: int(ray.cluster_resources().get("CPU", 0)), "ray", address)
    left = waiting(items, stop)
    try:
        whole = ray.put(shipped)
        work = ray.remote(max_retries=REPEATS)(shipping.call)
        while True:
            ahead = most or AHEAD * next(cores)
            for place in taken(left, ahead - len(pending)):
                pending[work.remote(whole, place, pickle.dumps(items[place]))] = place
            if not pending:
                return
            ended, _ = ray.wait(list(pending), num_returns=1, timeout=CHECKED)
            for reference in ended:
                place = pending.pop(reference)
                try:
                    yield ray.get(reference)
                except (
                    ray.exceptions.WorkerCrashedError,
                    ray.exceptions.NodeDiedError,
                    ray.exceptions.OutOfMemoryError,
                ):
                    yield JobOutcome(place, error=died("ray"))
    except ray.exceptions.RayError as error:
        raise broken("ray", address, error) from None
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)
        if ours:
            ray.shutdown()
