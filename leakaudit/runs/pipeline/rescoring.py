"""New scores of an earlier attack, for a later truth or one more metric."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec import UNSET
from msgspec.structs import replace

from leakaudit.core.errors import LeakauditError, suggest
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.trace import Json, Truth, drawn
from leakaudit.reporting.findings.wording import summary
from leakaudit.reporting.results import model, provenance, record_file
from leakaudit.reporting.results.model import (
    AttackRecord,
    Finding,
    Provenance,
    Rescoring,
    Scores,
    given,
)
from leakaudit.scoring import scoring
from leakaudit.scoring.lpips_weights import Weights
from leakaudit.scoring.scoring import METRICS, NOT_SCORED, Score
from leakaudit.traces.trace_file import another_run


def check(metrics: Collection[str]) -> None:
    """Check the names of metrics."""
    for name in metrics:
        if name not in METRICS:
            raise LeakauditError(f"there is no metric {name!r}{suggest(name, METRICS)}")


def one_truth(record: Mapping[str, Json]) -> AttackRecord:
    """Check that a record has one truth."""
    typed = model.of(record)
    if not isinstance(typed, AttackRecord):
        kind = record["kind"]
        raise LeakauditError(
            f"expected the results of an attack, which have one truth, got those of '{kind}'"
        )
    return typed


def same_recording(record: AttackRecord, truth: Truth, sha256: str | None) -> None:
    """Check that a truth is of the attacked recording, and the file of earlier scores."""
    trace = record.provenance.trace
    scored = record.provenance.truth
    if trace.id != truth.id:
        raise LeakauditError(
            f"expected the truth of recording {trace.id!r}, got that of {truth.id!r}; "
            "name the right file"
        )
    recording = drawn(given(trace.recording, None))
    known = recording is not None and truth.recording is not None
    if known and recording != truth.recording:
        raise LeakauditError(f"{another_run(truth.id)} than these results; name the right file")
    if scored.sha256 not in (None, sha256):
        raise LeakauditError(
            "the truth file is not the one that these results were scored with (another sha256); "
            "attack again to use it"
        )
    attacked = {node for finding in record.findings for node in finding.nodes}
    if _task(record) != _described(truth) or not attacked <= set(truth.node.tolist()):
        raise LeakauditError(
            f"{another_run(truth.id)} than these results: of another task or other nodes; "
            "name the right file"
        )


def _task(record: AttackRecord) -> tuple[object, ...]:
    about = record.trace
    return about.data, about.model, about.shape, about.classes


def _described(truth: Truth) -> tuple[object, ...]:
    task = truth.task
    return task.data, task.model, tuple(task.shape), task.classes


def rescore(
    old: AttackRecord,
    folder: Path,
    truth: Truth,
    *,
    metrics: Collection[str] = (),
    weights: Weights | None = None,
    lpips: str,
    truth_sha256: str | None = None,
    truth_path: Path | None = None,
) -> tuple[AttackRecord, list[Reconstruction], list[Score]]:
    """Score stored reconstructions again; `output.write` adds the files."""
    check(metrics)
    found = record_file.load_reconstructions(model.plain(old), folder)
    scores = scoring.score(found, truth, weights)
    chosen = set(metrics)
    findings = tuple(
        _scored(finding, score, chosen) for finding, score in zip(old.findings, scores, strict=True)
    )
    remarks = _remarks(old, truth, scores)
    said = summary(findings, old.undetermined, old.not_tried, old.trace.shape, old.complete)
    new = replace(
        old,
        findings=findings,
        metrics=_definitions(old, scoring.definitions(truth.task, lpips, truth), metrics),
        provenance=_origin(old.provenance, truth, metrics, truth_sha256, truth_path),
        summary=record_file.warned(said, remarks, given(old.unclear, ())),
        unverified=tuple(dict.fromkeys(remarks)) or UNSET,
    )
    return new, found, scores


def _definitions(
    record: AttackRecord, defined: Mapping[str, str], metrics: Collection[str]
) -> dict[str, str]:
    kept = dict(record.metrics)
    for name, text in defined.items():
        if not metrics or name in metrics:
            kept[name] = text
    return kept


def _origin(
    source: Provenance,
    truth: Truth,
    metrics: Collection[str],
    sha256: str | None,
    path: Path | None,
) -> Provenance:
    entry = Rescoring(
        metrics=tuple(sorted(metrics) or METRICS),
        truth=sha256,
        command=provenance.command(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    used = provenance.scored_with(sha256, path, truth.recording)
    return replace(source, truth=used, rescored=(*given(source.rescored, ()), entry))


def _remarks(record: AttackRecord, truth: Truth, scores: Sequence[Score]) -> list[str]:
    """Return what is not verified: as before, except for what the truth shows.

    A record that is recovered bit for bit shows that the messages contain what the protocol sends.
    """
    shown = {record_file.ID_ONLY}
    if any(True in (score.exact or ()) for score in scores):
        shown.add(record_file.NOT_COMPARED)
    kept = [one for one in given(record.unverified, ()) if one not in shown]
    recording = drawn(given(record.provenance.trace.recording, None))
    if recording is None or truth.recording is None:
        kept.append(record_file.ID_ONLY)
    return kept


def _scored(finding: Finding, score: Score, metrics: set[str]) -> Finding:
    """Replace the named columns of a finding's scores, or all."""
    notes = [_own_note(finding), score.note]
    return replace(
        finding,
        scores=_chosen(finding.scores, score, metrics),
        note="; ".join(filter(None, notes)),
    )


def _chosen(old: Scores | None, score: Score, metrics: set[str]) -> Scores | None:
    """Return old scores with the named columns of a new one; None without a truth."""
    values = score.to_json()
    if values is None:
        return None
    if metrics:
        for name in METRICS:
            if name not in metrics:
                values.pop(name, None)
    if metrics and old is not None:
        kept = {name: value for name, value in model.plain(old).items() if name not in metrics}
        values = {**kept, **values}
    return model.fitted(values, Scores)


def _own_note(finding: Finding) -> str:
    """Return the note without the remark of the earlier scoring."""
    scores = finding.scores
    if scores is None:
        remark = NOT_SCORED
    else:
        remark = scoring.remark(scores.not_recovered, given(scores.surplus, 0), len(scores.matched))
    if not remark:
        return finding.note
    if finding.note == remark:
        return ""
    return finding.note.removesuffix(f"; {remark}")


def missing(scores: Sequence[Score], metrics: Collection[str]) -> list[str]:
    """Return the requested metrics that no record has."""
    return [name for name in metrics if all(getattr(one, name) is None for one in scores)]
