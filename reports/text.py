"""A table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from leakaudit.registry import renderer
from leakaudit.rendering.console import printed
from leakaudit.results.comparison import lines
from leakaudit.results.wording import LIMITS, by_reason, clean, harm, scopes, table
from leakaudit.trace import Json

_STYLES = {"exact": "bold red", "approximate": "yellow", "failed": "dim"}
_ROOM = 110  # columns of a terminal below which these are left out, so that no word is broken
_SPARE = ("SSIM", "LPIPS", "identified", "seconds")
SHOWN = 200  # findings in a terminal
_RIGHT = ("node", "PSNR dB", "SSIM", "LPIPS", "rel. error", "seconds")


@renderer("text")
def render(results: Mapping[str, Json], width: int = 120, color: bool = False) -> str:
    """Text of `width` columns; color adds a terminal's codes."""
    return printed([_parts(results, wide=width >= _ROOM)], width, color)


def _parts(results: Mapping[str, Json], wide: bool) -> RenderableType:
    parts: list[RenderableType] = [Text(clean(results["summary"]), style="bold")]
    parts += [Text(line) for line in lines(results.get("against") or {})]
    if results["findings"]:
        parts.append(_findings(results, wide))
    if left := len(results["findings"]) - SHOWN:
        parts += [
            Text(f"the {SHOWN} worst findings are shown, {left} more are in the HTML report")
        ] * (left > 0)
    failed = [f for f in results["findings"] if f["certificate"]["name"] == "FAILED"]
    parts += [Text(line) for line in by_reason(failed, "note")]
    parts += [
        Text(f"not determined: {line}") for line in by_reason(results["undetermined"], "reason")
    ]
    parts += [Text(line) for line in scopes(results["findings"])]
    return Group(*parts, Text(LIMITS[0], style="dim"))


def _findings(results: Mapping[str, Json], wide: bool) -> Table:
    some = results["findings"]
    if len(some) > SHOWN:
        some = sorted(some, key=harm, reverse=True)[:SHOWN]
    headings, rows = table({**results, "findings": some})
    kept = [k for k, heading in enumerate(headings) if wide or heading not in _SPARE]
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for k in kept:
        out.add_column(
            headings[k], justify="right" if headings[k] in _RIGHT else "left", overflow="fold"
        )
    for row in rows:
        out.add_row(*(Text(row[k], style=_STYLES.get(row[k], "")) for k in kept))
    return out
