"""The process from which workers are forked: it imports torch once for all of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.context import ForkServerContext, SpawnContext

PRELOADED = ["leakaudit.runs.sweeping.work"]
# BLAS reads these variables when it is imported; a process that forks must have one thread.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# A new Python would otherwise import the modules of the current folder in place of its own.
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
ISOLATED = "LEAKAUDIT_ISOLATED"  # environment variable of a process that cannot open sockets


def context(preloaded: Sequence[str] = PRELOADED) -> ForkServerContext | SpawnContext:
    """Return the context with which to start children, and start its fork server without waiting.

    Both ignore Ctrl-C. Without a fork server, or its socket, every child is a new process.
    """
    if "forkserver" not in get_all_start_methods() or ISOLATED in os.environ:
        return get_context("spawn")
    from multiprocessing import forkserver, resource_tracker

    forkserver.set_forkserver_preload(list(preloaded))
    with environment(SAFE_PATH | ONE_THREAD):
        resource_tracker.ensure_running()  # it unblocks SIGINT when it starts, so start it first
        kept = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, kept)
    return get_context("forkserver")


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and restore them at the end."""
    own = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in own.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
