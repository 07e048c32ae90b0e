"""A table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from leakaudit.registry import renderer
from leakaudit.rendering import gate_text
from leakaudit.rendering.console import printed
from leakaudit.rendering.shown import Shown
from leakaudit.results.comparison import lines
from leakaudit.results.model import CheckRecord, Finding
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
_SPARE = ("SSIM", "LPIPS", "identified", "seconds")  # columns that a narrow terminal leaves out
_ROOM = 110  # columns of a terminal below which `_SPARE` is left out, so that no word is broken
SHOWN = 200  # findings in a terminal; a choice


@renderer("text")
def render(results: Mapping[str, Json], width: int = 120, color: bool = False) -> str:
    """Write text for a terminal.

    Args:
        results: A record.
        width: Columns.
        color: Whether to add a terminal's codes.

    Returns:
        The text.
    """
    shown = Shown.of(results)
    if isinstance(shown.record, CheckRecord):
        return gate_text.text(shown.record)
    return printed([_parts(shown, wide=width >= _ROOM)], width, color)


def _parts(shown: Shown, wide: bool) -> RenderableType:
    """The whole report, part under part; wide: with the columns of `_SPARE`."""
    record = shown.record
    parts: list[RenderableType] = [Text(clean(record.summary), style="bold")]
    parts += map(Text, lines(shown.against))
    if record.findings:
        parts.append(_findings(record.findings, wide))
    left = len(record.findings) - SHOWN
    if left > 0:
        more = f"the {SHOWN} worst findings are shown, {left} more are in the HTML report"
        parts.append(Text(more))
    failed = [one for one in record.findings if one.certificate.name == "FAILED"]
    parts += map(Text, notes(failed))
    for line in not_determined(record.undetermined):
        parts.append(Text(f"not determined: {line}"))
    parts += map(Text, scopes(record.findings))
    return Group(*parts, Text(LIMITS[0], style="dim"))


def _findings(findings: Sequence[Finding], wide: bool) -> Table:
    """The findings as a table, or the `SHOWN` worst ones if there are more."""
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
