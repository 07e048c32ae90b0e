"""The page of a sweep: the worst setting first, then the figure and a row for every setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from leakaudit._util.plural import counted
from leakaudit.reporting.findings.overview import Advice, Overview
from leakaudit.reporting.findings.wording import LIMITS, REFUSED, axis_value
from leakaudit.reporting.findings.worst_case import FAILURE, who, whom
from leakaudit.reporting.rendering import sweep_text
from leakaudit.reporting.results.model import SweepPart, SweepPoint, SweepRecord

SHOWN = 1000  # most rows of the table; results.json has all


def content(record: SweepRecord, figure: Markup) -> Mapping[str, object]:
    """Return the variables of ``sweep.html.j2``."""
    sweep = record.sweep
    headings, rows = sweep_text.table(sweep)
    numbers = list(map(sweep_text.is_number, headings))
    levels = []
    for point in sweep.points:
        levels.append("error" if point.exact else "warning" if point.recovered else "note")
    troubles = sweep_text.troubles(sweep)
    sections = [("figure", "Results"), ("points", "Settings")]
    if troubles:
        sections.append(("troubles", "Failures and refusals"))
    sections += [("limits", "Limits of this report"), ("provenance", "Provenance")]
    return {
        "title": "leakaudit: sweep",
        "source": "results.json",
        "first": _first(record),
        "sections": sections,
        "figure": figure,
        "headings": headings,
        "numbers": numbers,
        "rows": list(zip(levels, rows, strict=True))[:SHOWN],
        "left_out": max(0, len(rows) - SHOWN),
        "refused": REFUSED,
        "troubles": troubles,
        "limits": LIMITS,
        "provenance": _provenance(sweep),
    }


def _first(record: SweepRecord) -> Overview:
    sweep = record.sweep
    worst = max(sweep.points, key=_harm, default=None)
    held = sum(not point.recovered for point in sweep.points)
    seeds = len({cell.seed for cell in sweep.cells})
    says = "No setting has a result."
    if worst is not None:
        says = _says(worst)
    facts = [
        ("settings", f"{held} of {len(sweep.points)} without a recovered record"),
        ("recovered means", f"PSNR of {sweep.psnr:g} dB or more, or bit for bit"),
        ("cells", _cells(sweep)),
    ]
    if worst is not None:
        facts.insert(0, ("to whom", f"{whom(worst.adversary)}, by attack {worst.attack}"))
    partial = ""
    if not record.complete:
        partial = "Some cells have not been run; the results are incomplete."
    recovered = worst is not None and worst.recovered
    exact = worst is not None and worst.exact
    return Overview(
        topic=f"Sweep over {', '.join(sweep.axes) or 'seeds only'}",
        says=says,
        certainty=(
            f"Measured by comparison with the originals, with {counted(seeds, 'seed')} for each "
            f"setting. {FAILURE}"
        ),
        level="error" if exact else "warning" if recovered else "note",
        badge="Leak" if exact else "Recovered" if recovered else "Nothing recovered",
        advice=_advice(worst, held),
        facts=facts,
        partial=partial,
    )


def _says(worst: SweepPoint) -> str:
    place = ", ".join(f"{axis} = {axis_value(value)}" for axis, value in worst.at.items())
    at = f"With {place}, " if place else ""
    someone = whom(worst.adversary) if at else who(worst.adversary)
    if not worst.recovered:
        return f"{who(worst.adversary)} recovered no training record at any setting."
    share = f"{worst.recovered} of {worst.records}"
    if worst.recovered == worst.records:
        share = f"all {worst.records}"
    how = ""
    if worst.exact == worst.recovered:
        how = " exactly"
    elif worst.exact:
        how = f", {worst.exact} of them exactly"
    return f"{at}{someone} recovered {share} training records{how}."


def _advice(worst: SweepPoint | None, held: int) -> tuple[Advice, ...]:
    advice = []
    if worst is not None and worst.recovered:
        advice.append(
            (
                "See the images of the worst setting: record it and attack the trace.",
                f"leakaudit attack trace.pt --attack {worst.attack}",
            )
        )
    if held:
        advice.append(
            (
                "Do not rely on a setting only because these attacks failed: compute what it "
                "guarantees.",
                "leakaudit bound scenario.toml",
            )
        )
    advice.append(("Test the claimed epsilon at the setting that you choose.", "leakaudit audit"))
    return tuple(advice)


def _harm(point: SweepPoint) -> tuple[float, int]:
    share = point.recovered / point.records if point.records else 0.0
    return share, point.exact


def _cells(sweep: SweepPart) -> str:
    failed = sum(cell.status != "done" for cell in sweep.cells)
    parts = [f"{len(sweep.cells) - failed} with a result"]
    if failed:
        parts.append(f"{failed} failed")
    if sweep.missing:
        parts.append(f"{sweep.missing} missing")
    return ", ".join(parts)


def _provenance(sweep: SweepPart) -> Sequence[tuple[str, str]]:
    versions = ", ".join(
        f"{name} {version or 'absent'}" for name, version in sweep.versions.items()
    )
    return (("versions", versions), ("configuration", f"sha256 {sweep.digest}"))
