"""Jobs on joblib's backends, and on running clusters of dask.distributed and ray."""

from __future__ import annotations

import logging
import pickle
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from leakaudit._util import forks
from leakaudit._util.jobs import REPEATS, JobOutcome, Stop, WorkerDied
from leakaudit.core.errors import LeakauditError
from leakaudit.runs.workers import shipping
from leakaudit.runs.workers.shipping import ShippedFunction

REACHED = 10.0  # seconds in which a scheduler has to answer
EMPTY = 60.0  # seconds for which a cluster may have no worker
CHECKED = 2.0  # seconds between two looks at whether a cluster has workers
AHEAD = 2  # jobs per core that a scheduler knows of, so that no worker waits for the next one


def joblib(
    shipped: ShippedFunction, items: Sequence[Any], workers: int, stop: Stop, name: str
) -> Iterator[JobOutcome[Any]]:
    """Compute jobs with joblib's backend `name`, "" for that of a `joblib.parallel_config`.

    If a process of loky dies, all are lost with it, and jobs without a result are submitted again.
    """
    try:
        from joblib import Parallel, delayed, parallel_config
        from joblib.externals.loky.process_executor import TerminatedWorkerError
    except ImportError:
        raise _missing("joblib", "sweep") from None
    chosen = {"backend": name} if name else {}
    left = dict(enumerate(items))
    deaths = 0
    while left:
        try:
            with parallel_config(**chosen), forks.environment(forks.SAFE_PATH):
                run = Parallel(n_jobs=workers, return_as="generator_unordered")
                work = delayed(shipping.call)
                jobs = (
                    work(shipped, place, pickle.dumps(item))
                    for place, item in tuple(left.items())
                    if not stop()
                )
                for outcome in run(jobs):
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


def dask(
    shipped: ShippedFunction, items: Sequence[Any], most: int, stop: Stop, address: str
) -> Iterator[JobOutcome[Any]]:
    """Compute jobs on a cluster of dask.distributed, `most` at a time, 0 for one per thread.

    Its setting ``allowed-failures`` limits how often a job is repeated whose worker died.
    """
    try:
        import distributed
    except ImportError:
        raise _missing("dask", "dask") from None
    reachable(address, "dask", "dask scheduler")
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        client = distributed.Client(address, timeout=REACHED, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise _unreachable("dask", address, f"no scheduler answers ({error})") from None
    pending: dict[Any, int] = {}
    cores = _Cores(lambda: sum(client.nthreads().values()), "dask", address)
    left = _places(items, stop)
    try:
        whole = client.submit(_same, shipped, pure=False)
        while True:
            ahead = most or AHEAD * cores.number()
            for place in _next(left, ahead - len(pending)):
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
                    yield JobOutcome(place, error=_died("dask"))
                elif failed is not None:
                    raise _broken("dask", address, failed)
                else:
                    yield future.result()
    except (OSError, distributed.client.FutureCancelledError) as error:
        raise _broken("dask", address, error) from None
    finally:
        try:
            client.cancel(list(pending))
            client.close(timeout=REACHED)
        except (OSError, TimeoutError):
            pass  # the scheduler is gone, and its jobs with it


def _same(shipped: ShippedFunction) -> ShippedFunction:
    """Return the function: a task of the scheduler, which can repeat it if a worker is lost."""
    return shipped


def ray(
    shipped: ShippedFunction, items: Sequence[Any], most: int, stop: Stop, address: str
) -> Iterator[JobOutcome[Any]]:
    """Compute jobs on a cluster of ray, `most` at a time, 0 for one per CPU."""
    try:
        import ray as engine
    except ImportError:
        raise _missing("ray", "ray") from None
    ours = not engine.is_initialized()
    if ours:
        reachable(address, "ray", "ray start --head")
        try:
            engine.init(
                address=address,
                logging_level=logging.CRITICAL,
                log_to_driver=False,
                configure_logging=False,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise _unreachable("ray", address, str(error)) from None
    pending: dict[Any, int] = {}
    cores = _Cores(lambda: int(engine.cluster_resources().get("CPU", 0)), "ray", address)
    left = _places(items, stop)
    try:
        whole = engine.put(shipped)
        work = engine.remote(max_retries=REPEATS)(shipping.call)
        while True:
            ahead = most or AHEAD * cores.number()
            for place in _next(left, ahead - len(pending)):
                pending[work.remote(whole, place, pickle.dumps(items[place]))] = place
            if not pending:
                return
            ended, _ = engine.wait(list(pending), num_returns=1, timeout=CHECKED)
            for reference in ended:
                place = pending.pop(reference)
                try:
                    yield engine.get(reference)
                except (
                    engine.exceptions.WorkerCrashedError,
                    engine.exceptions.NodeDiedError,
                    engine.exceptions.OutOfMemoryError,
                ):
                    yield JobOutcome(place, error=_died("ray"))
    except engine.exceptions.RayError as error:
        raise _broken("ray", address, error) from None
    finally:
        for reference in pending:
            engine.cancel(reference, force=True)
        if ours:
            engine.shutdown()


class _Cores:
    """The cores of a cluster; raises if it has had none for `EMPTY` seconds."""

    def __init__(self, count: Callable[[], int], backend: str, address: str) -> None:
        self._count = count
        self._backend = backend
        self._address = address
        self._known = 0
        self._looked = -CHECKED
        self._seen = time.monotonic()

    def number(self) -> int:
        """Return their number, at most `CHECKED` seconds old; 1 if there are none yet."""
        now = time.monotonic()
        if now - self._looked >= CHECKED:
            self._looked = now
            self._known = self._count()
        if self._known:
            self._seen = now
        elif now - self._seen > EMPTY:
            raise LeakauditError(
                f"backend {self._backend}: the cluster at {self._address} has had no workers for "
                f"{EMPTY:.0f} seconds; start workers and run the same command again"
            )
        return max(1, self._known)


def _places(items: Sequence[Any], stop: Stop) -> Iterator[int]:
    for place in range(len(items)):
        if stop():
            return
        yield place


def _next(places: Iterator[int], count: int) -> Iterator[int]:
    for _ in range(count):
        place = next(places, None)
        if place is None:
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
        raise _unreachable(backend, address, why) from None


def _unreachable(backend: str, address: str, why: str) -> LeakauditError:
    line = " ".join(why.split())
    return LeakauditError(f"backend {backend}: cannot reach {address}: {line}")


def _missing(package: str, extra: str) -> LeakauditError:
    return LeakauditError(
        f"backend {package}: {package} is not installed; run pip install 'leakaudit[{extra}]'"
    )


def _died(backend: str) -> WorkerDied:
    return WorkerDied(
        f"{backend} gave up on a job after several workers died, possibly out of memory; "
        "run the same command again to retry it"
    )


def _broken(backend: str, address: str, error: BaseException) -> LeakauditError:
    line = " ".join(f"{type(error).__name__}: {error}".split())
    return LeakauditError(f"backend {backend}: the cluster at {address} failed: {line:.300}")
