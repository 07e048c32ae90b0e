"""What attacks get against epsilon.

PSNR, SSIM or relative error, and success rates under their ceilings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup
from msgspec import UnsetType

from leakaudit.rendering.html import svg
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

# Pixels of a panel, and of the margins around its lines.
WIDTH = 340.0
HEIGHT = 240.0
LEFT = 46.0
RIGHT = 14.0
TOP = 14.0
BOTTOM = 40.0
INSET = 14.0  # from the margin to the first and the last point
METRICS = {
    "psnr": "PSNR, dB (60 stands for more)",
    "ssim": "SSIM",
    "relative_error": "relative error",
}
COLOURS = 5  # of the page's style
HIGHEST = 60.0  # dB; equal images count as 200, which would flatten everything else
NAMED = 8  # points of the grid that are named; of more only every second, third, ...
TICKS = 5  # about how many numbers stand beside a panel


@dataclass(frozen=True)
class Line:
    """One line of a panel.

    Attributes:
        name: In the legend.
        values: One for each point of the grid, None if there is none.
        look: ``c0`` to ``c4``, and a kind of dash.
        dots: Whether its points are marked.
    """

    name: str
    values: tuple[float | None, ...]
    look: str
    dots: bool = True


@dataclass(frozen=True)
class Panel:
    """One picture, and its lines as a legend.

    Attributes:
        title: What it shows.
        picture: The drawing.
        legend: Names of the lines.
    """

    title: str
    picture: Markup
    legend: Markup


def panels(record: RunRecord) -> list[tuple[str, list[Panel]]]:
    """Draw what every adversary of an audit got.

    Args:
        record: Any record; only an audit has curves.

    Returns:
        Adversary and panels; an adversary of a single epsilon without a curve has none.
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
    drawn = []
    for who in dict.fromkeys(curve.adversary for curve in audit.curves):
        drawn.append((who, [*_quality(audit, points, who), *_success(audit, points, who)]))
    return drawn


def refusals(record: RunRecord) -> list[str]:
    """Say at which points attacks of an audit gave nothing on some nodes, and what these count as.

    Args:
        record: Any record; only an audit has points.

    Returns:
        One line for each point, none if every attack gave something.
    """
    said = []
    if isinstance(record, AuditRecord):
        for curve in record.audit.curves:
            refused = given(curve.refused, 0)
            if refused:
                where = f"{curve.attack} at {point_of(curve.epsilon)}, heard by {curve.adversary}"
                said.append(f"{where}: {refusal(given(curve.attacked, 0), refused)}")
    return [REFUSED, *said] if said else []


def _key(epsilon: Extended) -> float:
    """As a number: infinity is without noise, 0 for constants as they were configured."""
    return float(decoded(epsilon) or 0.0)


def _metric(curve: CurvePoint, metric: str) -> CurveValues | None:
    found = {"psnr": curve.psnr, "ssim": curve.ssim, "relative_error": curve.relative_error}[metric]
    return None if isinstance(found, UnsetType) else found


def _quality(audit: AuditPart, points: Sequence[float], who: str) -> list[Panel]:
    """How near images came, one panel for each metric."""
    mine = [curve for curve in audit.curves if curve.adversary == who]
    images = any(_metric(curve, "psnr") for curve in mine)
    panels = []
    for metric, title in METRICS.items():
        if metric == "relative_error" and images:
            continue
        lines = []
        for k, attack in enumerate(dict.fromkeys(curve.attack for curve in mine)):
            look = f"c{k % COLOURS}"
            lines += _lines(attack, [c for c in mine if c.attack == attack], metric, points, look)
        if lines:
            log = metric == "relative_error"
            panels.append(_panel(f"{title}, heard by {who}", points, lines, log=log))
    return panels


def _lines(
    attack: str, curves: Sequence[CurvePoint], metric: str, points: Sequence[float], look: str
) -> list[Line]:
    """Best, median and mean of one attack; none if the metric was not measured."""
    at: dict[float, CurveValues] = {}
    for curve in curves:
        found = _metric(curve, metric)
        if found is not None:
            at[_key(curve.epsilon)] = found
    if not at:
        return []
    top = HIGHEST if metric == "psnr" else math.inf
    best: list[float | None] = []
    median: list[float | None] = []
    mean: list[float | None] = []
    for point in points:
        if point in at:
            best.append(min(at[point].best, top))
            median.append(min(at[point].median, top))
            mean.append(min(at[point].mean, top))
        else:
            best.append(None)
            median.append(None)
            mean.append(None)
    return [
        Line(f"{attack}, best", tuple(best), f"{look} best"),
        Line(f"{attack}, median", tuple(median), f"{look} median"),
        Line(f"{attack}, mean", tuple(mean), f"{look} mean"),
    ]


