"""Recovered token sequences beside the true ones, as text; a redacted report has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from leakaudit._util.plural import named
from leakaudit._util.untrusted import npz
from leakaudit.core.trace import Json
from leakaudit.reporting.findings.shown import Passage
from leakaudit.reporting.findings.wording import clean
from leakaudit.reporting.results import model, record_file
from leakaudit.reporting.results.model import Finding, given

MOST = 64  # sequences in a report; a choice
LONGEST = 400  # characters that are shown of one; a choice
BYTES = 256


def with_passages(results: Mapping[str, Json], folder: Path) -> dict[str, Json]:
    """Add the sequences to a record."""
    record = model.of_run(results)
    if len(record.trace.shape) != 1:
        return dict(results)
    originals = given(record.originals, None)
    found: list[Passage] = []
    for finding in record.findings:
        if len(found) < MOST:
            found += _passages(finding, folder, originals, record.trace.classes)
    if not found:
        return dict(results)
    return {**results, "passages": [asdict(one) for one in found[:MOST]]}


def text_of(tokens: np.ndarray, vocabulary: int = BYTES) -> str:
    """Return a sequence in one printable line: as text if its tokens are bytes, else as numbers."""
    first = tokens[: 4 * LONGEST].tolist()  # a character of UTF-8 has at most four bytes
    if vocabulary == BYTES and tokens.min() >= 0 and tokens.max() < BYTES:
        text = bytes(first).decode("utf-8", "replace")
    else:
        text = " ".join(map(str, first))
    return clean(text)[:LONGEST]


def _passages(
    finding: Finding, folder: Path, originals: str | None, vocabulary: int
) -> list[Passage]:
    if finding.images is None:
        return []
    found = _array(folder / finding.images.file, finding.images.x)
    if found is None:
        return []
    rows: Sequence[int | None] = range(len(found))
    true = None
    if finding.scores is not None:
        rows = finding.scores.matched
        if originals is not None and (folder / originals).is_file():
            true = _array(folder / originals, f"node{finding.node}")
    certified = given(finding.certified, 0)
    passages = []
    for record, row in enumerate(rows[:MOST]):
        certificate = finding.certificate.name.lower()
        if row is not None and row < certified:
            certificate = "exact"
        passages.append(
            Passage(
                attack=finding.attack,
                adversary=finding.adversary,
                owner=named(finding.nodes),
                record=record,
                certificate=certificate,
                found=_text(found, row, vocabulary),
                original=_text(true, record, vocabulary),
            )
        )
    return passages


def _text(sequences: np.ndarray | None, row: int | None, vocabulary: int = BYTES) -> str | None:
    if sequences is None or row is None or row >= len(sequences):
        return None
    return text_of(sequences[row], vocabulary)


def _array(path: Path, name: str) -> np.ndarray | None:
    """Read sequences (n, length) of whole numbers; None if the array holds something else."""
    what = f"the sequences {name!r} of the results, could not read them"
    with record_file.reading(path, what, "; use --redact to omit them"), npz.Npz(path) as file:
        array = file[name] if name in file.files else None
    if array is None or array.ndim != 2 or array.dtype.kind not in "iu" or not array.shape[1]:
        return None
    return array
