"""A sweep as text and as a page of Markdown, made only from its record."""

from __future__ import annotations

from collections import Counter

from rich.console import RenderableType
from rich.text import Text

from leakaudit.core.quantities import Data, Place, Quantity, shown
from leakaudit.reporting.findings.wording import (
    REFUSED,
    axis_value,
    clean,
    is_attacked,
    refusal,
)
from leakaudit.reporting.rendering import markdown as md
from leakaudit.reporting.rendering import tables
from leakaudit.reporting.results.model import (
    SweepPart,
    SweepPoint,
    SweepRecord,
    curves_of,
    decoded,
    given,
    statistics,
    trained_of,
)

# Columns that a narrow terminal omits.
SPARE = ["cells", "refused", "records"]
for _one in shown(Place.CURVE, data=Data.IMAGES):
    SPARE += [f"{_one.words} best"] * _one.spare + [f"{_one.words} median"]
LAST = " (last)"  # end of the heading of a quantity of the training
COUNTS = ("cells", "refused", "records", "recovered", "exact", "labels")
SHOWN = 200  # most rows in a terminal; report.md has all rows


def text(record: SweepRecord, width: int | None = None) -> list[RenderableType]:
    """Return the summary, the table and the failures, for a terminal."""
    headings, rows = table(record.sweep)
    columns = []
    for heading in headings:
        right = is_number(heading)
        columns.append(tables.Column(clean(heading), right=right, spare=heading in SPARE))
    shown = tables.table(columns, rows[:SHOWN], width)
    below = []
    if any(map(is_attacked, record.sweep.points)):
        below.append(Text(REFUSED, style="dim"))
    if len(rows) > SHOWN:
        below.append(Text(f"{len(rows) - SHOWN} more rows are in report.md"))
    below += map(Text, troubles(record.sweep))
    return [Text(clean(record.summary), style="bold"), shown, *below]


def markdown(record: SweepRecord) -> str:
    """Return a page that includes the figure."""
    sweep = record.sweep
    headings, rows = table(sweep)
    parts = ["# Sweep", f"**{md.escape(record.summary)}**"]
    if sweep.figure is not None:
        parts.append(f"![{md.escape(sweep.across)}]({sweep.figure})")
    parts.append(md.table(list(map(md.escape, headings)), rows))
    if any(map(is_attacked, sweep.points)):
        parts.append(md.escape(REFUSED))
    wrong = troubles(sweep)
    if wrong:
        parts += ["## Failures and refusals", md.items(wrong)]
    made = ", ".join(f"{name} {version}" for name, version in sweep.versions.items())
    parts.append(md.escape(f"Made with {made}."))
    return "\n\n".join(parts) + "\n"


def table(sweep: SweepPart) -> tuple[list[str], list[list[str]]]:
    """Return a row per point: PSNR and SSIM of images, relative errors of other data."""
    attacked = any(map(is_attacked, sweep.points)) or not sweep.points
    quantities = curves_of(sweep.points) if attacked else ()
    trained = trained_of(sweep.points)
    many = len({point.adversary for point in sweep.points}) > 1
    headings = [*sweep.axes, *(["attack"] if attacked else [])]
    if many:
        headings.append("adversary")
    headings += COUNTS if attacked else COUNTS[:1]
    for one in quantities:
        headings += [f"{one.words} best", f"{one.words} median"]
    headings += [f"{name.replace('_', ' ')}{LAST}" for name in trained]
    rows = []
    for point in sweep.points:
        cells = _place(sweep, point)
        if attacked:
            cells.append(point.attack)
        if many:
            cells.append(point.adversary)
        cells += _counts(point) if attacked else [str(point.cells)]
        for one in quantities:
            cells += _statistics(point, one)
        cells += [_trained(point, name) for name in trained]
        rows.append(list(map(clean, cells)))
    return headings, rows


def is_number(heading: str) -> bool:
    """Return whether a column of `table` has numbers."""
    return heading in COUNTS or heading.endswith(("best", "median", LAST))


def _place(sweep: SweepPart, point: SweepPoint) -> list[str]:
    cells = []
    for axis in sweep.axes:
        cell = ""
        if axis in point.at:
            cell = axis_value(point.at[axis])
        cells.append(cell)
    return cells


def _counts(point: SweepPoint) -> list[str]:
    labels = "-"
    if point.labels_found is not None:
        labels = f"{point.labels_found:.2f}"
    return [
        str(point.cells),
        refusal(given(point.attacked, None), given(point.refused, None)),
        str(point.records),
        str(point.recovered),
        str(point.exact),
        labels,
    ]


def _statistics(point: SweepPoint, one: Quantity) -> tuple[str, str]:
    values = statistics(point, one)
    if values is None:
        return "-", "-"
    form = one.coarse or one.form
    return f"{values.best:{form}}", f"{values.median:{form}}"


def _trained(point: SweepPoint, name: str) -> str:
    values = given(point.trained, {}).get(name)
    if values is None or decoded(values.mean) is None:
        return "-"
    said = f"{decoded(values.mean):.4g}"
    if values.low is None:
        return said
    return f"{said} [{decoded(values.low):.4g}, {decoded(values.high):.4g}]"


def troubles(sweep: SweepPart) -> list[str]:
    """Return one line for each reason, with the number of cells.

    There are reasons for cells that failed, and for nodes for which no leak is determined.
    """
    found: Counter[str] = Counter()
    for cell in sweep.cells:
        where = f"{cell.attack}, adversary {cell.adversary}"
        if cell.status != "done":
            found[f"failed: {where}: {cell.says}"] += 1
        for why in dict.fromkeys(cell.reasons.values()):
            found[f"{where}: {why}"] += 1
    return [clean(f"{count} x {line}") for line, count in found.items()]
