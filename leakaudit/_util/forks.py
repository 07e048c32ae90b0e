"""The process that workers are forked from.

It imports torch once for all of them, while the process that plans imports it too.
"""

from __future__ import annotations

import os
import signal
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.context import ForkServerContext

PRELOADED = ["leakaudit.sweeping.work"]
# Read by BLAS when it is imported; a process that forks has one thread.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def context() -> ForkServerContext:
    """Start that process if it does not run yet, without waiting for it.

    It and its children ignore Ctrl-C. It ends with the process that started it and with the last of
    its children.

    Returns:
        The context that starts children of it.
    """
    forkserver.set_forkserver_preload(PRELOADED)
    resource_tracker.ensure_running()  # unblocks SIGINT when it starts, so before the mask
    own = {name: os.environ.get(name) for name in ONE_THREAD}
    kept = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.update(ONE_THREAD)
    try:
        forkserver.ensure_running()
    finally:
        for name, value in own.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, kept)
    return get_context("forkserver")
