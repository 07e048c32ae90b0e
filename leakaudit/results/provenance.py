"""Where a result comes from: everything that is needed to get it again."""

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

from leakaudit.errors import LeakauditError
from leakaudit.tasks import _torchvision
from leakaudit.trace import Json, Trace

PACKAGES = ("leakaudit", "torch", "torchvision", "numpy", "scipy", "scikit-image", "lpips")


def collect(
    trace: Trace,
    *,
    settings: Mapping[str, Json],
    seeds: Mapping[str, int],
    device: str,
    command: str,
    started: datetime,
    seconds: float,
    trace_sha256: str | None = None,
    truth_sha256: str | None = None,
    truth_path: Path | None = None,
    truth_recording: str | None = None,
) -> dict[str, Json]:
    """``provenance`` of results.json.

    settings: effective configuration, defaults included. command: see `command`. started: an aware time.
    seconds: wall time. The sha256 are None where a file was not there or not hashed. truth_recording: as
    `Truth.recording`. Raises as `digest` does.
    """
    return {
        "versions": versions(),
        "shimmed": _torchvision.shimmed(),
        "seeds": dict(seeds),
        "device": device,
        "threads": torch.get_num_threads(),
        "trace": {"id": trace.id, "sha256": trace_sha256, "recording": trace.recording},
        "truth": truth(truth_sha256, truth_path, truth_recording),
        "settings": dict(settings),
        "digest": digest(settings),
        "command": command,
        "started": started.astimezone(UTC).isoformat(timespec="seconds"),
        "seconds": seconds,
        "platform": platform.platform(),
    }


def truth(sha256: str | None, path: Path | None, recording: str | None) -> dict[str, Json]:
    """``truth`` of the provenance: with which file a result was scored; recording: as `Truth.recording`."""
    return {"sha256": sha256, "path": None if path is None else str(path), "recording": recording}


def command() -> str:
    """Command line of this process, quoted so that a shell reads it again."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that a result depends on; None for one that is not installed."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def digest(settings: Mapping[str, Json]) -> str:
    """sha256 of the settings as canonical JSON (sorted keys, no spaces, UTF-8): equal settings, equal digest.

    Raises LeakauditError for a value that JSON cannot hold.
    """
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
