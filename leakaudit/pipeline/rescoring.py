"""Scores of an attack that ran before, from its stored reconstructions: with a truth that came later, or one more metric."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from leakaudit import registry
from leakaudit._util.files import replacing
from leakaudit.errors import LeakauditError, suggest
from leakaudit.reconstruction import Reconstruction
from leakaudit.rendering import pictures
from leakaudit.results import provenance, record_file
from leakaudit.results.wording import summary
from leakaudit.scoring import scoring
from leakaudit.scoring.lpips_weights import Weights
from leakaudit.scoring.scoring import METRICS, NOT_SCORED, Score
from leakaudit.trace import Json, Truth, drawn
from leakaudit.traces.trace_file import another_run

_LOST = re.compile(
    r"\d+ of \d+ records not recovered|\d+ more than the \d+ records were handed in, only the first \d+ count"
)


def check(metrics: Collection[str]) -> None:
    """Raise LeakauditError for a metric that is not there."""
    for name in metrics:
        if name not in METRICS:
            raise LeakauditError(f"there is no metric {name!r}{suggest(name, METRICS)}")


def one_truth(record: Mapping[str, Json]) -> None:
    """Raise LeakauditError for another kind of record than an attack's."""
    if record["kind"] != "attack":
        raise LeakauditError(
            f"expected the results of an attack, which have one truth, got those of '{record['kind']}'"
        )


def same_recording(record: Mapping[str, Json], truth: Truth, sha256: str | None) -> bool:
    """Check that a truth is of the recording that was attacked.

    Returns:
        Whether the number of the recording ties them. If not, only the id does.

    Raises:
        LeakauditError: The truth is of another recording, it is not the file that the results were
            scored with, or the record is not an attack's.
    """
    one_truth(record)
    trace, scored = record["provenance"]["trace"], record["provenance"]["truth"]
    if trace["id"] != truth.id:
        raise LeakauditError(
            f"expected the truth of recording {trace['id']!r}, got that of {truth.id!r}; name the right file"
        )
    recording = drawn(trace.get("recording"))
    known = None not in (recording, truth.recording)
    if known and recording != truth.recording:
        raise LeakauditError(f"{another_run(truth.id)} than these results; name the right file")
    if scored["sha256"] not in (None, sha256):
        raise LeakauditError(
            "the truth file is not the one that these results were scored with (another sha256); attack again to use it"
        )
    if _task(record) != _described(truth) or not _held(record) <= set(truth.node.tolist()):
        raise LeakauditError(
            f"{another_run(truth.id)} than these results: of another task or other nodes; name the right file"
        )
    return known


def _task(record: Mapping[str, Json]) -> tuple[Json, ...]:
    """What a record says of the task, beside its constants."""
    about = record["trace"]
    return about["data"], about["model"], tuple(about["shape"]), about["classes"]


def _described(truth: Truth) -> tuple[Json, ...]:
    task = truth.task
    return task.data, task.model, tuple(task.shape), task.classes


def _held(record: Mapping[str, Json]) -> set[int]:
    """The nodes that were reconstructed."""
    return {int(finding["node"]) for finding in record["findings"]}


def rescore(
    record: Mapping[str, Json],
    folder: Path,
    truth: Truth,
    *,
    metrics: Collection[str] = (),
    weights: Weights | None = None,
    lpips: str,
    truth_sha256: str | None = None,
    truth_path: Path | None = None,
) -> tuple[dict[str, Json], list[Reconstruction], list[Score]]:
    """Return the record with new scores, and what they are of; nothing is attacked.

    metrics: those that are computed anew, all where empty; the others stay as they were. weights, lpips: of `lpips_weights.find`.
    Raises LeakauditError for an unknown metric, another kind of record, or reconstructions that are not beside it.
    """
    check(metrics)
    one_truth(record)
    found = record_file.load_reconstructions(record, folder)
    scores = scoring.score(found, truth, weights)
    findings = [
        _scored(f, s, set(metrics)) for f, s in zip(record["findings"], scores, strict=True)
    ]
    defined = scoring.definitions(truth.task, lpips)
    kept = {
        **record["metrics"],
        **{m: text for m, text in defined.items() if not metrics or m in metrics},
    }
    source = record["provenance"]
    entry = {
        "metrics": sorted(metrics) or list(METRICS),
        "truth": truth_sha256,
        "command": provenance.command(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    own = provenance.truth(truth_sha256, truth_path, truth.recording)
    origin = {**source, "truth": own, "rescored": [*source.get("rescored", []), entry]}
    remarks = [remark for remark in record.get("unverified", ()) if remark != record_file.ID_ONLY]
    if None in (drawn(source["trace"].get("recording")), truth.recording):
        remarks.append(record_file.ID_ONLY)
    said = summary(findings, record["undetermined"], record["not_tried"], record["complete"])
    new = {**record, "findings": findings, "metrics": kept, "provenance": origin, "summary": said}
    new.pop("unverified", None)
    return record_file.remarked(new, *remarks), found, scores


def _scored(finding: Mapping[str, Json], score: Score, metrics: set[str]) -> dict[str, Json]:
    """Replace the named columns of a finding's scores, all of them where none is named or nothing was scored before."""
    new, old = score.to_json(), finding["scores"]
    if new is not None and old is not None and metrics:
        rest = {k: v for k, v in old.items() if k not in metrics}
        new = {**rest, **{k: v for k, v in new.items() if k not in METRICS or k in metrics}}
    elif new is not None and metrics:
        new = {k: v for k, v in new.items() if k not in METRICS or k in metrics}
    notes = [
        n
        for n in str(finding["note"]).split("; ")
        if n and n != NOT_SCORED and not _LOST.fullmatch(n)
    ]
    return {**finding, "scores": new, "note": "; ".join([*notes, *filter(None, [score.note])])}


def missing(scores: Sequence[Score], metrics: Collection[str]) -> list[str]:
    """Return the metrics that were asked for and not measured on any record."""
    return [m for m in metrics if all(getattr(s, m) is None for s in scores)]


def write(
    folder: Path,
    record: dict[str, Json],
    found: Sequence[Reconstruction],
    scores: Sequence[Score],
    truth: Truth,
) -> None:
    """Write results.json, reconstructions.npz and .png, originals.npz and report.md into `folder`, results.json last."""
    images = record_file.save_reconstructions(folder / "reconstructions.npz", found)
    record["findings"] = [
        {**f, "images": i} for f, i in zip(record["findings"], images, strict=True)
    ]
    record["originals"] = pictures.save_originals(folder / "originals.npz", found, truth)
    pairs = pictures.pair_up(found, scores, truth)
    record["picture"] = None
    if any(p.found is not None for p in pairs):
        record["picture"] = "reconstructions.png"
        title = f"{record['trace']['protocol']}, {record['trace']['model']}, {record['findings'][0]['adversary']}"
        pictures.save(pictures.grid(pairs, title=title), folder / record["picture"])
    record |= record_file.sealed(record, folder)
    with replacing(folder / "report.md") as file:
        file.write(registry.get("reports", "markdown")(record).encode())
    record_file.write(folder / "results.json", record)