def _success(audit: AuditPart, points: Sequence[float], who: str) -> list[Panel]:
    """Rates of success that were counted, under the ceiling that each promise puts on them."""
    tests = [one for one in audit.verdicts if one.adversary == who and _figure(one, "trials")]
    panels = []
    for test, attack in dict.fromkeys((one.test, one.attack) for one in tests):
        mine = [one for one in tests if (one.test, one.attack) == (test, attack)]
        rates = {}
        for one in mine:
            rates[_key(one.epsilon)] = (_figure(one, "hits") or 0) / (_figure(one, "trials") or 1)
        lines = [Line(f"{attack}, measured", tuple(rates.get(p) for p in points), "c0 best")]
        names = dict.fromkeys(one.promise.name for one in mine if one.promise)
        for k, name in enumerate(names, 1):
            at: dict[float, float | None] = {}
            for one in mine:
                if one.promise and one.promise.name == name:
                    at[_key(one.epsilon)] = _figure(one, "ceiling")
            ceiling = tuple(at.get(p) for p in points)
            look = f"c{k % COLOURS} bound"
            lines.append(Line(f"at most, by {name}", ceiling, look, dots=False))
        panels.append(_panel(f"{test}: rate, heard by {who}", points, lines, unit=True))
    return panels


def _figure(one: VerdictEntry, name: str) -> float | None:
    """A number that a test counted, None if it did not."""
    value = one.figures.get(name)
    return value if isinstance(value, int | float) else None


def _panel(
    title: str,
    points: Sequence[float],
    lines: Sequence[Line],
    log: bool = False,
    unit: bool = False,
) -> Panel:
    """Draw lines over the points of the grid, which stand side by side at equal distances.

    Args:
        title: Of the panel.
        points: Of the grid.
        lines: What is drawn.
        log: Whether the axis is logarithmic; values that are not positive are then left out.
        unit: Whether the axis goes from 0 to 1.

    Returns:
        The panel.
    """

    def drawn(value: float | None) -> bool:
        return value is not None and (value > 0 or not log)

    known: list[float] = []
    for one in lines:
        known += [v for v in one.values if v is not None and drawn(v)]
    ticks = _ticks([0.0, 1.0] if unit else known, log and bool(known))
    low = ticks[0]
    high = ticks[-1]

    def y(value: float) -> float:
        if log:
            share = math.log10(value / low) / math.log10(high / low)
        else:
            share = (value - low) / (high - low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def x(k: int) -> float:
        share = k / (len(points) - 1) if len(points) > 1 else 0.5
        return LEFT + INSET + share * (WIDTH - LEFT - RIGHT - 2 * INSET)

    parts = []
    for tick in ticks:
        parts.append(svg.line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "grid"))
    for tick in ticks:
        parts.append(svg.text(LEFT - 6, y(tick) + 4, f"{tick:.3g}", "quiet", "end"))
    for k in range(0, len(points), math.ceil(len(points) / NAMED)):
        parts.append(svg.text(x(k), HEIGHT - BOTTOM + 16, _name(points[k]), "quiet"))
    parts.append(svg.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "epsilon", "quiet"))
    for one in lines:
        at: list[tuple[float, float]] = []
        for k, value in enumerate(one.values):
            if value is not None and drawn(value):
                at.append((x(k), y(value)))
        through = at
        if len(at) == 1 and not one.dots:
            # A single point without a dot would not be seen: draw a dash.
            ((a, b),) = at
            through = [(a - 12, b), (a + 12, b)]
        parts.append(svg.path(through, f"curve {one.look}"))
        if one.dots:
            for a, b in at:
                parts.append(svg.circle(a, b, 3, f"dot {one.look}"))
    label = f"{title} at epsilon {', '.join(map(_name, points))}. {_said(lines)}"
    return Panel(title, svg.drawing(WIDTH, HEIGHT, parts, label), _legend(lines))


def _said(lines: Sequence[Line]) -> str:
    """The lines for a reader who does not see them."""
    said = []
    for one in lines:
        numbers = ["-" if v is None else f"{v:.3g}" for v in one.values]
        said.append(f"{one.name}: {', '.join(numbers)}")
    return "; ".join(said)


def _legend(lines: Sequence[Line]) -> Markup:
    mark = Markup(
        '<svg class="swatch" viewBox="0 0 28 12" width="28" aria-hidden="true">'
        '<line x1="0" y1="6" x2="28" y2="6" class="curve {}"/></svg>'
    )
    entries = []
    for one in lines:
        entries.append(svg.element("li", mark.format(one.look), f" {one.name}"))
    return svg.element("ul", *entries, class_="legend")


def _ticks(values: Sequence[float], log: bool) -> list[float]:
    """Round numbers around 0 and all values, or powers of ten around all values."""
    low = min(values, default=0.0)
    high = max(values, default=1.0)
    if log:
        first = math.floor(math.log10(low))
        last = math.floor(math.log10(high)) + 1
        return [10.0**k for k in range(first, last + 1, math.ceil((last - first) / TICKS))]
    low = min(low, 0.0)
    high = max(high, 0.0, low + 1e-6)
    # The smallest of 1, 2, 2.5, 5 and 10 times a power of ten that needs no more than `TICKS`
    # steps; the factors of 1e-9 keep rounding from adding a step.
    size = 10 ** math.floor(math.log10((high - low) / TICKS))
    least = (high - low) / TICKS * (1 - 1e-9)
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= least)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [k * step for k in range(first, last + 1)]


def _name(point: float) -> str:
    if point == math.inf:
        return "inf"
    if point == 0:
        return "as set"
    return f"{point:g}"
