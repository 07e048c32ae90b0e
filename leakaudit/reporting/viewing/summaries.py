"""One run in the list: what a bounded part of its results.json says."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import msgspec

from leakaudit._util.decoding import from_json
from leakaudit._util.plural import counted
from leakaudit.core.errors import LeakauditError
from leakaudit.core.quantities import QUANTITIES, Place, Quantity, shown
from leakaudit.reporting.findings import grading, measured, wording
from leakaudit.reporting.results.model import (
    KINDS,
    AttackRecord,
    AuditRecord,
    CheckRecord,
    Finding,
    Provenance,
    Record,
    RunRecord,
    SweepRecord,
    TraceSummary,
    given,
    kind_of,
    statistics,
)
from leakaudit.reporting.viewing.files import head, tail

RECORD = "results.json"
# A record of at most so many bytes is read as a whole for the list: about a thousand findings.
# Of a larger one, only the beginning and the end are read, of so many bytes each. Both are choices.
WHOLE = 1 << 20
PART = 1 << 18
SHOWN = 400  # characters of a sentence or a name
NAMES = 8  # adversaries or attacks of one run

# Outcomes that the list shows, by the exit code of a gate and by the severity of other findings.
GATES: dict[int, tuple[grading.Level, str]] = {
    0: ("note", "within the limits"),
    1: ("error", "over the limits"),
    3: ("warning", "inconclusive"),
}
ATTACKS: dict[grading.Level, str] = {
    "error": "recovered",
    "warning": "fits a leak",
    "note": "nothing recovered",
}
NOT_READ = "not read"
_RECORD = AttackRecord | AuditRecord | CheckRecord | SweepRecord


@dataclass(frozen=True)
class RunSummary:
    """One run of the list; all texts are cleaned, but not escaped."""

    id: str  # its name in addresses: a digest of its place, from which no path can be made
    place: str  # its folder, relative to the folder that is shown; "." for that folder itself
    kind: str
    verdict: str  # the outcome in a few words
    level: grading.Level  # severity of the outcome
    says: str  # the summary of the record, which begins with the worst result
    complete: bool  # whether the run was completed
    started: str  # time of the start in UTC, or when the file was written if that is not stored
    protocol: str = ""  # name of the protocol, or the protocols of a sweep
    protocols: tuple[str, ...] = ()  # the names by themselves
    model: str = ""
    data: str = ""
    adversaries: tuple[str, ...] = ()  # the adversaries, at most `NAMES`
    attacks: tuple[str, ...] = ()  # the attacks, at most `NAMES`
    version: str = ""
    commit: str = ""  # commit of the audited program, "" if it is not recorded
    # further values by name, for comparisons
    figures: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Clean and shorten all texts."""
        for name, value in vars(self).items():
            if isinstance(value, str):
                object.__setattr__(self, name, _short(value))

    @property
    def date(self) -> str:
        """The day of the start, such as ``2030-01-31``."""
        return self.started[:10]

    @property
    def minute(self) -> str:
        """The start without seconds, such as ``2030-01-31 12:00``."""
        return self.started[:16].replace("T", " ")

    @cached_property
    def text(self) -> str:
        """Everything that a search looks at, in lower case."""
        parts = (
            self.place,
            self.kind,
            self.verdict,
            self.protocol,
            self.model,
            self.data,
            *self.adversaries,
            *self.attacks,
            self.version,
            self.commit,
            self.date,
            self.says,
        )
        return " ".join(parts).lower()


def identifier(place: str) -> str:
    """Return the name of a folder in addresses."""
    return hashlib.sha256(os.fsencode(place)).hexdigest()[:16]


def summarise(file: Path, place: str, known: os.stat_result) -> RunSummary:
    """Summarise one run."""
    written = datetime.fromtimestamp(known.st_mtime, UTC).isoformat(timespec="seconds")
    if known.st_size > WHOLE:
        return _glanced(file, place, written)
    record = _decoded(head(file, WHOLE + 1))
    if isinstance(record, SweepRecord):
        return _swept(record, place, written)
    return _ran(record, place)


def _decoded(raw: bytes) -> Record:
    try:
        found: Record = from_json(raw, _RECORD)
    except RecursionError:
        raise LeakauditError("its entries are nested too deeply") from None
    except UnicodeDecodeError:
        raise LeakauditError("it is not text") from None
    except msgspec.ValidationError as error:
        raise LeakauditError(f"it is not a record of leakaudit: {_short(error)}") from None
    except ValueError as error:
        raise LeakauditError(f"it is not valid JSON: {_short(error)}") from None
    return found


# ---------------------------------------------------------------------------------------------
# Attacks, audits and checks
# ---------------------------------------------------------------------------------------------


