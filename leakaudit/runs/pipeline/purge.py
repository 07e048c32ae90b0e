"""Deletion of personal data from a folder of results: images and truths go, figures stay.

A record could name any file, so only content identifies what leakaudit wrote: formats, and the mark
of `leakaudit._util.marks`. Links are neither followed nor deleted.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from leakaudit._util import marks
from leakaudit._util.decoding import refuse_constant
from leakaudit._util.files import ARCHIVE, intended
from leakaudit._util.uncollected import read_json
from leakaudit._util.untrusted import safe_reader
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Json
from leakaudit.reporting.results import model, record_file
from leakaudit.reporting.results.model import RunRecord, given
from leakaudit.runs.pipeline import checkpoint
from leakaudit.traces._storage import sidecar
from leakaudit.traces._storage.tree import TRUTH

# Images of a run; those of earlier versions have no mark.
IMAGES = ("reconstructions.npz", "reconstructions.png", "originals.npz", "leak.png", "leak.npz")
PICTURE = b"\x89PNG\r\n\x1a\n"  # how the files of `IMAGES` begin
FORMATS = {TRUTH: "truth", checkpoint.FORMAT: "images of an interrupted run"}
SCRATCH = ".gloo-"  # begins the name of a folder of `leakaudit.capture.gloo.scratch`
RECORDS = {"x", "y"}  # entries of a file with the records of one process, in such a folder
PAGE = b'<meta name="generator" content="leakaudit'  # of a report, or of `leakaudit view`
PAGES = (b"<!doctype html", b"<html")


@dataclass(frozen=True)
class _Removal:
    path: Path
    what: str
    # the record without images and labels that replaces it; None if it is deleted
    record: Mapping[str, Json] | None = None

    def do(self) -> None:
        """Delete the file and its SHA-256, or replace the record."""
        if self.record is not None:
            record_file.write(self.path, self.record)
            return
        try:
            if _has_checksum(self.path):
                sidecar.beside(self.path).unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise LeakauditError(f"cannot delete {self.path}: {error.strerror}") from None


def planned(folder: Path) -> list[_Removal]:
    """Return what `purge` would do in a folder and below it, records last.

    So another purge completes one that was interrupted.
    """
    if not folder.is_dir() or folder.is_symlink():
        raise LeakauditError(f"{folder} is not a folder; expected one with results or truths")
    files = []
    for place, _, names in os.walk(folder):  # it does not follow links
        files += [Path(place) / name for name in sorted(names)]
    deleted: dict[Path, _Removal] = {}
    changed = []
    for path in filter(_is_regular, files):
        what = _what(path)
        if what is not None:
            deleted[path] = _Removal(path, what)
            continue
        for one in _of_record(path):
            if one.record is None:
                deleted.setdefault(one.path, one)
            else:
                changed.append(one)
    return [*deleted.values(), *changed]


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _has_checksum(path: Path) -> bool:
    if not _is_regular(sidecar.beside(path)):
        return False
    try:
        return sidecar.recorded(path) is not None
    except LeakauditError:
        return False


# ---------------------------------------------------------------------------------------------
# Files that are deleted
# ---------------------------------------------------------------------------------------------


def _what(path: Path) -> str | None:
    """Return what personal data a file of leakaudit holds; None for any other file."""
    if intended(path) is not None:
        return "incomplete file of an interrupted run"
    try:
        with path.open("rb") as file:
            head = file.read(marks.HEAD)
            file.seek(0)
            if marks.found(file):
                return "images, texts or labels"
    except OSError:
        return None
    if head.startswith(ARCHIVE):
        return _tensors(path)
    if PAGE in head and head.lstrip().lower().startswith(PAGES):
        return "page with images"
    return None


def _tensors(path: Path) -> str | None:
    try:
        tree = safe_reader.outline(path)
    except LeakauditError:
        return None
    if path.parent.name.startswith(SCRATCH) and tree.keys() == RECORDS:
        return "records of an interrupted run"
    return FORMATS.get(str(tree.get("format")))


# ---------------------------------------------------------------------------------------------
# Records
# ---------------------------------------------------------------------------------------------


def _of_record(path: Path) -> Iterator[_Removal]:
    """Yield the record without images and labels, and its images that have no mark."""
    record = _record(path)
    if record is None:
        return
    for name, sha256 in given(record.files, {}).items():
        image = path.with_name(name)
        if name in IMAGES and _is_regular(image) and _is_image(image, sha256):
            yield _Removal(image, "images or texts")
    purged = _purged(record)
    if purged != record:
        yield _Removal(path, "labels and names of images; its scores stay", model.plain(purged))


def _record(path: Path) -> RunRecord | None:
    """Return the record in a file of any name, if it is one."""
    try:
        with path.open("rb") as file:
            if file.read(1) != b"{":
                return None
        values = read_json(path.read_bytes(), record_file.DEEPEST, parse_constant=refuse_constant)
        own = model.plain(model.of(values))
        record = record_file.validate(own)
    except (OSError, ValueError, KeyError, RecursionError):
        return None  # another program's
    except (LeakauditError, msgspec.ValidationError):
        return None
    return record if isinstance(record, RunRecord) else None


def _is_image(path: Path, sha256: str) -> bool:
    try:
        with path.open("rb") as file:
            if not file.read(len(PICTURE)).startswith((PICTURE, ARCHIVE)):
                return False
        return sidecar.digest(path) == sha256
    except (OSError, LeakauditError):
        return False


def _purged(record: RunRecord) -> RunRecord:
    found = tuple(replace(one, images=None, labels=None) for one in record.findings)
    purged = replace(record, findings=found, picture=None)
    if given(record.originals, None) is not None:
        purged = replace(purged, originals=None)
    return record_file.tied(purged)
