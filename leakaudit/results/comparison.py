"""Two results side by side: what gives away more than before, less, the same, and what one of both did not look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from leakaudit.results.grading import RANK, Check, checks
from leakaudit.trace import Json

Change = Literal["worse", "new", "better", "gone", "same"]
DECIBEL, RELATIVE = (
    0.5,
    0.05,
)  # changes of PSNR in dB and of a relative error below which nothing has changed
SHOWN = 50  # changes in text
MEANS: dict[Change, str] = {
    "worse": "gives away more than before",
    "new": "not looked at before",
    "better": "gives away less than before",
    "gone": "not looked at any more",
    "same": "as before",
}


def compare(now: Mapping[str, Json], before: Mapping[str, Json]) -> dict[str, Json]:
    """Return the record `now` with ``against``: ``summary``, ``differs`` and ``rows``, worst first.

    A row has ``id`` (the fingerprint in SARIF), ``name``, ``node``, ``change`` of `MEANS`, ``before`` and ``now``, a sentence each.
    differs: what was not the same on both sides, so that a change may come from there.
    """
    new, old = ({c.id: c for c in checks(results)} for results in (now, before))
    rows = [_row(new.get(key), old.get(key)) for key in dict.fromkeys((*new, *old))]
    order = list(MEANS)
    rows.sort(key=lambda row: order.index(row["change"]))
    differs = _differs(now, before)
    return {
        **now,
        "against": {"summary": _sentence(rows, differs), "differs": differs, "rows": rows},
    }


def lines(against: Mapping[str, Json]) -> list[str]:
    """Return the comparison as text: its sentence, then a line a change, at most `SHOWN`; cleaned, not escaped; nothing without rows."""
    if not against:
        return []
    changed = [row for row in against["rows"] if row["change"] != "same"]
    said = [
        f"{row['change']}: {row['name']}: {row['before'] or 'nothing'}; now {row['now'] or 'nothing'}"
        for row in changed[:SHOWN]
    ]
    left = [f"{len(changed) - SHOWN} more changes"] if len(changed) > SHOWN else []
    return [against["summary"], *said, *left]


def _row(now: Check | None, before: Check | None) -> dict[str, Json]:
    one = now or before
    if one is None:
        raise ValueError("a row needs a check on one side")
    change: Change = _change(now, before) if now and before else "new" if now else "gone"
    said = {side: c and c.message for side, c in (("before", before), ("now", now))}
    return {"id": one.id, "name": one.name, "node": one.node, "change": change, **said}


def _change(now: Check, before: Check) -> Change:
    """By level, then by identical records, then by PSNR or error beyond the tolerance, then by certificate; residuals do not count."""
    if now.level != before.level:
        return "worse" if RANK[now.level] > RANK[before.level] else "better"
    for k, (a, b) in enumerate(zip(now.harm[:3], before.harm[:3], strict=False)):
        if a != b and not (k == 1 and _close(a, b)):
            return "worse" if a > b else "better"
    return "same"


def _close(a: float, b: float) -> bool:
    """PSNR in dB where both are above 0, minus a relative error where both are below."""
    return abs(a - b) <= (DECIBEL if min(a, b) > 0 else RELATIVE * abs(b) if max(a, b) < 0 else 0.0)


def _differs(now: Mapping[str, Json], before: Mapping[str, Json]) -> list[str]:
    a, b = now["provenance"], before["provenance"]
    pairs = {
        "the protocol": (now["trace"]["protocol"], before["trace"]["protocol"]),
        "the model": (now["trace"]["model"], before["trace"]["model"]),
        "the data": (now["trace"]["data"], before["trace"]["data"]),
        "the network": (now["trace"].get("links"), before["trace"].get("links")),
        "the recording": _recordings(a["trace"], b["trace"]),
        "the configuration": (a["digest"], b["digest"]),
        "the definition of a metric": (now["metrics"], before["metrics"]),
        **{
            f"the version of {name}": (a["versions"].get(name), b["versions"].get(name))
            for name in ("leakaudit", "torch")
        },
    }
    return [name for name, (x, y) in pairs.items() if x != y]


def _recordings(now: Mapping[str, Json], before: Mapping[str, Json]) -> tuple[Json, Json]:
    """What identifies both recordings; the number that is drawn for each is left out if a record of version 1 has none."""
    names = ["id", "sha256"]
    if "recording" in now and "recording" in before:
        names.append("recording")
    return [now[name] for name in names], [before[name] for name in names]


def _sentence(rows: list[dict[str, Json]], differs: list[str]) -> str:
    counted = {change: sum(row["change"] == change for row in rows) for change in MEANS}
    parts = (
        ", ".join(f"{count} {MEANS[change]}" for change, count in counted.items() if count)
        or "nothing was looked at"
    )
    source = f" Not the same on both sides: {', '.join(differs)}." if differs else ""
    return f"Against the earlier results: {parts}.{source}"
