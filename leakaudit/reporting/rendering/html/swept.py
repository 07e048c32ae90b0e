"""The page of a sweep: the worst setting first, then the figure and a row for every setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from leakaudit._util.plural import counted
from leakaudit.reporting.findings.overview import Advice, Overview
from leakaudit.reporting.findings.wording import (
    REFUSED,
    is_attacked,
    limits,
    sweep_counts,
    sweep_says,
    worst_setting,
)
from leakaudit.reporting.findings.worst_case import FAILURE, whom
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
    attacked = any(map(is_attacked, sweep.points))
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
        "limits": limits(attacks=attacked),
        "attacked": attacked,
        "provenance": _provenance(sweep),
    }


def _first(record: SweepRecord) -> Overview:
    sweep = record.sweep
    worst = worst_setting(sweep.points)
    held = sum(not point.recovered for point in sweep.points)
    seeds = len({cell.seed for cell in sweep.cells})
    facts = [
        ("settings", f"{held} of {len(sweep.points)} without a recovered record"),
        ("recovered means", f"PSNR of {sweep.psnr:g} dB or more, or bit for bit"),
        ("cells", sweep_counts(sweep.cells, sweep.missing)),
    ]
    if worst is not None:
        facts.insert(0, ("to whom", whom(worst.adversary)))
    partial = ""
    if not record.complete:
        partial = "Some cells have not been run; the results are incomplete."
    recovered = worst is not None and worst.recovered
    exact = worst is not None and worst.exact
    return Overview(
        topic=f"Sweep over {', '.join(sweep.axes) or 'seeds only'}",
        says=sweep_says(worst),
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


def _provenance(sweep: SweepPart) -> Sequence[tuple[str, str]]:
    versions = ", ".join(
        f"{name} {version or 'absent'}" for name, version in sweep.versions.items()
    )
    return (("versions", versions), ("configuration", f"sha256 {sweep.digest}"))
