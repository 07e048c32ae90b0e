"""The files of an attack run: the record, its pictures and its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.trace import Truth
from leakaudit.reporting.figures import pictures
from leakaudit.reporting.results import record_file
from leakaudit.reporting.results.model import AttackRecord
from leakaudit.scoring.scoring import Score

PICTURE = "reconstructions.png"  # drawing of all reconstructions, beside the record


def write(
    folder: Path,
    record: AttackRecord,
    found: Sequence[Reconstruction],
    scores: Sequence[Score],
    truth: Truth | None,
) -> AttackRecord:
    """Write the files of a record and, last, results.json; return the record with its files."""
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
