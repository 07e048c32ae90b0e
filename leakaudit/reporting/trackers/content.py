"""What a tracker receives of a record: metrics, images, texts and files."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError
from leakaudit.core.quantities import Place, shown
from leakaudit.core.trace import Json
from leakaudit.core.verdict import Holds
from leakaudit.reporting.findings import measured, wording
from leakaudit.reporting.findings.shown import Picture
from leakaudit.reporting.rendering import gallery
from leakaudit.reporting.results import model, record_file
from leakaudit.reporting.results.model import (
    AuditPart,
    AuditRecord,
    CheckRecord,
    Finding,
    GatePart,
    NumberColumn,
    RunRecord,
    SweepPart,
    SweepRecord,
    decoded,
    given,
    statistics,
)

RECORD = "results.json"
REPORT = "report.md"
LONGEST = 200  # characters of a name; MLflow allows 250

Values = Iterator[tuple[str, float]]


@dataclass(frozen=True)
class TrackerContent:
    """What is sent."""

    kind: str  # kind of the record: attack, audit, check or sweep
    headline: str  # the worst case in one sentence
    report: str  # the Markdown report, which contains the verdicts
    record: str  # text of results.json
    # finite numbers by name. Names consist of letters, digits and `_-./`.
    metrics: Mapping[str, float]
    # images (h, w, 3) of bytes by name
    images: Mapping[str, np.ndarray] = field(default_factory=dict)
    files: tuple[Path, ...] = ()  # images that are files beside the record


def gather(
    results: Mapping[str, Json],
    folder: Path | None,
    *,
    pictures: bool,
    redact: bool,
    key: str | None,
) -> TrackerContent:
    """Select what is sent of a record."""
    record = model.of(results)
    if redact:
        if isinstance(record, SweepRecord):
            raise LeakauditError(
                "redact does not apply to the results of a sweep, which contain no pictures or "
                "labels; omit it"
            )
        from leakaudit.reporting.findings import redaction  # it knows all data sets and models

        results = redaction.redact(results, key)
        record = model.of(results)
    images: dict[str, np.ndarray] = {}
    files: tuple[Path, ...] = ()
    if pictures and not redact and folder is not None:
        record_file.whole(results, folder)
        files = tuple(_files(record, folder))
        images = _images(record, folder)
    return TrackerContent(
        kind=model.kind_of(record),
        headline=wording.clean(record.summary),
        report=registry.get("reports", "markdown")(results),
        record=json.dumps(results, indent=2, ensure_ascii=True, allow_nan=False) + "\n",
        metrics=metrics(record),
        images=images,
        files=files,
    )


# ---------------------------------------------------------------------------------------------
# Metrics
# ---------------------------------------------------------------------------------------------


def metrics(record: model.Record) -> dict[str, float]:
    """Return the scores and counts of a record."""
    found: dict[str, float] = {}
    for name, value in _values(record):
        if math.isfinite(value):
            found[safe(name)] = float(value)
    return found


def safe(name: str) -> str:
    """Return a name that every tracker accepts and that cannot act as a path."""
    parts = []
    for part in name.split("/"):
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", part).strip(".")
        if plain:
            parts.append(plain)
    return "/".join(parts)[:LONGEST]


def _values(record: model.Record) -> Values:
    if isinstance(record, SweepRecord):
        yield from _of_sweep(record.sweep)
        return
    yield from _of_findings(record)
    if isinstance(record, AuditRecord):
        yield from _of_audit(record.audit)
    if isinstance(record, CheckRecord):
        yield from _of_gate(record.gate)


def _of_findings(record: RunRecord) -> Values:
    groups: dict[str, list[Finding]] = {}
    for one in record.findings:
        place = f"attack/{_part(one.attack)}/{_part(one.adversary)}"
        cell = given(one.cell, None)
        if cell is not None:
            place += f"/{_part(wording.point_of(cell.epsilon))}"
        groups.setdefault(place, []).append(one)
    for place, findings in groups.items():
        yield f"{place}/findings", len(findings)
        for certificate, count in Counter(one.certificate.name for one in findings).items():
            yield f"{place}/certificate/{certificate}", count
        yield from _scores(place, findings)
    yield "nodes/undetermined", len({one.node for one in record.undetermined})


def _scores(place: str, findings: list[Finding]) -> Values:
    records = 0
    flags: Counter[str] = Counter()
    columns: dict[str, list[float]] = {}
    for one in findings:
        if one.scores is None:
            continue
        records += len(one.scores.matched)
        for row in shown(Place.COLUMN):
            column = getattr(one.scores, row.key)
            if row.kind == "Flag":
                flags[row.key] += measured.count(column)
            if isinstance(column, NumberColumn):
                columns.setdefault(row.key, []).extend(measured.with_missed(column))
    if not records:
        return
    yield f"{place}/records", records
    for name, count in flags.items():
        yield f"{place}/{name}", count
    for name, values in columns.items():
        if values:
            yield f"{place}/{name}/min", min(values)
            yield f"{place}/{name}/median", float(np.median(values))
            yield f"{place}/{name}/max", max(values)


def _of_audit(audit: AuditPart) -> Values:
    for verdict, count in Counter(one.verdict for one in audit.verdicts).items():
        yield f"verdict/{verdict}", count
    for point in audit.grid:
        for view in point.read_views():
            epsilon = decoded(view.exact if view.exact is not None else view.epsilon)
            if epsilon is not None:
                place = f"{_part(wording.point_of(point.epsilon))}/node{view.node}"
                name = f"epsilon{Holds.read(view.holds).suffix}"
                yield f"view/{place}/{_part(view.adversary or '')}/{name}", epsilon


def _of_gate(gate: GatePart) -> Values:
    yield "gate/exit_code", gate.code
    for status, count in Counter(rule.status.value for rule in gate.rules).items():
        yield f"gate/rules/{status}", count
    for cell in gate.cells:
        for name, column in cell.measures.items():
            yield f"gate/{cell.name}/{_part(name)}/mean", column.mean
            yield f"gate/{cell.name}/{_part(name)}/worst", column.worst


def _of_sweep(sweep: SweepPart) -> Values:
    for point in sweep.points:
        at = [f"{_part(axis)}={wording.axis_value(value)}" for axis, value in point.at.items()]
        place = "/".join(["sweep", _part(point.attack), _part(point.adversary), *map(_part, at)])
        yield f"{place}/records", point.records
        yield f"{place}/recovered", point.recovered
        yield f"{place}/exact", point.exact
        for one in shown(Place.CURVE):
            values = statistics(point, one)
            if values is not None:
                yield f"{place}/{one.key}/best", values.best
                yield f"{place}/{one.key}/median", values.median
    yield "sweep/missing", sweep.missing


def _part(name: str) -> str:
    return name.replace("/", "_").replace(" ", "_")


# ---------------------------------------------------------------------------------------------
# Images
# ---------------------------------------------------------------------------------------------


def _files(record: model.Record, folder: Path) -> Iterator[Path]:
    names: list[str | None] = []
    if isinstance(record, RunRecord):
        names.append(record.picture)
    if isinstance(record, AuditRecord):
        names.append(record.audit.figure)
    if isinstance(record, SweepRecord):
        names.append(record.sweep.figure)
    for name in names:
        if name is not None and name.endswith(".png") and (folder / name).is_file():
            yield folder / name


def _images(record: model.Record, folder: Path) -> dict[str, np.ndarray]:
    """Each reconstruction, to the right of its original if that is known."""
    if not isinstance(record, RunRecord):
        return {}
    images: dict[str, np.ndarray] = {}
    sections = gallery.sections_of(record, folder)
    for section in sections:
        for k, picture in enumerate(section.images):
            drawn = _side_by_side(picture)
            if drawn is not None:
                place = f"pictures/{_part(section.attack)}/{_part(section.adversary)}/{k}"
                images[safe(place)] = drawn
    return images


def _side_by_side(picture: Picture) -> np.ndarray | None:
    parts = []
    for source in (picture.original, picture.found):
        if source is not None:
            _, _, text = source.partition(",")
            with Image.open(io.BytesIO(base64.b64decode(text))) as image:
                parts.append(np.asarray(image.convert("RGB")))
    if not parts:
        return None
    heights = {part.shape[0] for part in parts}
    if len(heights) > 1:
        parts = parts[-1:]
    drawn: np.ndarray = np.concatenate(parts, axis=1)
    return drawn


def pixels(path: Path) -> np.ndarray:
    """Read an image file."""
    with Image.open(path) as image:
        read: np.ndarray = np.asarray(image.convert("RGB"))
    return read
