"""The origin of a result: everything that is needed to reproduce it."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from msgspec import UNSET, UnsetType

from leakaudit._util.revision import Revision, is_commit
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Trace
from leakaudit.reporting.results import model
from leakaudit.reporting.results.model import Provenance, TraceSource, TruthSource
from leakaudit.tasks import _torchvision

DECISIVE = ("leakaudit", "torch", "numpy", "scipy")
PACKAGES = ("leakaudit", "torch", "torchvision", "numpy", "scipy", "scikit-image", "lpips")


def collect(
    trace: Trace,
    *,
    settings: Mapping[str, object],
    seeds: Mapping[str, int],
    device: str,
    started: datetime,
    seconds: float,
    trace_sha256: str | None = None,
    truth: TruthSource | None = None,
) -> Provenance:
    """Return the ``provenance`` of results.json."""
    checked = digest(settings)
    made = Provenance(
        versions=versions(),
        shimmed=_torchvision.shimmed(),
        seeds=dict(seeds),
        device=device,
        threads=torch.get_num_threads(),
        trace=TraceSource(id=trace.id, sha256=trace_sha256, recording=trace.recording),
        truth=truth or scored_with(None, None, None),
        settings=dict(settings),
        digest=checked,
        command=command(),
        started=started.astimezone(UTC).isoformat(timespec="seconds"),
        seconds=seconds,
        platform=platform.platform(),
        program=_program(trace),
    )
    return model.fitted(model.plain(made), Provenance)


def _program(trace: Trace) -> Revision | UnsetType:
    named = trace.provenance.get("program")
    if not isinstance(named, Mapping) or not is_commit(named.get("commit")):
        return UNSET
    changed = named.get("changed") is not False
    return Revision(str(named["commit"]), changed)


def scored_with(sha256: str | None, path: Path | None, recording: str | None) -> TruthSource:
    """Return the file that a result was scored with; no path if nothing was scored."""
    name = None if path is None else str(path)
    return TruthSource(sha256=sha256, path=name, recording=recording)


def command() -> str:
    """Return the command line of this process, quoted for a shell.

    What follows ``--`` is the command line of a tapped program, which may hold passwords, so only
    the name of the program is kept.
    """
    own = [Path(sys.argv[0]).name, *sys.argv[1:]]
    if "--" in own:
        program = own.index("--") + 1
        own[program:] = [Path(word).name for word in own[program : program + 1]]
    return shlex.join(own)


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of `PACKAGES`; None for a package that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        found[name] = _version(name)
    return found


def decisive_versions() -> dict[str, str | None]:
    """Return the versions of the packages that numbers depend on."""
    return {name: _version(name) for name in DECISIVE}


def digest(settings: Mapping[str, object]) -> str:
    """Return the SHA-256 of settings as canonical JSON (sorted keys, no spaces, UTF-8)."""
    try:
        text = json.dumps(
            settings, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
    except (TypeError, ValueError) as error:
        raise LeakauditError(f"settings: expected JSON values only: {error}") from None
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