def _ran(record: RunRecord, place: str) -> RunSummary:
    level, verdict = _outcome(record)
    names = _names(record)
    trace, source = record.trace, record.provenance
    return RunSummary(
        id=identifier(place),
        place=place,
        kind=kind_of(record),
        verdict=verdict,
        level=level,
        says=record.summary,
        complete=record.complete,
        started=source.started,
        protocol=trace.protocol,
        protocols=(_short(trace.protocol),),
        model=trace.model,
        data=trace.data,
        adversaries=_several(names[0]),
        attacks=_several(names[1]),
        version=source.versions.get("leakaudit") or "",
        commit=_commit(source),
        figures=_figures(record),
    )


def _commit(source: Provenance) -> str:
    program = given(source.program, None)
    return "" if program is None else program.commit


def _outcome(record: RunRecord) -> tuple[grading.Level, str]:
    if isinstance(record, CheckRecord):
        return GATES[record.gate.code]
    if isinstance(record, AuditRecord):
        counts = wording.count_verdicts(record.audit.verdicts)
        for verdict in counts:
            return grading.VERDICTS[verdict.name], verdict.words
        return "note", "nothing tested"
    level = grading.most_severe(map(grading.level, record.findings))
    return level, ATTACKS[level]


def _names(record: RunRecord) -> tuple[dict[str, None], dict[str, None]]:
    adversaries: dict[str, None] = {}
    attacks: dict[str, None] = {}
    for finding in record.findings:
        adversaries[finding.adversary] = None
        attacks[finding.attack] = None
    for missed in record.undetermined:
        adversaries[missed.adversary] = None
    if isinstance(record, AuditRecord):
        for one in record.audit.verdicts:
            adversaries[one.adversary] = None
    if isinstance(record, CheckRecord):
        for cell in record.gate.cells:
            adversaries[cell.adversary] = None
            attacks[cell.attack] = None
    return adversaries, attacks


def _figures(record: RunRecord) -> dict[str, str]:
    trace = record.trace
    made = {
        "network": f"{counted(trace.nodes, 'node')}, {counted(trace.edges, 'edge')}",
        "rounds": str(trace.rounds),
    }
    if isinstance(record, CheckRecord):
        made |= _ruled(record)
    if isinstance(record, AuditRecord):
        made |= _judged(record)
    if record.findings:
        made |= _recovered(record.findings)
    made["seconds"] = f"{record.provenance.seconds:.3g}"
    made["torch"] = _short(record.provenance.versions.get("torch") or "absent")
    made["configuration"] = record.provenance.digest[:12]
    return made


def _recovered(findings: Sequence[Finding]) -> dict[str, str]:
    made = {"reconstructions": str(len(findings))}
    certificates = Counter(finding.certificate.name for finding in findings)
    made["certificates"] = ", ".join(f"{n} {name.lower()}" for name, n in certificates.items())
    scored = [finding.scores for finding in findings if finding.scores is not None]
    identical: set[object] = set()
    for finding in findings:
        if finding.scores is not None:
            run = (given(finding.cell, None), finding.adversary, finding.attack)
            keys = measured.record_keys(finding.scores, finding.node)
            exact = measured.values(finding.scores.exact)
            identical.update((run, key) for key, same in zip(keys, exact, strict=False) if same)
    made["identical records"] = str(len(identical))
    for row in shown(Place.CURVE):
        best = _best((measured.best(getattr(one, row.key), row.better) for one in scored), row)
        if best is not None:
            made[_named(row)] = row.text(best)
    return made


def _named(row: Quantity) -> str:
    return f"{'best' if row.better is max else 'smallest'} {row.drawn}"


def _best(values: Iterable[float | None], row: Quantity) -> float | None:
    known = [value for value in values if value is not None]
    return row.better(known) if known else None


def _judged(record: AuditRecord) -> dict[str, str]:
    points = [wording.grid_epsilon(point.epsilon) for point in record.audit.grid]
    return {
        "verdicts": wording.verdict_counts(record.audit.verdicts) or "none",
        "epsilon": _short(", ".join(points)),
        "delta": f"{record.audit.delta:g}",
        "alpha": f"{record.audit.alpha:g}",
    }


def _ruled(record: CheckRecord) -> dict[str, str]:
    counts = Counter(rule.status.value for rule in record.gate.rules)
    said = []
    for status, number in counts.items():
        said.append(f"{number} {status.replace('_', ' ').lower()}")
    return {"rules": ", ".join(said) or "none", "cells": str(len(record.gate.cells))}


# ---------------------------------------------------------------------------------------------
# Sweeps
# ---------------------------------------------------------------------------------------------


