"""Two results side by side: what gives away more than before, less, or the same.

A check that only one of them made is reported as new or gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import UNSET, Struct

from leakaudit.results import model
from leakaudit.results.grading import RANK, Check, checks
from leakaudit.results.model import RunRecord, TraceSource
from leakaudit.trace import Json

Change = Literal["worse", "new", "better", "gone", "same"]
DECIBEL = 0.5  # a PSNR that moves by less has not changed; a choice, below what an eye can tell
RELATIVE = 0.05  # the same of a relative error, as a share of the earlier one; a choice
SHOWN = 50  # changes in text
MEANS: dict[Change, str] = {
    "worse": "gives away more than before",
    "new": "not looked at before",
    "better": "gives away less than before",
    "gone": "not looked at any more",
    "same": "as before",
}


class ComparedCheck(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One check in two results.

    Attributes:
        id: Its fingerprint, also in SARIF.
        name: What was looked at.
        node: Whose data.
        change: From the earlier results to these.
        before: The earlier message, None if it was not looked at.
        now: The message, None if it is not looked at any more.
    """

    id: str
    name: str
    node: int
    change: Change
    before: str | None
    now: str | None


class Against(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Results beside earlier ones.

    Attributes:
        summary: How many checks changed how.
        differs: What was not the same on both sides, so that a change may come from there.
        rows: The checks, those that are worse first.
    """

    summary: str
    differs: tuple[str, ...]
    rows: tuple[ComparedCheck, ...]

    @property
    def changed(self) -> list[ComparedCheck]:
        """The checks that are not the same."""
        return [row for row in self.rows if row.change != "same"]


def compare(now: Mapping[str, Json], before: Mapping[str, Json]) -> dict[str, Json]:
    """Compare two records.

    Args:
        now: The record that is reported.
        before: An earlier one.

    Returns:
        The record `now` with ``against``, the values of an `Against`.
    """
    new, old = model.of_run(now), model.of_run(before)
    return {**now, "against": model.plain(against(new, old, differences(new, old)))}


def against(now: RunRecord, before: RunRecord, differs: Sequence[str]) -> Against:
    """Compare the checks of two records.

    Args:
        now: The record that is reported.
        before: An earlier one.
        differs: As `differences`.

    Returns:
        The comparison.
    """
    new = {check.id: check for check in checks(now)}
    old = {check.id: check for check in checks(before)}
    order = list(MEANS)
    rows = [_row(new.get(key), old.get(key)) for key in {**new, **old}]
    rows.sort(key=lambda row: order.index(row.change))
    return Against(summary=_sentence(rows, differs), differs=tuple(differs), rows=tuple(rows))


def differences(now: RunRecord, before: RunRecord) -> list[str]:
    """Name what was not the same on both sides.

    Args:
        now: The record that is reported.
        before: An earlier one.

    Returns:
        The names, in a fixed order.
    """
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
    """What identifies both recordings.

    The number that is drawn for each recording is left out if one of the records, of version 1, has
    none.
    """
    ids = (now.id, now.sha256), (before.id, before.sha256)
    if UNSET in (now.recording, before.recording):
        return ids
    return (*ids[0], now.recording), (*ids[1], before.recording)


def read_against(results: Mapping[str, Json]) -> Against | None:
    """Return the comparison that `compare` added.

    Args:
        results: A record.

    Returns:
        The comparison, None if there is none.
    """
    values = results.get("against")
    if not values:
        return None
    return model.fitted(values, Against)


def lines(against: Against | Json) -> list[str]:
    """Return a comparison as text.

    Args:
        against: The comparison, also as JSON values; None or empty for none.

    Returns:
        Its sentence, then a line for each change, at most `SHOWN`; cleaned, not escaped; nothing if
        there is no comparison.
    """
    if not against:
        return []
    found = against
    if not isinstance(found, Against):
        found = model.fitted(found, Against)
    said = []
    for row in found.changed[:SHOWN]:
        before, now = row.before or "nothing", row.now or "nothing"
        said.append(f"{row.change}: {row.name}: {before}; now {now}")
    left = len(found.changed) - SHOWN
    if left > 0:
        said.append(f"{left} more changes")
    return [found.summary, *said]


def _row(now: Check | None, before: Check | None) -> ComparedCheck:
    one = now or before
    if one is None:
        raise ValueError("a row needs a check on one side")
    return ComparedCheck(
        id=one.id,
        name=one.name,
        node=one.node,
        change=_change(now, before),
        before=before.message if before else None,
        now=now.message if now else None,
    )


def _change(now: Check | None, before: Check | None) -> Change:
    """How a check changed, by the first of these that differs.

    Level, identical records, PSNR or error beyond the tolerance, certificate. Residuals do not
    count.
    """
    if before is None:
        return "new"
    if now is None:
        return "gone"
    if now.level != before.level:
        return "worse" if RANK[now.level] > RANK[before.level] else "better"
    for k, (a, b) in enumerate(zip(now.harm[:3], before.harm[:3], strict=False)):
        nearness = k == 1  # of `wording.harm`
        if a == b or (nearness and _close(a, b)):
            continue
        return "worse" if a > b else "better"
    return "same"


def _close(a: float, b: float) -> bool:
    """PSNR in dB if both are above 0, minus a relative error if both are below."""
    tolerance = 0.0
    if min(a, b) > 0:
        tolerance = DECIBEL
    elif max(a, b) < 0:
        tolerance = RELATIVE * abs(b)
    return abs(a - b) <= tolerance


def _sentence(rows: Sequence[ComparedCheck], differs: Sequence[str]) -> str:
    parts = []
    for change, meaning in MEANS.items():
        count = sum(row.change == change for row in rows)
        if count:
            parts.append(f"{count} {meaning}")
    counted = ", ".join(parts) or "nothing was looked at"
    source = f" Not the same on both sides: {', '.join(differs)}." if differs else ""
    return f"Against the earlier results: {counted}.{source}"
