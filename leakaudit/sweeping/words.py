"""A sweep in words, from its record alone: one sentence, a table for a terminal, a page of Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from leakaudit.rendering import markdown as md
from leakaudit.rendering.console import printed
from leakaudit.results.wording import REFUSED, clean, refused
from leakaudit.sweeping.points import words
from leakaudit.trace import Json

SHOWN = 200  # rows in a terminal
NO_PROOF = "An attack that fails proves nothing."


def sentence(
    cells: Sequence[Mapping[str, Json]], points: Sequence[Mapping[str, Json]], missing: int
) -> str:
    """Say the worst first, then how much there is."""
    parts = []
    worst = max(
        points,
        key=lambda p: (p["recovered"] / p["records"] if p["records"] else 0.0, p["exact"]),
        default=None,
    )
    if worst is not None and worst["recovered"]:
        at = "".join(f", {k}={words(v)}" for k, v in worst["at"].items())
        parts.append(
            f"{worst['attack']}{at}, heard by {worst['adversary']}, recovers {worst['recovered']} of {worst['records']} records"
        )
    elif points:
        parts.append("no attack of this sweep recovers a record")
    failed = sum(c["status"] != "done" for c in cells)
    counts = [f"{len(cells) - failed} cells have a result"]
    counts += [f"{failed} failed"] if failed else []
    counts += [f"{missing} are missing, the sweep is not complete"] if missing else []
    return "; ".join([*parts, ", ".join(counts)]) + f". {NO_PROOF}"


def table(results: Mapping[str, Json]) -> tuple[list[str], list[list[str]]]:
    """Return headings and one row a point; images have PSNR and SSIM, other data relative errors."""
    held = results["sweep"]
    images = any("psnr" in p for p in held["points"])
    metrics = ("psnr", "ssim") if images else ("relative_error",)
    names = {"psnr": "PSNR", "ssim": "SSIM", "relative_error": "rel. error"}
    many = len({p["adversary"] for p in held["points"]}) > 1
    headings = [
        *held["axes"],
        "attack",
        *(["adversary"] if many else []),
        "cells",
        "refused",
        "records",
        "recovered",
        "exact",
        "labels",
    ]
    headings += [f"{names[m]} {s}" for m in metrics for s in ("best", "median")]
    rows = []
    for p in held["points"]:
        cells = [words(p["at"][name]) if name in p["at"] else "" for name in held["axes"]]
        cells += [p["attack"], *([p["adversary"]] if many else []), str(p["cells"]), refused(p)]
        cells += [str(p[n]) for n in ("records", "recovered", "exact")]
        cells.append("-" if p["labels_found"] is None else f"{p['labels_found']:.2f}")
        cells += [_number(p, m, s) for m in metrics for s in ("best", "median")]
        rows.append([clean(c) for c in cells])
    return headings, rows


def _number(point: Mapping[str, Json], metric: str, style: str) -> str:
    if metric not in point:
        return "-"
    digits = {"psnr": ".1f", "ssim": ".3f", "relative_error": ".3g"}[metric]
    return f"{point[metric][style]:{digits}}"


def troubles(results: Mapping[str, Json]) -> list[str]:
    """Return one line a reason, with the number of cells, for those that failed and for nodes of which nothing is known."""
    found: dict[str, int] = {}
    for cell in results["sweep"]["cells"]:
        where = f"{cell['attack']}, heard by {cell['adversary']}"
        lines = [f"failed: {where}: {cell['says']}"] if cell["status"] != "done" else []
        lines += [f"{where}: {why}" for why in dict.fromkeys(cell["reasons"].values())]
        for line in lines:
            found[line] = found.get(line, 0) + 1
    return [clean(f"{count} x {line}") for line, count in found.items()]


def text(results: Mapping[str, Json], width: int = 140, color: bool = False) -> str:
    """Return the sentence, the table and what went wrong."""
    headings, rows = table(results)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        shown.add_column(clean(heading), overflow="fold")
    for row in rows[:SHOWN]:
        shown.add_row(*map(Text, row))
    rest = [f"{len(rows) - SHOWN} more rows are in report.md"] if len(rows) > SHOWN else []
    below = [Text(REFUSED, style="dim"), *map(Text, [*rest, *troubles(results)])]
    return printed([Text(clean(results["summary"]), style="bold"), shown, *below], width, color)


def markdown(results: Mapping[str, Json]) -> str:
    """Return a page with the figure."""
    headings, rows = table(results)
    figure = f"![{results['sweep']['across']}]({results['sweep']['figure']})"
    parts = [
        "# Sweep",
        f"**{md.escape(results['summary'])}**",
        figure,
        md.table(headings, rows),
        md.escape(REFUSED),
    ]
    made = ", ".join(f"{name} {version}" for name, version in results["sweep"]["versions"].items())
    parts += ["## What gave no result", md.items(wrong)] if (wrong := troubles(results)) else []
    return "\n\n".join([*parts, md.escape(f"Made with {made}.")]) + "\n"
