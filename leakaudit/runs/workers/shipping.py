"""What a worker needs to compute jobs, and the computation of one job there."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from leakaudit._util.jobs import PROCESS, JobOutcome
from leakaudit.core.errors import LeakauditError
from leakaudit.core.progress import watching
from leakaudit.reporting.results import provenance

ENDS = 1 << 20  # bytes at either end of a file that are compared
PLUGINS = "LEAKAUDIT_PLUGINS"  # names of modules that child processes import, see the registry


@dataclass(frozen=True)
class ShippedFunction:
    """A function, and what has to be the same where it is called."""

    job: bytes  # the function, pickled
    backend: str  # name of the backend, for messages
    plugins: str  # the plug-ins in use
    versions: tuple[tuple[str, str | None], ...]  # versions of the packages that results depend on
    until: float  # end of the available time, in seconds since 1970
    files: tuple[tuple[str, str], ...]  # files that it reads, each with its `_mark`


def pack(
    job: Callable[[Any], Any], backend: str, until: float, files: Sequence[Path] = ()
) -> ShippedFunction:
    """Prepare a function for workers, for which time ends `until` seconds after 1970."""
    return ShippedFunction(
        pickle.dumps(job),
        backend,
        os.environ.get(PLUGINS, ""),
        tuple(provenance.decisive_versions().items()),
        until,
        tuple((os.path.abspath(path), _mark(path)) for path in files),
    )


def call(shipped: ShippedFunction, place: int, item: bytes) -> JobOutcome[Any]:
    """Compute one job in a worker; never raises."""
    try:
        job = _unpacked(shipped)
        seconds = None
        if shipped.until < math.inf:
            seconds = max(0.0, shipped.until - time.time())
        with watching(seconds=seconds):
            return JobOutcome(place, job(pickle.loads(item)), worker=os.getpid())
    except Exception as error:
        return JobOutcome(place, error=_portable(error), worker=os.getpid())


@lru_cache(maxsize=2)
def _unpacked(shipped: ShippedFunction) -> Callable[[Any], Any]:
    """Return the function, once per process; raise LeakauditError if this process differs."""
    if shipped.backend != PROCESS:
        where = f"the {shipped.backend} worker on {socket.gethostname()}"
        own_versions = provenance.decisive_versions()
        for name, wanted in shipped.versions:
            held = own_versions[name]
            if held != wanted:
                raise LeakauditError(
                    f"{where} has {name} {held or 'not installed'}, but this process has {wanted}; "
                    "install the same versions everywhere"
                )
        os.environ[PLUGINS] = shipped.plugins
        for file, mark in shipped.files:
            own = _mark(Path(file))
            if not own:
                raise LeakauditError(
                    f"{shipped.backend} workers need to reach {file}; {where} cannot open it"
                )
            if own != mark:
                raise LeakauditError(
                    f"{file} is another file for {where} than for this process; "
                    "copy it to all machines again"
                )
    import torch

    torch.set_num_threads(1)
    job: Callable[[Any], Any] = pickle.loads(shipped.job)
    return job


def _mark(path: Path) -> str:
    """Return what distinguishes a recording from others, without reading all of it.

    A file ends with the checksums of all its parts; of a folder, names and sizes count, too.
    """
    try:
        if not path.is_dir():
            return hashlib.sha256(_ends(path)).hexdigest()
        files = [one for one in sorted(path.rglob("*")) if one.is_file() and one.name[0] != "."]
        sizes = [(str(one.relative_to(path)), one.stat().st_size) for one in files]
        sha = hashlib.sha256(repr(sizes).encode())
        for one in files:
            if one.parent == path:
                sha.update(_ends(one))
        return sha.hexdigest()
    except OSError:
        return ""


def _ends(path: Path) -> bytes:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        first = file.read(ENDS)
        file.seek(max(0, size - ENDS))
        return b"%d " % size + first + file.read(ENDS)


def _portable(error: Exception) -> Exception:
    """Return an error that can be pickled, with the place where it was raised as a note."""
    if not isinstance(error, LeakauditError):
        error.add_note("in a worker: " + "".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
