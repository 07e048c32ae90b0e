"""Results of attacks plotted against epsilon.

PSNR, SSIM or relative error, and success rates with their theoretical limits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup
from msgspec import UnsetType

from leakaudit.rendering import plots
from leakaudit.rendering.html.inline import inline
from leakaudit.results.model import (
    AuditPart,
    AuditRecord,
    CurvePoint,
    CurveValues,
    Extended,
    RunRecord,
    VerdictEntry,
    decoded,
    given,
)
from leakaudit.results.wording import REFUSED, point_of, refusal

METRICS = {
    "psnr": "PSNR, dB (values above 60 are shown as 60)",
    "ssim": "SSIM",
    "relative_error": "relative error",
}
HIGHEST = 60.0  # dB; equal images have 200, which would compress everything else
WIDTH = 340.0  # width of a figure in pixels
STYLES = {"median": "median", "best": "best", "mean": "mean"}  # styles and their legend texts


@dataclass(frozen=True)
class Drawn:
    """One figure and its heading.

    Attributes:
        title: What the figure shows.
        picture: The figure with its legend.
    """

    title: str
    picture: Markup


def panels(record: RunRecord) -> list[tuple[str, list[Drawn]]]:
    """Draw the results of every adversary of an audit.

    Args:
        record: Any record; only an audit has curves.

    Returns:
        Adversaries and their figures; an adversary without a curve has no figures.
    """
    if not isinstance(record, AuditRecord):
        return []
    audit = record.audit
    every: set[float] = set()
    for curve in audit.curves:
        every.add(_key(curve.epsilon))
    for verdict in audit.verdicts:
        every.add(_key(verdict.epsilon))
    points = sorted(every)
    names = tuple(map(_name, points))
    drawn = []
    number = 0  # number of the figure on the page
    for who in dict.fromkeys(curve.adversary for curve in audit.curves):
        pictures = []
        for panel in [*_quality(audit, points, who), *_success(audit, points, who)]:
            placed = replace(panel, axis="epsilon", points=names)
            pictures.append(_drawn(placed, f"curves{number}"))
            number += 1
        drawn.append((who, pictures))
    return drawn


def refusals(record: RunRecord) -> list[str]:
    """Describe at which grid points attacks of an audit returned nothing for some nodes.

    Args:
        record: Any record; only an audit has points.

    Returns:
        How such nodes are counted, then one line per point; empty if every attack returned a
        result for every node.
    """
    said = []
    if isinstance(record, AuditRecord):
        for curve in record.audit.curves:
            refused = given(curve.refused, 0)
            if refused:
                where = f"{curve.attack} at {point_of(curve.epsilon)}, by {curve.adversary}"
                said.append(f"{where}: {refusal(given(curve.attacked, 0), refused)}")
    return [REFUSED, *said] if said else []


def _key(epsilon: Extended) -> float:
    """Epsilon as a number: infinity without noise, 0 for constants as configured."""
    return float(decoded(epsilon) or 0.0)


def _metric(curve: CurvePoint, metric: str) -> CurveValues | None:
    found = {"psnr": curve.psnr, "ssim": curve.ssim, "relative_error": curve.relative_error}[metric]
    return None if isinstance(found, UnsetType) else found


def _quality(audit: AuditPart, points: Sequence[float], who: str) -> list[plots.Panel]:
    """The quality of reconstructions, one panel per metric."""
    mine = [curve for curve in audit.curves if curve.adversary == who]
    images = any(_metric(curve, "psnr") for curve in mine)
    panels = []
    for metric, title in METRICS.items():
        if metric == "relative_error" and images:
            continue
        lines = []
        for attack in dict.fromkeys(curve.attack for curve in mine):
            lines += _lines(attack, [c for c in mine if c.attack == attack], metric, points)
        if lines:
            log = metric == "relative_error"
            low = None if log else 0.0
            panels.append(plots.Panel(f"{title}, by {who}", tuple(lines), low=low, log=log))
    return panels


def _lines(
    attack: str, curves: Sequence[CurvePoint], metric: str, points: Sequence[float]
) -> list[plots.Line]:
    """Median, best and mean of one attack; empty if the metric was not measured."""
    at: dict[float, CurveValues] = {}
    for curve in curves:
        found = _metric(curve, metric)
        if found is not None:
            at[_key(curve.epsilon)] = found
    if not at:
        return []
    top = HIGHEST if metric == "psnr" else math.inf
    values: dict[str, list[float | None]] = {style: [] for style in STYLES}
    for point in points:
        found = at.get(point)
        for style, column in values.items():
            value = None
            if found is not None:
                of = {"median": found.median, "best": found.best, "mean": found.mean}
                value = min(of[style], top)
            column.append(value)
    return [plots.Line(attack, style, column) for style, column in values.items()]


def _success(audit: AuditPart, points: Sequence[float], who: str) -> list[plots.Panel]:
    """Measured success rates, with the upper limit that each guarantee implies."""
    tests = [one for one in audit.verdicts if one.adversary == who and _figure(one, "trials")]
    panels = []
    for test, attack in dict.fromkeys((one.test, one.attack) for one in tests):
        mine = [one for one in tests if (one.test, one.attack) == (test, attack)]
        rates = {}
        for one in mine:
            rates[_key(one.epsilon)] = (_figure(one, "hits") or 0) / (_figure(one, "trials") or 1)
        measured = [rates.get(point) for point in points]
        lines = [plots.Line(f"{attack}, measured", "rate", measured)]
        for name in dict.fromkeys(one.promise.name for one in mine if one.promise):
            at: dict[float, float | None] = {}
            for one in mine:
                if one.promise and one.promise.name == name:
                    at[_key(one.epsilon)] = _figure(one, "ceiling")
            ceiling = [at.get(point) for point in points]
            lines.append(plots.Line(f"at most, by {name}", "ceiling", ceiling))
        title = f"{test}: success rate, by {who}"
        panels.append(plots.Panel(title, tuple(lines), low=0.0, high=1.0))
    return panels


def _figure(one: VerdictEntry, name: str) -> float | None:
    """A number that a test counted, None if the test has no such number."""
    value = one.figures.get(name)
    return value if isinstance(value, int | float) else None


def _drawn(panel: plots.Panel, name: str) -> Drawn:
    """Draw a panel without its title, which becomes a heading of the page.

    Args:
        panel: The panel.
        name: Name of the figure, unique on the page.
    """
    legend = {line.name: line.name for line in panel.lines}
    styles = {}
    if any(line.style == "median" for line in panel.lines):
        styles = STYLES
    figure = plots.curves([("", [replace(panel, title="")])], legend, styles, wide=WIDTH)
    label = f"{panel.title} at epsilon {', '.join(panel.points)}. {_said(panel.lines)}"
    titles = {}
    for k, line in enumerate(panel.lines):
        if plots.STYLES[line.style].marked:
            titles[f"line{k}"] = _titles(panel, line)
    return Drawn(panel.title, inline(plots.svg(figure, name), label, titles))


def _titles(panel: plots.Panel, marked: plots.Line) -> list[str]:
    """The tooltip of each marker: all values with its name at that point."""
    found = []
    name = marked.name
    mine = [line for line in panel.lines if line.name == name]
    for k, point in enumerate(panel.points):
        if not plots.is_drawn(marked.values[k], bool(panel.log)):
            continue
        values = []
        for line in mine:
            value = line.values[k]
            if value is not None:
                values.append(f"{line.style} {value:.3g}")
        found.append(f"{name} at epsilon {point}: {', '.join(values)}")
    return found


def _said(lines: Sequence[plots.Line]) -> str:
    """A description of the lines for screen readers."""
    said = []
    for one in lines:
        numbers = ["-" if v is None else f"{v:.3g}" for v in one.values]
        name = f"{one.name}, {one.style}" if one.style in STYLES else one.name
        said.append(f"{name}: {', '.join(numbers)}")
    return "; ".join(said)


def _name(point: float) -> str:
    if point == math.inf:
        return "inf"
    if point == 0:
        return "as set"
    return f"{point:g}"
