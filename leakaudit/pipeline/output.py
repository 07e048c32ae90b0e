"""The files of an attack run: the record, its pictures and its report."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from leakaudit._util.files import private_folder
from leakaudit.errors import LeakauditError
from leakaudit.pipeline import progress_file
from leakaudit.reconstruction import Reconstruction
from leakaudit.rendering import pictures
from leakaudit.results import record_file
from leakaudit.results.model import AttackRecord
from leakaudit.scoring.scoring import Score
from leakaudit.trace import Truth

PICTURE = "reconstructions.png"  # drawing of all reconstructions, beside the record


@contextmanager
def ready(folder: Path) -> Iterator[None]:
    """Create the output folder and check that it is writable before any work.

    The work inside writes its progress there. If it fails, the folders that were made and are
    still empty are removed.
    """
    new = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        private_folder(folder)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as e:
        raise LeakauditError(
            f"output folder {folder} cannot be written: {e.strerror}; choose another with --output"
        ) from e
    try:
        with progress_file.kept(folder):
            yield
    except BaseException:
        for made in new:
            if made.is_dir() and not any(made.iterdir()):
                made.rmdir()
        raise


def write(
    folder: Path,
    record: AttackRecord,
    found: Sequence[Reconstruction],
    scores: Sequence[Score],
    truth: Truth | None,
) -> AttackRecord:
    """Write reconstructions.npz and .png, originals.npz, report.md and, last, results.json.

    Args:
        record: Without the files that are written here.

    Returns:
        The record as it was written.
    """
    images = record_file.save_reconstructions(folder / "reconstructions.npz", found)
    pairs = pictures.pair_up(found, scores, truth)
    originals = pictures.save_originals(folder / "originals.npz", found, truth)
    picture = None
    if any(pair.found is not None for pair in pairs):
        picture = PICTURE
        about = record.trace
        title = f"{about.protocol}, {about.model}, {record.findings[0].adversary}"
        pictures.save(pictures.grid(pairs, title=title), folder / picture)
    illustrated = []
    for finding, image in zip(record.findings, images, strict=True):
        illustrated.append(replace(finding, images=image))
    record = replace(record, findings=tuple(illustrated), originals=originals, picture=picture)
    return record_file.keep(record, folder)
