"""Comparison of two results: which checks leak more than before, less, or the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import UNSET, Struct

from leakaudit.reporting.findings.grading import RANK, GradedItem, checks
from leakaudit.reporting.results import model
from leakaudit.reporting.results.model import RunRecord, TraceSource

if TYPE_CHECKING:
    from leakaudit.core.trace import Json  # with torch

Change = Literal["worse", "new", "better", "gone", "same"]
DECIBEL = 0.5  # smaller changes of a PSNR are ignored; a choice, below what the eye can perceive
RELATIVE = 0.05  # the same for a relative error, as a share of the earlier one; a choice
SHOWN = 50  # changes listed in text
MEANS: dict[Change, str] = {
    "worse": "more leakage than before",
    "new": "not examined before",
    "better": "less leakage than before",
    "gone": "no longer examined",
    "same": "unchanged",
}


class _ComparedCheck(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One check in two results."""

    id: str  # its fingerprint, also used in SARIF
    name: str  # what was examined
    node: int  # the node that owns the data
    change: Change  # change from the earlier results to these
    before: str | None  # the earlier message, None if it was not examined before
    now: str | None  # the message, None if it is no longer examined


class ResultsComparison(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A comparison of results with earlier ones."""

    summary: str  # the numbers of checks by change
    # conditions that differ between the two results and may explain a change
    differs: tuple[str, ...]
    rows: tuple[_ComparedCheck, ...]  # the checks, those that became worse first

    @property
    def changed(self) -> list[_ComparedCheck]:
        """The checks that changed."""
        return [row for row in self.rows if row.change != "same"]


def compare(now: Mapping[str, Json], before: Mapping[str, Json]) -> dict[str, Json]:
    """Compare two records."""
    new, old = model.of_run(now), model.of_run(before)
    return {**now, "against": model.plain(against(new, old))}


def against(
    now: RunRecord, before: RunRecord, differs: Sequence[str] | None = None
) -> ResultsComparison:
    """Compare the checks of two records."""
    if differs is None:
        differs = differences(now, before)
    new = {check.id: check for check in checks(now)}
    old = {check.id: check for check in checks(before)}
    order = list(MEANS)
    rows = [_row(new.get(key), old.get(key)) for key in {**new, **old}]
    rows.sort(key=lambda row: order.index(row.change))
    return ResultsComparison(
        summary=_sentence(rows, differs), differs=tuple(differs), rows=tuple(rows)
    )


def differences(now: RunRecord, before: RunRecord) -> list[str]:
    """List the conditions that differ between two records."""
    a, b = now.provenance, before.provenance
    pairs: dict[str, tuple[object, object]] = {
        "the protocol": (now.trace.protocol, before.trace.protocol),
        "the model": (now.trace.model, before.trace.model),
        "the data": (now.trace.data, before.trace.data),
        "the network": (now.trace.links, before.trace.links),
        "the recording": _recordings(a.trace, b.trace),
        "the configuration": (a.digest, b.digest),
        "the definition of a metric": (now.metrics, before.metrics),
    }
    for name in ("leakaudit", "torch"):
        pairs[f"the version of {name}"] = (a.versions.get(name), b.versions.get(name))
    return [name for name, (x, y) in pairs.items() if x != y]


def _recordings(now: TraceSource, before: TraceSource) -> tuple[object, object]:
    """What identifies each of the two recordings.

    The random number of each recording is omitted if one of the records lacks it (version 1).
    """
    ids = (now.id, now.sha256), (before.id, before.sha256)
    if UNSET in (now.recording, before.recording):
        return ids
    return (*ids[0], now.recording), (*ids[1], before.recording)


def read_against(results: Mapping[str, Json]) -> ResultsComparison | None:
    """Return the comparison that `compare` added."""
    values = results.get("against")
    if not values:
        return None
    return model.fitted(values, ResultsComparison)


def lines(against: ResultsComparison | None) -> list[str]:
    """Return a comparison as text, with at most `SHOWN` changes; cleaned, but not escaped."""
    if against is None:
        return []
    said = []
    for row in against.changed[:SHOWN]:
        before, now = row.before or "not examined", row.now or "not examined"
        said.append(f"{row.change}: {row.name}: before: {before}; now: {now}")
    left = len(against.changed) - SHOWN
    if left > 0:
        said.append(f"{left} more changes")
    return [against.summary, *said]


def _row(now: GradedItem | None, before: GradedItem | None) -> _ComparedCheck:
    one = now or before
    if one is None:
        raise ValueError("a row needs a check on one side")
    return _ComparedCheck(
        id=one.id,
        name=one.name,
        node=one.node,
        change=_change(now, before),
        before=before.message if before else None,
        now=now.message if now else None,
    )


def _change(now: GradedItem | None, before: GradedItem | None) -> Change:
    """How a check changed, decided by the first of the following that differs.

    Level, identical records, PSNR or error beyond the tolerance, certificate. Residuals are
    ignored.
    """
    if before is None:
        return "new"
    if now is None:
        return "gone"
    if now.level != before.level:
        return "worse" if RANK[now.level] > RANK[before.level] else "better"
    for k, (a, b) in enumerate(zip(now.harm[:3], before.harm[:3], strict=False)):
        nearness = k == 1  # of `measured.harm`
        if a == b or (nearness and _close(a, b)):
            continue
        return "worse" if a > b else "better"
    return "same"


def _close(a: float, b: float) -> bool:
    """Whether two values agree: PSNR in dB if positive, minus a relative error if negative."""
    tolerance = 0.0
    if min(a, b) > 0:
        tolerance = DECIBEL
    elif max(a, b) < 0:
        tolerance = RELATIVE * abs(b)
    return abs(a - b) <= tolerance


def _sentence(rows: Sequence[_ComparedCheck], differs: Sequence[str]) -> str:
    parts = []
    for change, meaning in MEANS.items():
        count = sum(row.change == change for row in rows)
        if count:
            parts.append(f"{count} {change} ({meaning})")
    counted = ", ".join(parts) or "nothing was examined"
    source = f" Also different: {', '.join(differs)}." if differs else ""
    return f"Compared with the earlier results: {counted}.{source}"
