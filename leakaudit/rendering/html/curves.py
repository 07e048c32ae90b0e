"""What attacks get against epsilon: PSNR, SSIM or relative error, and success rates under their ceilings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from leakaudit.rendering.html import svg
from leakaudit.results.wording import REFUSED, refused, said_of
from leakaudit.trace import Json

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 340.0, 240.0, 46.0, 14.0, 14.0, 40.0
METRICS = {
    "psnr": "PSNR, dB (60 stands for more)",
    "ssim": "SSIM",
    "relative_error": "relative error",
}
COLOURS = 5
HIGHEST = 60.0  # dB; equal images count as 200, which would flatten everything else
STYLES = {"best": "best", "median": "median", "mean": "mean"}


@dataclass(frozen=True)
class Line:
    """One line of a panel. values: one a point of the grid, None where there is none; look: ``c0`` to ``c4``, and a kind of dash."""

    name: str
    values: tuple[float | None, ...]
    look: str
    dots: bool = True


@dataclass(frozen=True)
class Panel:
    """One picture, and its lines as a legend."""

    title: str
    picture: Markup
    legend: Markup


def panels(results: Mapping[str, Json]) -> list[tuple[str, list[Panel]]]:
    """Return the panels of every adversary of an audit; none for another record, or for a single epsilon without a curve."""
    audit = results.get("audit")
    if not audit:
        return []
    points = sorted(
        {_key(c["epsilon"]) for c in audit["curves"]}
        | {_key(v["epsilon"]) for v in audit["verdicts"]}
    )
    names = dict.fromkeys(c["adversary"] for c in audit["curves"])
    return [(who, [*_quality(audit, points, who), *_success(audit, points, who)]) for who in names]


def refusals(results: Mapping[str, Json]) -> list[str]:
    """Say at which points attacks of an audit gave nothing on some nodes, and what these count as; empty if there are none."""
    said = [
        f"{c['attack']} at {said_of(c)}, heard by {c['adversary']}: {refused(c)}"
        for c in (results.get("audit") or {}).get("curves", ())
        if c.get("refused")
    ]
    return [REFUSED, *said] if said else []


def _key(epsilon: float | str | None) -> float:
    """As a number: inf is without noise, 0 for constants as they were configured."""
    return math.inf if epsilon == "inf" else 0.0 if epsilon is None else float(epsilon)


def _quality(audit: Mapping[str, Json], points: Sequence[float], who: str) -> list[Panel]:
    out = []
    mine = [c for c in audit["curves"] if c["adversary"] == who]
    for metric, title in METRICS.items():
        if metric == "relative_error" and any("psnr" in c for c in mine):
            continue
        lines = []
        for k, attack in enumerate(dict.fromkeys(c["attack"] for c in mine)):
            at = {
                _key(c["epsilon"]): c[metric] for c in mine if c["attack"] == attack and metric in c
            }
            top = HIGHEST if metric == "psnr" else math.inf
            if at:
                look = f"c{k % COLOURS}"
                lines += [
                    Line(
                        f"{attack}, {s}",
                        tuple(min(at[p][s], top) if p in at else None for p in points),
                        f"{look} {s}",
                    )
                    for s in STYLES
                ]
        if lines:
            out.append(
                _panel(f"{title}, heard by {who}", points, lines, log=metric == "relative_error")
            )
    return out


def _success(audit: Mapping[str, Json], points: Sequence[float], who: str) -> list[Panel]:
    """Rates of success that were counted, under the ceiling that each promise puts on them."""
    tests = [v for v in audit["verdicts"] if v["adversary"] == who and v["figures"].get("trials")]
    out = []
    for test, attack in dict.fromkeys((v["test"], v["attack"]) for v in tests):
        mine = [v for v in tests if (v["test"], v["attack"]) == (test, attack)]
        rates = {_key(v["epsilon"]): v["figures"]["hits"] / v["figures"]["trials"] for v in mine}
        lines = [Line(f"{attack}, measured", tuple(rates.get(p) for p in points), "c0 best")]
        for k, name in enumerate(
            dict.fromkeys(v["promise"]["name"] for v in mine if v["promise"]), 1
        ):
            said = [v for v in mine if v["promise"] and v["promise"]["name"] == name]
            at = {_key(v["epsilon"]): v["figures"].get("ceiling") for v in said}
            lines.append(
                Line(
                    f"at most, by {name}",
                    tuple(at.get(p) for p in points),
                    f"c{k % COLOURS} bound",
                    dots=False,
                )
            )
        out.append(_panel(f"{test}: rate, heard by {who}", points, lines, unit=True))
    return out


def _panel(
    title: str,
    points: Sequence[float],
    lines: Sequence[Line],
    log: bool = False,
    unit: bool = False,
) -> Panel:
    """Draw lines over the points of the grid, which stand side by side at equal distances."""
    known = [v for one in lines for v in one.values if v is not None and (v > 0 or not log)]
    ticks = _ticks([0.0, 1.0] if unit else known, log and bool(known))
    low, high = ticks[0], ticks[-1]

    def y(value: float) -> float:
        share = (
            (math.log10(value / low) / math.log10(high / low))
            if log
            else (value - low) / (high - low)
        )
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def x(k: int) -> float:
        return (
            LEFT
            + 14
            + (k / (len(points) - 1) if len(points) > 1 else 0.5) * (WIDTH - LEFT - RIGHT - 28)
        )

    parts = [svg.line(LEFT, y(v), WIDTH - RIGHT, y(v), "grid") for v in ticks]
    parts += [svg.text(LEFT - 6, y(v) + 4, f"{v:.3g}", "quiet", "end") for v in ticks]
    every = math.ceil(len(points) / 8)
    parts += [
        svg.text(x(k), HEIGHT - BOTTOM + 16, _name(p), "quiet")
        for k, p in enumerate(points)
        if k % every == 0
    ]
    parts.append(svg.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "epsilon", "quiet"))
    for one in lines:
        at = [
            (x(k), y(v)) for k, v in enumerate(one.values) if v is not None and (v > 0 or not log)
        ]
        alone = (
            [(at[0][0] - 12, at[0][1]), (at[0][0] + 12, at[0][1])]
            if len(at) == 1 and not one.dots
            else at
        )
        parts.append(svg.path(alone, f"curve {one.look}"))
        parts += [svg.circle(a, b, 3, f"dot {one.look}") for a, b in at if one.dots]
    said = "; ".join(
        f"{one.name}: {', '.join('-' if v is None else f'{v:.3g}' for v in one.values)}"
        for one in lines
    )
    label = f"{title} at epsilon {', '.join(map(_name, points))}. {said}"
    return Panel(title, svg.drawing(WIDTH, HEIGHT, parts, label), _legend(lines))


def _legend(lines: Sequence[Line]) -> Markup:
    mark = Markup(
        '<svg class="swatch" viewBox="0 0 28 12" width="28" aria-hidden="true"><line x1="0" y1="6" x2="28" y2="6" class="curve {}"/></svg>'
    )
    return svg.element(
        "ul",
        *(svg.element("li", mark.format(one.look), f" {one.name}") for one in lines),
        class_="legend",
    )


def _ticks(values: Sequence[float], log: bool) -> list[float]:
    """Round numbers around 0 and all values, or powers of ten around all values."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if log:
        first, last = math.floor(math.log10(low)), math.floor(math.log10(high)) + 1
        return [10.0**k for k in range(first, last + 1, math.ceil((last - first) / 5))]
    low = min(low, 0.0)
    high = max(high, 0.0, low + 1e-6)
    size = 10 ** math.floor(math.log10((high - low) / 5))
    each = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= (high - low) / 5 * (1 - 1e-9))
    return [
        k * each for k in range(math.floor(low / each + 1e-9), math.ceil(high / each - 1e-9) + 1)
    ]


def _name(point: float) -> str:
    return "inf" if point == math.inf else "as set" if point == 0 else f"{point:g}"
