"""Deletion of personal data from a folder of results: images and truths go, figures stay.

Only files that leakaudit wrote are touched: a truth by its content, images because a record beside
them names them, checkpoints and pages by their format. Links are neither followed nor deleted.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from leakaudit._util.files import UNFINISHED
from leakaudit.errors import LeakauditError
from leakaudit.pipeline import checkpoint
from leakaudit.results import model, record_file
from leakaudit.results.model import RunRecord, given
from leakaudit.trace import Json
from leakaudit.traces._storage import safe_reader, sidecar
from leakaudit.traces._storage.tree import TRUTH

RESULTS = "results.json"
TRUTHS = ".truth.pt"
# Images that a run may have left without a record that names them.
LEFT = ("reconstructions.npz", "reconstructions.png", "originals.npz", "leak.png", "leak.npz")
PAGE = b'<meta name="generator" content="leakaudit">'
HEAD = 4096  # bytes of a page in which its generator is stated; a choice


@dataclass(frozen=True)
class Removal:
    """One thing to be done.

    Attributes:
        path: The file.
        what: What it holds.
        record: The record without images and labels that replaces it; None if it is deleted.
    """

    path: Path
    what: str
    record: Mapping[str, Json] | None = None

    def do(self) -> None:
        """Delete the file and its SHA-256, or replace the record.

        Raises:
            LeakauditError: That is not possible.
        """
        if self.record is not None:
            record_file.write(self.path, record_file.sealed(self.record, self.path.parent))
            return
        try:
            self.path.unlink(missing_ok=True)
            sidecar.beside(self.path).unlink(missing_ok=True)
        except OSError as error:
            raise LeakauditError(f"cannot delete {self.path}: {error.strerror}") from None


def planned(folder: Path) -> list[Removal]:
    """Return what `purge` would do in a folder and all folders below it.

    Records come last, so that a purge that was interrupted is completed by another one.

    Args:
        folder: The folder.

    Raises:
        LeakauditError: It is not a folder.
    """
    if not folder.is_dir() or folder.is_symlink():
        raise LeakauditError(f"{folder} is not a folder; expected one with results or truths")
    files = []
    for place, _, names in os.walk(folder):  # it does not follow links
        files += [Path(place) / name for name in sorted(names)]
    regular = [path for path in files if stat.S_ISREG(path.lstat().st_mode)]
    deleted: dict[Path, Removal] = {}
    changed = []
    for path in regular:
        if path.name == RESULTS:
            for one in _of_record(path):
                if one.record is None:
                    deleted[one.path] = one
                else:
                    changed.append(one)
        elif (what := _what(path)) is not None:
            deleted.setdefault(path, Removal(path, what))
    return [*deleted.values(), *changed]


def _of_record(path: Path) -> Iterator[Removal]:
    """Yield the images that a record names, and the record without them."""
    try:
        values = record_file.read(path)
        record = model.of(values)
    except LeakauditError:
        return  # another program may call a file so, too
    if not isinstance(record, RunRecord):
        return
    for name in sorted({*_images(record), *LEFT}):
        image = path.with_name(name)
        if image.is_file() and not image.is_symlink():
            yield Removal(image, "images or texts")
    purged = _purged(record)
    if purged != record:
        yield Removal(path, "labels and names of images; its scores stay", model.plain(purged))


def _images(record: RunRecord) -> set[str]:
    """Return the files with images that a record names; the chart of an audit is none of them."""
    named = {finding.images.file for finding in record.findings if finding.images is not None}
    return named | set(filter(None, (record.picture, given(record.originals, None))))


def _purged(record: RunRecord) -> RunRecord:
    """Return a record without images and labels."""
    found = tuple(replace(one, images=None, labels=None) for one in record.findings)
    purged = replace(record, findings=found, picture=None)
    if given(record.originals, None) is not None:
        purged = replace(purged, originals=None)
    return purged


def _what(path: Path) -> str | None:
    """Return what a file of leakaudit holds, if it is personal data; None for any other file."""
    if path.name.endswith(TRUTHS) and _format(path) == TRUTH:
        return "truth"
    if path.parent.name == checkpoint.FOLDER and _format(path) == checkpoint.FORMAT:
        return "images of an interrupted run"
    if path.suffix == ".html" and _is_page(path):
        return "page with images"
    temporary = path.name.startswith(".") and path.name.endswith(UNFINISHED)
    if temporary and any(path.name.startswith(f".{name}.") for name in LEFT):
        return "images of an interrupted run"
    return None


def _format(path: Path) -> object:
    """Return the format that a file of torch states; None if it is not one."""
    try:
        return safe_reader.read(path).get("format")
    except LeakauditError:
        return None


def _is_page(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return PAGE in file.read(HEAD)
    except OSError:
        return False
