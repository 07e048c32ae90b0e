"""A large recording as a folder of shards, each a trace file named after its first round.

``manifest.json`` lists the shards ``shards/r000000.pt``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from leakaudit._util.files import explained, replacing
from leakaudit._util.uncollected import read_json
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Json
from leakaudit.traces._storage import sidecar

FORMAT = "leakaudit.trace.folder"
VERSION = 1
MAX_BYTES = 16 << 20  # maximum size of a manifest: a choice, space for about 100,000 shards
_FILE = re.compile(r"shards/r(\d{6,10})\.pt")
_SHA = re.compile(r"[0-9a-f]{64}")


@dataclass
class Manifest:
    """Contents of a folder."""

    # the description, which every shard contains
    meta: Mapping[str, Json] = field(default_factory=dict)
    # sha256 by name relative to the folder, None while the file is being written
    files: dict[str, str | None] = field(default_factory=dict)
    complete: bool = False

    def write(self, folder: Path) -> None:
        """Replace the folder's manifest."""
        shards = []
        for name, sha in self.files.items():
            shards.append({"file": name, "round": _first_round(name), "sha256": sha})
        value = {
            "format": FORMAT,
            "version": VERSION,
            "complete": self.complete,
            "shards": shards,
            "meta": self.meta,
        }
        with replacing(place(folder)) as file:
            file.write(json.dumps(value, indent=1).encode())


def place(folder: Path) -> Path:
    """Return the path of the manifest of a folder."""
    return folder / "manifest.json"


def name(round: int) -> str:
    """Return the name of a shard."""
    return f"shards/r{round:06d}.pt"


def _first_round(name: str) -> int:
    found = _FILE.fullmatch(name)
    assert found is not None, name
    return int(found[1])


def read(folder: Path) -> Manifest:
    """Read and check a manifest."""
    path = place(folder)
    value = _json(path, folder)
    if not isinstance(value, Mapping):
        value = {}
    entries = value.get("shards")
    if value.get("format") != FORMAT or not isinstance(entries, list):
        _refuse(path, "it is not the manifest of a trace")
    version = value.get("version")
    if version != VERSION:
        _refuse(
            path,
            f"it has format version {ascii(version)[:20]}, "
            f"but this program reads version {VERSION}; update leakaudit",
        )
    files = {}
    for entry in entries:
        file_name, sha = _entry(folder, entry)
        if file_name in files:
            _refuse(path, f"it names {file_name} twice")
        files[file_name] = sha
    if not files:
        _refuse(path, "it names no shards")
    meta = value.get("meta")
    return Manifest(meta if isinstance(meta, dict) else {}, files, value.get("complete") is True)


def _json(path: Path, folder: Path) -> Json:
    with explained(f"cannot read {path}"):
        if path.is_symlink() or not path.is_file():
            raise LeakauditError(
                f"{folder} is a folder without a manifest.json; "
                "expected a trace file or the folder of a recording"
            )
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    with suppress(ValueError, RecursionError):
        return read_json(text) if len(text) <= MAX_BYTES else None
    return None


def _entry(folder: Path, entry: Any) -> tuple[str, str | None]:
    path = place(folder)
    if not isinstance(entry, dict):
        entry = {}
    name = entry.get("file")
    sha = entry.get("sha256")
    if not isinstance(name, str) or not _FILE.fullmatch(name):
        wanted = "expected shards/r000000.pt, inside the folder"
        _refuse(path, f"it names the shard {ascii(name)[:60]}; {wanted}")
    if sha is not None and not (isinstance(sha, str) and _SHA.fullmatch(sha)):
        _refuse(path, f"the sha256 of {name} is not valid")
    if (folder / "shards").is_symlink() or (folder / name).is_symlink():
        _refuse(path, f"{name} is a symbolic link; a trace must contain its own files")
    if not (folder / name).is_file():
        raise LeakauditError(
            f"{folder} lacks {name}, which its manifest lists; copy the whole folder"
        )
    return name, sha


def check(folder: Path, manifest: Manifest, verify: bool | None) -> None:
    """Compare the manifest and all shards with their sha256, as `sidecar.check` does for a file."""
    sidecar.check(place(folder), verify)
    size = sum((folder / name).stat().st_size for name in manifest.files)
    if verify is False or (verify is None and size >= sidecar.AUTOMATIC):
        return
    for name, sha in manifest.files.items():
        if sha is not None:
            sidecar.compare(folder / name, sha)
        elif verify:
            raise LeakauditError(
                f"{folder} has no sha256 of {name}; if you trust it, "
                "write one with 'leakaudit trace verify --write'"
            )


def seal(folder: Path) -> str:
    """Write the sha256 of all shards into the manifest, and that of the manifest next to it."""
    manifest = read(folder)
    manifest.files = {name: sidecar.digest(folder / name) for name in manifest.files}
    manifest.write(folder)
    return sidecar.write(place(folder))


def _refuse(path: Path, why: str) -> NoReturn:
    raise LeakauditError(f"{path} is rejected: {why}")
