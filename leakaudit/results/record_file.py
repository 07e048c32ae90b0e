"""Reading, checking, sealing and writing results.json, the record that every report renders.

`leakaudit.results.model` defines what it holds. NaN and infinity are never written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec
import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from leakaudit._util.decoding import departure
from leakaudit._util.files import replacing
from leakaudit.errors import LeakauditError
from leakaudit.reconstruction import Certificate, Reconstruction
from leakaudit.results import model
from leakaudit.results.model import (
    KINDS,
    AuditRecord,
    Finding,
    Record,
    RunRecord,
    StoredImages,
    given,
)
from leakaudit.trace import Json
from leakaudit.traces._storage import sidecar

SCHEMA, VERSION = model.SCHEMA, model.VERSION
# Version 1 did not ask for `files`, so its pictures may be those of another run; it is still shown,
# with this remark.
UNTIED = (
    "the record holds no digests of the files beside it, "
    "so its pictures may be those of another run"
)
ID_ONLY = "only its id ties the truth to the trace, and other runs may have the same id"


def validate(results: object, name: str = "results.json") -> Record:
    """Check JSON values against the types of a record.

    Args:
        results: Any value.
        name: Begins a message: the file that the value comes from.

    Returns:
        The record.

    Raises:
        LeakauditError: It is not a record (the message has the place of the first entry that does
            not fit), or it names a file of pictures and holds no sha256 of it.
    """
    if not isinstance(results, Mapping) or results.get("schema") != SCHEMA:
        raise LeakauditError(
            f'{name}: expected a record of leakaudit ("schema": "{SCHEMA}"), got something else'
        )
    version = results.get("version")
    if isinstance(version, int) and version > VERSION:
        raise LeakauditError(
            f"{name}: written by a newer leakaudit "
            f"(version {version}, this one reads up to {VERSION}); upgrade leakaudit"
        )
    kind = results.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise LeakauditError(
            f"{name}: expected kind to be one of {', '.join(KINDS)}, got {kind!r:.40}"
        )
    record = _typed(results, KINDS[kind], name)
    untied = _untied(record)
    if record.version == VERSION and untied:
        says = f"{min(untied)} stands in the record, but 'files' holds no sha256 of it"
        raise LeakauditError(
            f"{name}: {says}; the record was edited or copied in part, so run that again"
        )
    return record


def _typed(results: Mapping[str, object], kind: type[Record], name: str) -> Record:
    try:
        # What is free in the types must be JSON too; NaN and infinity are not.
        json.dumps(results, allow_nan=False)
        return msgspec.convert(results, kind)
    except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
        wrong = departure(results, kind)
        if wrong is None and isinstance(error, msgspec.ValidationError):
            return model.fitted(results, kind)  # numbers of another library
        raise LeakauditError(f"{name}: {wrong or error}") from None


def write(path: Path, results: Mapping[str, Json]) -> None:
    """Write results.json whole or not at all.

    Args:
        path: Where.
        results: The record as JSON values; they are written as they are.

    Raises:
        LeakauditError: The record is not valid, or the file cannot be written.
    """
    validate(results, path.name)
    text = json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False)
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace") + b"\n")


def sealed(results: Mapping[str, Json], folder: Path) -> dict[str, Json]:
    """Tie a record to the files of pictures beside it.

    Files are replaced one by one, so a run that is killed may leave its pictures beside the record
    of an earlier one. `whole` detects that.

    Args:
        results: The record.
        folder: Where the files are.

    Returns:
        The record with ``files``: the sha256 of every file that it names and that is in the folder.
    """
    named = sorted(_named(model.of(results)))
    files = {name: sidecar.digest(folder / name) for name in named if (folder / name).is_file()}
    return {**results, "version": VERSION, "files": files}


def _named(record: Record) -> set[str]:
    """Return the files of pictures that a record names; nothing is read from those of a sweep."""
    if not isinstance(record, RunRecord):
        return set()
    named = [finding.images.file for finding in record.findings if finding.images is not None]
    named += [record.picture or "", given(record.originals, None) or ""]
    if isinstance(record, AuditRecord):
        named.append(record.audit.figure or "")
    return set(filter(None, named))


def _untied(record: Record) -> set[str]:
    """Return the files that a record names and holds no digest of."""
    if not isinstance(record, RunRecord):
        return set()
    return _named(record) - given(record.files, {}).keys()


def remarked(results: Mapping[str, Json], *remarks: str) -> dict[str, Json]:
    """Add what is not verified about a record, as ``unverified`` and at the start of its summary.

    Every report shows the summary.

    Args:
        results: The record.
        remarks: Sentences; one that the record has already is not repeated.

    Returns:
        The record with the remarks.
    """
    record = model.of_run(results)
    known = given(record.unverified, ())
    new = [remark for remark in remarks if remark not in known]
    if not new:
        return dict(results)
    return {**results, "unverified": [*known, *new], "summary": warned(record.summary, new)}


def warned(summary: str, remarks: Sequence[str]) -> str:
    """Put remarks before a summary.

    Args:
        summary: One sentence.
        remarks: As in `remarked`.

    Returns:
        The remarks, then the summary.
    """
    return "".join([*(f"UNVERIFIED: {remark}. " for remark in remarks), summary])


def whole(results: Mapping[str, Json], folder: Path) -> None:
    """Check that the files beside a record are those that it was written with; one may be missing.

    Args:
        results: The record.
        folder: Where it is.

    Raises:
        LeakauditError: A file is another one.
    """
    if results["kind"] == "sweep":  # it names no files
        return
    for name, expected in given(model.of_run(results).files, {}).items():
        if (folder / name).is_file() and sidecar.digest(folder / name) != expected:
            raise LeakauditError(
                f"{folder / name} is not the file that {folder / 'results.json'} was written with: "
                "it was changed, or a later run was cut short before it wrote its own "
                "results.json; run that again"
            )


def read(path: Path) -> dict[str, Json]:
    """Read and validate results.json.

    Args:
        path: The file.

    Returns:
        Its values. A record of version 1 that names pictures has no digests of them; its summary
        contains a remark about that.

    Raises:
        LeakauditError: The file cannot be read, or is not a record.
    """
    expected = f"{path}: expected the results.json of a run"
    try:
        results = json.loads(path.read_bytes(), parse_constant=_refuse)
    except OSError as error:
        raise LeakauditError(f"{expected}, cannot read it: {error.strerror}") from None
    except UnicodeDecodeError:
        raise LeakauditError(f"{expected}, got a file that is no text") from None
    except (ValueError, RecursionError) as error:
        raise LeakauditError(f"{expected}, got no JSON: {str(error)[:200]}") from None
    record = validate(results, str(path))
    if _untied(record):
        return remarked(results, UNTIED)
    return dict(results)


def save_reconstructions(path: Path, found: Sequence[Reconstruction]) -> list[StoredImages]:
    """Write reconstructions to one npz, so that they can be scored again without an attack.

    Args:
        path: The file.
        found: What is kept.

    Returns:
        The ``images`` entry of each: the names of its arrays of inputs and, if there are any, of
        labels, half-widths of intervals, and other candidates for an input by its place.
    """
    arrays: dict[str, np.ndarray] = {}
    entries = []
    for i, one in enumerate(found):
        entry = StoredImages(file=path.name, x=f"x{i}", y=None)
        kept = {entry.x: one.x}
        if one.y is not None:
            entry = replace(entry, y=f"y{i}")
            kept[f"y{i}"] = one.y
        if one.interval is not None:
            entry = replace(entry, interval=f"interval{i}")
            kept[f"interval{i}"] = one.interval
        if one.choices:
            names = {place: f"choices{i}_{place}" for place in one.choices}
            entry = replace(entry, choices={str(place): name for place, name in names.items()})
            kept |= {name: one.choices[place] for place, name in names.items()}
        arrays |= {name: tensor.detach().cpu().numpy() for name, tensor in kept.items()}
        entries.append(entry)
    with replacing(path) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    return entries


def load_reconstructions(results: Mapping[str, Json], folder: Path) -> list[Reconstruction]:
    """Rebuild the reconstructions of a record from the npz beside it.

    Args:
        results: The record.
        folder: Where it is.

    Returns:
        One reconstruction a finding, in their order.

    Raises:
        LeakauditError: The npz is not the one that the record was written with, or cannot be read.
    """
    whole(results, folder)
    return [_rebuild(finding, folder) for finding in model.of_run(results).findings]


def _rebuild(finding: Finding, folder: Path) -> Reconstruction:
    images = finding.images
    if images is None:
        raise LeakauditError(
            f"node {finding.node}: its reconstruction was not kept; run the attack again"
        )
    try:
        with np.load(folder / images.file, allow_pickle=False) as file:
            tensors = _Tensors(file)
            x = tensors.named(images.x)
            y = tensors.optional(images.y)
            interval = tensors.optional(given(images.interval, None))
            choices = {
                int(place): tensors.named(name) for place, name in given(images.choices, {}).items()
            }
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LeakauditError(
            f"{folder / images.file}: expected the saved reconstruction {images.x!r}: "
            f"{str(error)[:200]}"
        ) from None
    return Reconstruction(
        finding.node,
        finding.attack,
        x,
        y,
        Certificate[finding.certificate.name],
        math.nan if finding.residual is None else finding.residual,
        finding.seconds,
        finding.note,
        given(finding.certified, 0),
        interval,
        choices,
    )


@dataclass(frozen=True)
class _Tensors:
    """The arrays of one npz as tensors."""

    file: Mapping[str, np.ndarray]

    def named(self, name: str) -> Tensor:
        """Return an array that must be there."""
        return torch.from_numpy(self.file[name])

    def optional(self, name: str | None) -> Tensor | None:
        """Return an array, None if it has no name."""
        if name is None:
            return None
        return self.named(name)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")
