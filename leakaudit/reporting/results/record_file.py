"""Reading, validating, sealing and writing results.json, without NaN and infinity."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace

from leakaudit._util.decoding import departure, refuse_constant
from leakaudit._util.files import replacing, write_arrays
from leakaudit._util.uncollected import read_json
from leakaudit._util.untrusted import npz
from leakaudit.core import mapping, registry
from leakaudit.core.errors import LeakauditError
from leakaudit.core.evidence import Evidence, Origin
from leakaudit.core.reconstruction import Certificate, Reconstruction, check_stored
from leakaudit.core.trace import Json
from leakaudit.reporting.results import model
from leakaudit.reporting.results.model import (
    KINDS,
    AuditRecord,
    Finding,
    Record,
    RunRecord,
    StoredImages,
    given,
)
from leakaudit.traces._storage import sidecar

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

R = TypeVar("R", bound=RunRecord)
SCHEMA, VERSION = model.SCHEMA, model.VERSION
# Version 1 did not require `files`, so its images may belong to another run; such a record is still
# shown, with this remark.
UNTIED = (
    "the record contains no digests of the files beside it, so its images may belong to another run"
)
NOT_COMPARED = (
    "the messages were not compared with true gradients, and no reconstruction confirms that they "
    "contain what the declared protocol sends"
)
DEEPEST = 50  # levels of lists and objects in a record; ours have about ten
ID_ONLY = "only its id ties the truth to the trace, and other runs may have the same id"


def validate(results: object, name: str = "results.json") -> Record:
    """Check JSON values against the types of a record."""
    if not isinstance(results, Mapping) or results.get("schema") != SCHEMA:
        raise LeakauditError(
            f'{name}: expected a leakaudit results file ("schema": "{SCHEMA}"), got something else'
        )
    version = results.get("version")
    if isinstance(version, int) and version > VERSION:
        raise LeakauditError(
            f"{name}: written by a newer leakaudit (format version {version}; this leakaudit reads "
            f"versions up to {VERSION}); upgrade leakaudit"
        )
    kind = results.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise LeakauditError(
            f"{name}: expected kind to be one of {', '.join(KINDS)}, got {kind!r:.40}"
        )
    record = _typed(results, KINDS[kind], name)
    untied = _untied(record)
    if record.version == VERSION and untied:
        says = f"it names {min(untied)}, but 'files' contains no SHA-256 of that file"
        raise LeakauditError(
            f"{name}: {says}; the results were edited or copied incompletely: repeat the run"
        )
    return record


def _typed(results: Mapping[str, object], kind: type[Record], name: str) -> Record:
    try:
        # Values that the types leave open must be JSON too; NaN and infinity are not.
        json.dumps(results, allow_nan=False)
        return msgspec.convert(results, kind)
    except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
        wrong = departure(results, kind)
        if wrong is None and isinstance(error, msgspec.ValidationError):
            with contextlib.suppress(msgspec.ValidationError):
                return model.fitted(results, kind)  # it may contain numbers of another library
        raise LeakauditError(f"{name}: {wrong or error}") from None


def write(path: Path, results: Mapping[str, Json]) -> None:
    """Write results.json atomically: completely or not at all."""
    validate(results, path.name)
    mapping.verify()  # what was read of the traces must still be there
    text = json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False)
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace") + b"\n")


def keep(record: R, folder: Path, report: bool = True) -> R:
    """Write report.md and results.json, and return the record with the digests of its files.

    results.json is the last one: if it exists, so does everything that it names.
    """
    record = sealed(record, folder)
    values = model.plain(record)
    if report:
        with replacing(folder / "report.md") as file:
            file.write(registry.get("reports", "markdown")(values).encode())
    write(folder / "results.json", values)
    return record


def sealed(record: R, folder: Path) -> R:
    """Bind a record to the image files beside it, by their digests.

    Files are replaced one by one, so a run that is killed may leave its images beside the record
    of an earlier run. `whole` detects this.
    """
    named = sorted(_named(record))
    files = {name: sidecar.digest(folder / name) for name in named if (folder / name).is_file()}
    return replace(record, version=VERSION, files=files)


def tied(record: RunRecord) -> RunRecord:
    """Forget the digests of files that a record no longer names."""
    digests = given(record.files, {})
    kept = {name: digest for name, digest in digests.items() if name in _named(record)}
    if kept == digests:
        return record
    return replace(record, files=kept)


def _named(record: Record | RunRecord) -> set[str]:
    """Return the image files that a record names; those of a sweep are never read."""
    if not isinstance(record, RunRecord):
        return set()
    named = [finding.images.file for finding in record.findings if finding.images is not None]
    named += [record.picture or "", given(record.originals, None) or ""]
    if isinstance(record, AuditRecord):
        named.append(record.audit.figure or "")
    return set(filter(None, named))


def _untied(record: Record) -> set[str]:
    if not isinstance(record, RunRecord):
        return set()
    return _named(record) - given(record.files, {}).keys()


def warned(summary: str, remarks: Sequence[str], reasons: Sequence[str] = ()) -> str:
    """Prepend what is unverified, and why the result is inconclusive; every report shows it."""
    first = [f"UNVERIFIED: {remark}. " for remark in remarks]
    first += [f"INCONCLUSIVE: {reason}. " for reason in reasons]
    return "".join([*first, summary])


def whole(results: Mapping[str, Json], folder: Path) -> None:
    """Check that the existing files beside a record are those that it was written with."""
    if results["kind"] == "sweep":  # it names no files
        return
    for name, expected in given(model.of_run(results).files, {}).items():
        if (folder / name).is_file() and sidecar.digest(folder / name) != expected:
            raise LeakauditError(
                f"{folder / name} is not the file that {folder / 'results.json'} was written with: "
                "it was changed, or a later run was interrupted before it wrote its own "
                "results.json; repeat the run"
            )


def read(path: Path) -> dict[str, Json]:
    """Read and validate results.json."""
    expected = f"{path}: expected the results.json of a run"
    try:
        results = read_json(path.read_bytes(), DEEPEST, parse_constant=refuse_constant)
    except OSError as error:
        raise LeakauditError(f"{expected}, could not read it: {error.strerror}") from None
    except UnicodeDecodeError:
        raise LeakauditError(f"{expected}, got a file that is not text") from None
    except (ValueError, RecursionError) as error:
        raise LeakauditError(f"{expected}, got invalid JSON: {str(error)[:200]}") from None
    record = validate(results, str(path))
    if not isinstance(record, RunRecord) or not _untied(record):
        return dict(results)
    known = given(record.unverified, ())
    if UNTIED in known:
        return dict(results)
    return {**results, "unverified": [*known, UNTIED], "summary": warned(record.summary, [UNTIED])}


def save_reconstructions(path: Path, found: Sequence[Reconstruction]) -> list[StoredImages]:
    """Write reconstructions to one npz, so that they can be scored again without another attack."""
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
        if one.tokens is not None:
            entry = replace(entry, tokens=f"tokens{i}")
            kept[f"tokens{i}"] = one.tokens
        arrays |= {name: _stored(tensor) for name, tensor in kept.items()}
        entries.append(entry)
    with replacing(path) as file:
        write_arrays(file, arrays)
    return entries


@contextlib.contextmanager
def reading(path: Path, what: str, hint: str = "") -> Iterator[None]:
    """Turn the errors of reading an npz beside a record into one that says what was expected."""
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LeakauditError(f"{path}: expected {what}: {str(error)[:200]}{hint}") from None


def load_reconstructions(results: Mapping[str, Json], folder: Path) -> list[Reconstruction]:
    """Rebuild the reconstructions of a record from the npz beside it."""
    whole(results, folder)
    return [_rebuild(finding, folder) for finding in model.of_run(results).findings]


def _rebuild(finding: Finding, folder: Path) -> Reconstruction:
    images = finding.images
    if images is None:
        raise LeakauditError(
            f"node {finding.node}: its reconstruction was not stored; run the attack again"
        )
    import torch

    path = folder / images.file
    with (
        reading(path, f"the saved reconstruction {images.x!r}, could not read it"),
        npz.Npz(path) as file,
    ):

        def tensor(name: str | None) -> Tensor | None:
            return None if name is None else torch.from_numpy(file[name])

        x = torch.from_numpy(file[images.x])
        y = tensor(images.y)
        interval = tensor(given(images.interval, None))
        tokens = tensor(given(images.tokens, None))
        choices = {
            int(place): torch.from_numpy(file[name])
            for place, name in given(images.choices, {}).items()
        }
        check_stored(x, y, interval, choices, tokens)
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
        tokens,
        given(finding.others, ()),
        given(finding.rounds, ()),
        tuple(
            Evidence(one.subject, Origin[one.origin], one.detail)
            for one in given(finding.evidence, ())
        ),
    )


def _stored(tensor: Tensor) -> np.ndarray:
    """Return a tensor as an array; numpy has no bfloat16, whose numbers float32 holds exactly."""
    import torch

    values = tensor.detach().cpu()
    return values.float().numpy() if values.dtype == torch.bfloat16 else values.numpy()