def _swept(record: SweepRecord, place: str, written: str) -> RunSummary:
    sweep = record.sweep
    level, verdict = _share(record)
    protocols = _planned(record, "victim")
    failed = sum(cell.status != "done" for cell in sweep.cells)
    psnr = QUANTITIES["psnr"]
    found = [statistics(point, psnr) for point in sweep.points]
    best = _best((None if values is None else values.best for values in found), psnr)
    figures = {
        "cells": f"{len(sweep.cells)}, {failed} failed, {sweep.missing} missing",
        "axes": _short(", ".join(sweep.axes) or "none"),
        "identical records": str(sum(point.exact for point in sweep.points)),
        "recovered records": (
            f"{sum(point.recovered for point in sweep.points)} of "
            f"{sum(point.records for point in sweep.points)}"
        ),
    }
    if best is not None:
        figures[_named(psnr)] = psnr.text(best)
    figures["torch"] = _short(sweep.versions.get("torch") or "absent")
    figures["configuration"] = sweep.digest[:12]
    return RunSummary(
        id=identifier(place),
        place=place,
        kind=kind_of(record),
        verdict=verdict,
        level=level,
        says=record.summary,
        complete=record.complete,
        started=written,
        protocol=", ".join(protocols),
        protocols=protocols,
        model=_short(", ".join(_planned(record, "model"))),
        data=_short(", ".join(_planned(record, "data"))),
        adversaries=_several(cell.adversary for cell in sweep.cells),
        attacks=_several(cell.attack for cell in sweep.cells),
        version=sweep.versions.get("leakaudit") or "",
        figures=figures,
    )


def _share(record: SweepRecord) -> tuple[grading.Level, str]:
    points = record.sweep.points
    if any(point.exact or point.certified for point in points):
        return "error", ATTACKS["error"]
    if any(point.recovered for point in points):
        return "warning", ATTACKS["warning"]
    return "note", ATTACKS["note"]


def _planned(record: SweepRecord, name: str) -> tuple[str, ...]:
    varied = record.sweep.axes.get(name)
    if varied:
        return _several(map(str, varied))
    scenario = record.sweep.plan.get("scenario")
    if not isinstance(scenario, Mapping) or not scenario.get(name):
        return ()
    return (_short(scenario[name]),)


# ---------------------------------------------------------------------------------------------
# Large files
# ---------------------------------------------------------------------------------------------


class _Opening(msgspec.Struct):
    """The first entries of a record, which state its kind and its worst result."""

    kind: str
    complete: bool
    summary: str
    trace: TraceSummary | None = None


def _glanced(file: Path, place: str, written: str) -> RunSummary:
    """Summarise a large file from its beginning and its end; its findings are not read."""
    opening = _opening(head(file, PART))
    source = _origin(tail(file, PART))
    run = RunSummary(
        id=identifier(place),
        place=place,
        kind=opening.kind,
        verdict=NOT_READ,
        level="warning",
        says=opening.summary,
        complete=opening.complete,
        started=written,
    )
    trace = opening.trace
    if trace is not None:
        protocols = (_short(trace.protocol),)
        run = replace(run, protocol=trace.protocol, protocols=protocols)
        run = replace(run, model=trace.model, data=trace.data)
    if source is not None:
        version = source.versions.get("leakaudit") or ""
        run = replace(run, started=source.started, version=version, commit=_commit(source))
    return run


def _opening(raw: bytes) -> _Opening:
    """Read the entries before the findings.

    Inside a text of JSON, a quotation mark follows a backslash, so these bytes are no part of one.
    """
    ends = [raw.find(mark) for mark in (b'"findings":', b'"sweep":')]
    found = [end for end in ends if end >= 0]
    if not found:
        raise LeakauditError("it is large, and does not begin as a record of leakaudit does")
    before = raw[: min(found)].rstrip().removesuffix(b",") + b"}"
    try:
        opening = msgspec.json.decode(before, type=_Opening)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise LeakauditError(
            "it is large, and does not begin as a record of leakaudit does"
        ) from None
    if opening.kind not in KINDS:
        raise LeakauditError("it is not a record of leakaudit: its kind is not known")
    return opening


def _origin(raw: bytes) -> Provenance | None:
    """Read the provenance near the end of a file; None if it is not there."""
    text = raw.decode("utf-8", "replace")
    _, mark, rest = text.rpartition('"provenance":')
    if not mark:
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(rest.lstrip())
        return msgspec.convert(value, Provenance)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None


def _short(value: object) -> str:
    text = str(value)[: 4 * SHOWN]
    # Most texts are clean already, and to look at every character takes most of the time of a list.
    if not (text.isascii() and text.isprintable()) or "  " in text:
        text = wording.clean(text)
    if len(text) <= SHOWN:
        return text
    return text[: SHOWN - 1] + "…"


def _several(names: Iterable[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for name in names:
        found[_short(name)] = None
        if len(found) > NAMES:
            break
    return tuple(found)[:NAMES]
