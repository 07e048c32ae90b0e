"""The figure of a sweep, from its record: PSNR, SSIM and the share that is recovered against one setting, one line an attack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from PIL import Image

from leakaudit.auditing.figure import Line, Panel, draw
from leakaudit.rendering.line_plot import COLOURS
from leakaudit.sweeping.points import words
from leakaudit.trace import Json

SHOWN = 50.0  # dB; more looks the same to an eye
ROWS = 12  # at most
STYLES = ("best", "median", "mean")
TITLES = {"psnr": f"PSNR, dB, up to {SHOWN:g}", "ssim": "SSIM", "relative_error": "relative error"}

Point = Mapping[str, Json]


def figure(record: Mapping[str, Json]) -> Image.Image:
    """Draw one row of panels an adversary and place on the axes that are not drawn across; the first `ROWS` of them."""
    held = record["sweep"]
    axis, points = held["across"], held["points"]
    values = _sorted(held["axes"].get(axis, [None]))
    lines = list(dict.fromkeys(_line(p, axis) for p in points))
    rows: dict[str, list[Point]] = {}
    for point in points:
        rows.setdefault(_row(point, axis), []).append(point)
    shown = list(rows.items())[:ROWS]
    drawn = [
        (title, _panels(group, axis, values, lines, float(held["psnr"]))) for title, group in shown
    ]
    more = (
        f"; {len(rows) - len(shown)} more rows are in results.json"
        if len(rows) > len(shown)
        else ""
    )
    legend = {name: name for name in lines[: len(COLOURS)]}
    labels = ["all" if v is None else words(v) for v in values]
    says = f"median of all records and seeds thick, best thin, mean dashed{more}"
    return draw(
        drawn or [("no cell has a result", [Panel("PSNR", ())])], labels, legend, axis or "", says
    )


def _panels(
    group: Sequence[Point],
    axis: str | None,
    values: Sequence[Json],
    lines: Sequence[str],
    psnr: float,
) -> list[Panel]:
    images = any("psnr" in p for p in group)
    panels = []
    for metric in ("psnr", "ssim") if images else ("relative_error",):
        made = [
            Line(name, style, _column(group, axis, values, name, metric, style))
            for name in lines
            for style in STYLES
        ]
        panels.append(Panel(TITLES[metric], tuple(made), 0.0, 1.0 if metric == "ssim" else None))
    shares = tuple(
        Line(name, "rate", _column(group, axis, values, name, "recovered", "")) for name in lines
    )
    return [*panels, Panel(f"recovered: {psnr:g} dB or more", shares, 0.0, 1.0)]


def _column(
    group: Sequence[Point],
    axis: str | None,
    values: Sequence[Json],
    name: str,
    metric: str,
    style: str,
) -> list[float | None]:
    """Return one line's values; a line without this axis is the same at every point."""
    mine = [p for p in group if _line(p, axis) == name]
    at = {
        words(v): next(
            (p for p in mine if axis not in p["at"] or words(p["at"][axis]) == words(v)), None
        )
        for v in values
    }
    return [None if p is None else _value(p, metric, style) for p in at.values()]


def _value(point: Point, metric: str, style: str) -> float | None:
    if metric == "recovered":
        return point["recovered"] / point["records"] if point["records"] else None
    value = point[metric][style] if metric in point else None
    return None if value is None else min(float(value), SHOWN) if metric == "psnr" else float(value)


def _line(point: Point, axis: str | None) -> str:
    """Name of a line: the attack, and the hyper-parameters of its own that vary."""
    own = [
        f"{k.split('.', 1)[1]}={words(v)}"
        for k, v in point["at"].items()
        if k.startswith(f"{point['attack']}.") and k != axis
    ]
    return " ".join([point["attack"], *own])


def _row(point: Point, axis: str | None) -> str:
    rest = [
        f"{k}={words(v)}"
        for k, v in point["at"].items()
        if k != axis and not k.startswith(f"{point['attack']}.")
    ]
    return ", ".join([*rest, f"heard by {point['adversary']}"])


def _sorted(values: Iterable[Json]) -> list[Json]:
    """Numbers from small to large, words as they were named."""
    kept = list(values)
    numbers = all(isinstance(v, int | float) or v == "inf" for v in kept)
    return sorted(kept, key=float) if numbers else kept
