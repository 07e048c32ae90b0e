"""A sweep in words, from its record: one sentence, a table for a terminal, a page of Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from leakaudit.rendering import markdown as md
from leakaudit.rendering.console import printed
from leakaudit.results.wording import REFUSED, clean, refused
from leakaudit.sweeping.points import words
from leakaudit.sweeping.status import DONE
from leakaudit.trace import Json

SHOWN = 200  # most rows in a terminal; report.md has all
NO_PROOF = "An attack that fails proves nothing."
NAMES = {"psnr": "PSNR", "ssim": "SSIM", "relative_error": "rel. error"}
DIGITS = {"psnr": ".1f", "ssim": ".3f", "relative_error": ".3g"}


def sentence(
    cells: Sequence[Mapping[str, Json]], points: Sequence[Mapping[str, Json]], missing: int
) -> str:
    """Tell the worst first, then how much there is.

    Args:
        cells: What results.json holds of the cells.
        points: The same of the points.
        missing: Number of cells that are not there.
    """
    parts = []
    worst = max(points, key=_harm, default=None)
    if worst is not None and worst["recovered"]:
        at = "".join(f", {k}={words(v)}" for k, v in worst["at"].items())
        parts.append(
            f"{worst['attack']}{at}, heard by {worst['adversary']}, "
            f"recovers {worst['recovered']} of {worst['records']} records"
        )
    elif points:
        parts.append("no attack of this sweep recovers a record")
    failed = sum(c["status"] != DONE for c in cells)
    counts = [f"{len(cells) - failed} cells have a result"]
    if failed:
        counts.append(f"{failed} failed")
    if missing:
        counts.append(f"{missing} are missing, the sweep is not complete")
    return "; ".join([*parts, ", ".join(counts)]) + f". {NO_PROOF}"


def _harm(point: Mapping[str, Json]) -> tuple[float, int]:
    """Return the share of records that a point recovers, and how many exactly."""
    share = point["recovered"] / point["records"] if point["records"] else 0.0
    return share, point["exact"]


def table(results: Mapping[str, Json]) -> tuple[list[str], list[list[str]]]:
    """Return headings and one row per point; images have PSNR and SSIM, other data relative errors.

    Args:
        results: What results.json holds.
    """
    held = results["sweep"]
    points = held["points"]
    images = any("psnr" in p for p in points)
    metrics = ("psnr", "ssim") if images else ("relative_error",)
    many = len({p["adversary"] for p in points}) > 1
    headings = [*held["axes"], "attack"]
    if many:
        headings.append("adversary")
    headings += ["cells", "refused", "records", "recovered", "exact", "labels"]
    for metric in metrics:
        headings += [f"{NAMES[metric]} best", f"{NAMES[metric]} median"]
    rows = []
    for p in points:
        cells = [words(p["at"][name]) if name in p["at"] else "" for name in held["axes"]]
        cells.append(p["attack"])
        if many:
            cells.append(p["adversary"])
        cells += [str(p["cells"]), refused(p)]
        cells += [str(p["records"]), str(p["recovered"]), str(p["exact"])]
        cells.append("-" if p["labels_found"] is None else f"{p['labels_found']:.2f}")
        for metric in metrics:
            cells += [_number(p, metric, "best"), _number(p, metric, "median")]
        rows.append(list(map(clean, cells)))
    return headings, rows


def _number(point: Mapping[str, Json], metric: str, style: str) -> str:
    return f"{point[metric][style]:{DIGITS[metric]}}" if metric in point else "-"


def troubles(results: Mapping[str, Json]) -> list[str]:
    """Return one line per reason, with the number of cells.

    There are reasons for cells that failed, and for nodes of which nothing is known.

    Args:
        results: What results.json holds.
    """
    found: Counter[str] = Counter()
    for cell in results["sweep"]["cells"]:
        where = f"{cell['attack']}, heard by {cell['adversary']}"
        if cell["status"] != DONE:
            found[f"failed: {where}: {cell['says']}"] += 1
        for why in dict.fromkeys(cell["reasons"].values()):
            found[f"{where}: {why}"] += 1
    return [clean(f"{count} x {line}") for line, count in found.items()]


def text(results: Mapping[str, Json], width: int = 140, color: bool = False) -> str:
    """Return the sentence, the table and what went wrong, for a terminal.

    Args:
        results: What results.json holds.
        width: Columns of the terminal.
        color: Whether to use its colours.
    """
    headings, rows = table(results)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        shown.add_column(clean(heading), overflow="fold")
    for row in rows[:SHOWN]:
        shown.add_row(*map(Text, row))
    below = [Text(REFUSED, style="dim")]
    if len(rows) > SHOWN:
        below.append(Text(f"{len(rows) - SHOWN} more rows are in report.md"))
    below += map(Text, troubles(results))
    return printed([Text(clean(results["summary"]), style="bold"), shown, *below], width, color)


def markdown(results: Mapping[str, Json]) -> str:
    """Return a page with the figure.

    Args:
        results: What results.json holds.
    """
    held = results["sweep"]
    headings, rows = table(results)
    parts = [
        "# Sweep",
        f"**{md.escape(results['summary'])}**",
        f"![{held['across']}]({held['figure']})",
        md.table(headings, rows),
        md.escape(REFUSED),
    ]
    wrong = troubles(results)
    if wrong:
        parts += ["## What gave no result", md.items(wrong)]
    made = ", ".join(f"{name} {version}" for name, version in held["versions"].items())
    parts.append(md.escape(f"Made with {made}."))
    return "\n\n".join(parts) + "\n"
