"""What a cluster is asked for, and how it fails; the user starts it."""

from __future__ import annotations

import pickle
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, repeat
from typing import Any

from leakaudit._util.jobs import JobOutcome, Stop, WorkerDied
from leakaudit.core.errors import LeakauditError

REACHED = 10.0  # seconds in which a scheduler has to answer
EMPTY = 60.0  # seconds for which a cluster may have no worker
CHECKED = 2.0  # seconds between two looks at whether a cluster has workers
AHEAD = 2  # jobs per core that a scheduler knows of, so that no worker waits for the next one


def jobs_ahead(most: int, count: Callable[[], int], backend: str, address: str) -> Iterator[int]:
    """Yield how many jobs a scheduler knows of: `most`, or if that is 0, `AHEAD` per core.

    The number of cores is at most `CHECKED` seconds old, and 1 if there are none yet. Raises if
    there have been none for `EMPTY` seconds.
    """
    if most:
        yield from repeat(most)
    known = 0
    looked = -CHECKED
    seen = time.monotonic()
    while True:
        now = time.monotonic()
        if now - looked >= CHECKED:
            looked = now
            known = count()
        if known:
            seen = now
        elif now - seen > EMPTY:
            raise LeakauditError(
                f"backend {backend}: the cluster at {address} has had no workers for "
                f"{EMPTY:.0f} seconds; start workers and run the same command again"
            )
        yield AHEAD * max(1, known)


def outcomes(
    pending: dict[Any, int],
    items: Sequence[Any],
    stop: Stop,
    ahead: Iterator[int],
    submit: Callable[[int, bytes], Any],
    ended: Callable[[list[Any]], Iterable[Any]],
    outcome: Callable[[Any, int], JobOutcome[Any]],
) -> Iterator[JobOutcome[Any]]:
    """Keep a scheduler supplied with jobs, and yield how each of them ended.

    Args:
        pending: Jobs that the scheduler knows of, with the places of their items; empty at first.
        ahead: Yields how many these may be.
        submit: Starts the job of a place and its pickled item.
        ended: Waits at most `CHECKED` seconds for one of the jobs, and returns those that ended.
        outcome: How a job ended, which has this place.
    """
    left = _places(items, stop)
    while True:
        for place in islice(left, max(0, next(ahead) - len(pending))):
            pending[submit(place, pickle.dumps(items[place]))] = place
        if not pending:
            return
        for job in ended(list(pending)):
            yield outcome(job, pending.pop(job))


def _places(items: Sequence[Any], stop: Stop) -> Iterator[int]:
    """Yield the places of items until all further ones are to be skipped."""
    for place in range(len(items)):
        if stop():
            return
        yield place


def reachable(address: str, backend: str, command: str) -> None:
    """Raise LeakauditError unless something listens at HOST:PORT, possibly after ``tcp://``."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not (colon and host and port.isdecimal()):
        raise LeakauditError(f"--address: expected HOST:PORT, got {address!r}")
    try:
        socket.create_connection((host, int(port)), REACHED).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        why = f"{reason}; start a cluster with '{command}', or correct --address"
        raise unreachable(backend, address, why) from None


def unreachable(backend: str, address: str, why: str) -> LeakauditError:
    """Return the error of a cluster that does not answer."""
    line = " ".join(why.split())
    return LeakauditError(f"backend {backend}: cannot reach {address}: {line}")


def missing(package: str, extra: str) -> LeakauditError:
    """Return the error of a package that is not installed."""
    return LeakauditError(
        f"backend {package}: {package} is not installed; run pip install 'leakaudit[{extra}]'"
    )


def died(backend: str) -> WorkerDied:
    """Return the error of a job whose workers died."""
    return WorkerDied(
        f"{backend} gave up on a job after several workers died, possibly out of memory; "
        "run the same command again to retry it"
    )


def broken(backend: str, address: str, error: BaseException) -> LeakauditError:
    """Return the error of a cluster that failed while it computed."""
    line = " ".join(f"{type(error).__name__}: {error}".split())
    return LeakauditError(f"backend {backend}: the cluster at {address} failed: {line:.300}")
