"""A table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from leakaudit.registry import renderer
from leakaudit.rendering import audit_text, gate_text, sweep_text
from leakaudit.rendering.console import printed
from leakaudit.rendering.shown import Shown
from leakaudit.results import model
from leakaudit.results.comparison import lines
from leakaudit.results.model import AuditRecord, CheckRecord, Finding
from leakaudit.results.wording import (
    LIMITS,
    clean,
    harm,
    not_determined,
    notes,
    scopes,
    table,
)
from leakaudit.trace import Json

_STYLES = {"exact": "bold red", "approximate": "yellow", "failed": "dim"}
_RIGHT = ("node", "PSNR dB", "SSIM", "LPIPS", "rel. error", "seconds")  # columns of numbers
_SPARE = ("SSIM", "LPIPS", "identified", "seconds")  # columns that a narrow terminal omits
_ROOM = 110  # terminals with fewer columns omit `_SPARE`, so that no word is broken
SHOWN = 200  # findings shown in a terminal; a choice
WIDTH = 120  # terminal columns that the table of findings needs without line breaks


@renderer("text")
def render(results: Mapping[str, Json], width: int | None = None, color: bool = False) -> str:
    """Return text for a terminal.

    Args:
        results: A record of any kind.
        width: Columns; None for as many as the tables of this kind need.
        color: Whether to add terminal codes for colours.

    Returns:
        The text.
    """
    if results["kind"] == "sweep":
        sweep = model.of_sweep(results)
        return printed(sweep_text.text(sweep), width or sweep_text.WIDTH, color)
    shown = Shown.of(results)
    if isinstance(shown.record, CheckRecord):
        return gate_text.text(shown.record)
    if isinstance(shown.record, AuditRecord):
        audited = printed(audit_text.text(shown.record), width or audit_text.WIDTH, color)
        return audited + "".join(f"{line}\n" for line in lines(shown.against))
    columns = width or WIDTH
    return printed([_parts(shown, wide=columns >= _ROOM)], columns, color)


def _parts(shown: Shown, wide: bool) -> RenderableType:
    """The whole report from top to bottom; `wide` includes the columns of `_SPARE`."""
    record = shown.record
    parts: list[RenderableType] = [Text(clean(record.summary), style="bold")]
    parts += map(Text, lines(shown.against))
    if record.findings:
        parts.append(_findings(record.findings, wide))
    left = len(record.findings) - SHOWN
    if left > 0:
        more = f"only the {SHOWN} worst findings are shown; the HTML report has {left} more"
        parts.append(Text(more))
    failed = [one for one in record.findings if one.certificate.name == "FAILED"]
    parts += map(Text, notes(failed))
    for line in not_determined(record.undetermined):
        parts.append(Text(f"not determined: {line}"))
    parts += map(Text, scopes(record.findings))
    return Group(*parts, Text(LIMITS[0], style="dim"))


def _findings(findings: Sequence[Finding], wide: bool) -> Table:
    """The findings as a table, limited to the `SHOWN` worst ones."""
    some = findings
    if len(some) > SHOWN:
        some = sorted(some, key=harm, reverse=True)[:SHOWN]
    headings, rows = table(some)
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    kept = []
    for k, heading in enumerate(headings):
        if not wide and heading in _SPARE:
            continue
        kept.append(k)
        if heading in _RIGHT:
            out.add_column(heading, justify="right", overflow="fold")
        else:
            out.add_column(heading, overflow="fold")
    for row in rows:
        out.add_row(*(Text(row[k], style=_STYLES.get(row[k], "")) for k in kept))
    return out
