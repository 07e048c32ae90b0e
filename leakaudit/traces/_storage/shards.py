"""A large recording as a folder: ``manifest.json`` and ``shards/r000000.pt``, each a trace file of its own, named by its first round."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from leakaudit._util.files import replacing
from leakaudit.errors import LeakauditError
from leakaudit.trace import Json
from leakaudit.traces._storage import sidecar

FORMAT, VERSION = "leakaudit.trace.folder", 1
MAX_BYTES = 16 << 20
_FILE = re.compile(r"shards/r\d{6,10}\.pt")
_SHA = re.compile(r"[0-9a-f]{64}")


@dataclass
class Manifest:
    """What is in a folder.

    meta: the description that every shard carries. files: names relative to the folder -> sha256, None while it is
    being written. complete: whether the recording came to its end.
    """

    meta: Mapping[str, Json] = field(default_factory=dict)
    files: dict[str, str | None] = field(default_factory=dict)
    complete: bool = False

    def write(self, folder: Path) -> None:
        """Replace the folder's manifest."""
        shards = [
            {"file": name, "round": int(name[8:-3]), "sha256": sha}
            for name, sha in self.files.items()
        ]
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
    """Return where the manifest of a folder stands."""
    return folder / "manifest.json"


def name(round: int) -> str:
    """Return the name of the shard that starts with this round."""
    return f"shards/r{round:06d}.pt"


def read(folder: Path) -> Manifest:
    """Read and check a manifest; raises LeakauditError for one that is unsound or points out of its folder."""
    path = place(folder)
    try:
        if path.is_symlink() or not path.is_file():
            raise LeakauditError(
                f"{folder} is a folder without a manifest.json; expected a trace file or a folder that a recording made"
            )
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        value = json.loads(text) if len(text) <= MAX_BYTES else None
    except OSError as error:
        raise LeakauditError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        value = None
    if (
        not isinstance(value, dict)
        or value.get("format") != FORMAT
        or not isinstance(value.get("shards"), list)
    ):
        _refuse(path, "it is no manifest of a trace")
    if value.get("version") != VERSION:
        _refuse(
            path,
            f"it has format version {ascii(value.get('version'))[:20]}, this program reads version {VERSION}; update leakaudit",
        )
    files = {}
    for entry in value["shards"]:
        file_name, sha = _entry(folder, entry)
        if file_name in files:
            _refuse(path, f"it names {file_name} twice")
        files[file_name] = sha
    if not files:
        _refuse(path, "it names no shards")
    meta = value.get("meta")
    return Manifest(meta if isinstance(meta, dict) else {}, files, value.get("complete") is True)


def _entry(folder: Path, entry: Any) -> tuple[str, str | None]:
    path = place(folder)
    name, sha = (
        (entry.get("file"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    )
    if not isinstance(name, str) or not _FILE.fullmatch(name):
        _refuse(
            path,
            f"it names the shard {ascii(name)[:60]}; expected shards/r000000.pt, inside the folder",
        )
    if sha is not None and not (isinstance(sha, str) and _SHA.fullmatch(sha)):
        _refuse(path, f"the sha256 of {name} is none")
    if (folder / "shards").is_symlink() or (folder / name).is_symlink():
        _refuse(path, f"{name} is a link; a trace holds its own files")
    if not (folder / name).is_file():
        raise LeakauditError(
            f"{folder} lacks {name}, which its manifest names; copy the whole folder"
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
                f"{folder} has no sha256 of {name}; if you trust it, write one with 'leakaudit trace verify --write'"
            )


def seal(folder: Path) -> str:
    """Hash all shards into the manifest, write the manifest's own sha256 beside it, and return that."""
    manifest = read(folder)
    manifest.files = {name: sidecar.digest(folder / name) for name in manifest.files}
    manifest.write(folder)
    return sidecar.write(place(folder))


def _refuse(path: Path, why: str) -> NoReturn:
    raise LeakauditError(f"{path} is refused: {why}")
