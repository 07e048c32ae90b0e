"""Who leaks, and when: heat maps of nodes against rounds, points of a grid and adversaries."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from markupsafe import Markup

from leakaudit.rendering.html import svg
from leakaudit.rendering.html.shades import STEPS, step
from leakaudit.trace import Json

ROWS, COLUMNS = (
    48,
    48,
)  # cells at most; more nodes or rounds share a cell, which shows the worst of them
CELL, LEFT, TOP = 16.0, 78.0, 34.0
NAMED = 24  # adversaries that are drawn
SWATCH = '<svg class="swatch" viewBox="0 0 12 12" width="12" aria-hidden="true"><rect width="12" height="12" class="s{}"/></svg>'

Finding = Mapping[str, Json]
Span = tuple[str, str]  # first and last of what shares a cell


def by_round(results: Mapping[str, Json]) -> Markup | None:
    """Draw nodes against rounds: what a leak that spans these rounds gave away."""
    first = min(
        [1, *(max(0, f["leak"]["rounds"]["first"]) for f in results["findings"])]
    )  # 0: taken before the first message
    rounds = range(first, max(1, results["trace"]["rounds"]) + 1)
    wide = math.ceil(len(rounds) / COLUMNS)
    columns = [_span(rounds[k : k + wide]) for k in range(0, len(rounds), wide)]

    def places(f: Finding) -> Iterable[int]:
        span = f["leak"]["rounds"]
        low, high = max(span["first"], rounds[0]), min(span["last"], rounds[-1])
        return range((low - first) // wide, (high - first) // wide + 1)

    return _map(
        results["findings"],
        columns,
        places,
        "round",
        "What the leaks of each node gave away, by the rounds that they span.",
    )


def by_point(results: Mapping[str, Json]) -> Markup | None:
    """Draw nodes against the points of an audit's grid, the largest epsilon at the right."""
    findings = [f for f in results["findings"] if "cell" in f]
    points = sorted(
        {f["cell"]["epsilon"] for f in findings}, key=lambda e: math.inf if e == "inf" else e or 0.0
    )[-COLUMNS:]
    names = ["inf" if e == "inf" else "as set" if e is None else f"{e:g}" for e in points]
    columns, column = [(n, n) for n in names], {p: (k,) for k, p in enumerate(points)}
    said = "What each node gave away at each epsilon."
    return _map(
        findings,
        columns,
        lambda f: column.get(f["cell"]["epsilon"], ()),
        "epsilon",
        said,
        wide=3 * CELL,
    )


def by_adversary(results: Mapping[str, Json]) -> Markup | None:
    """Draw nodes against adversaries, where there are several."""
    names = adversaries(results)
    if len(names) < 2:
        return None
    columns, column = (
        [(str(k + 1),) * 2 for k in range(len(names))],
        {name: (k,) for k, name in enumerate(names)},
    )
    said = "What each node gave away to each adversary."
    return _map(
        results["findings"], columns, lambda f: column.get(f["adversary"], ()), "adversary", said
    )


def adversaries(results: Mapping[str, Json]) -> list[str]:
    """Return the names of `by_adversary`, in the order of its columns."""
    return list(dict.fromkeys(f["adversary"] for f in results["findings"]))[:NAMED]


def legend(steps: Sequence[str] = STEPS) -> Markup:
    """Return the steps with their shades, as a list."""
    return svg.element(
        "ul",
        *(svg.element("li", Markup(SWATCH).format(k), f" {name}") for k, name in enumerate(steps)),
        class_="legend",
    )


def _map(
    findings: Sequence[Finding],
    columns: Sequence[Span],
    places: Callable[[Finding], Iterable[int]],
    across: str,
    label: str,
    wide: float = CELL,
) -> Markup | None:
    """Draw a row a node; places: the columns of a finding."""
    nodes = sorted({f["node"] for f in findings})
    if not nodes:
        return None
    tall = math.ceil(len(nodes) / ROWS)
    row, cells = {n: k // tall for k, n in enumerate(nodes)}, dict[tuple[int, int], int]()
    for f in findings:
        for x in places(f):
            cells[row[f["node"]], x] = max(cells.get((row[f["node"]], x), 0), step(f))
    rows = [_span(nodes[k : k + tall]) for k in range(0, len(nodes), tall)]
    every = 1 if len(columns) <= 12 else 5 if len(columns) <= 30 else 10
    parts = [
        svg.text(LEFT, 12, across, "quiet", "start"),
        svg.text(LEFT - 8, TOP - 8, "node", "quiet", "end"),
    ]
    parts += [
        svg.text(LEFT + (k + 0.5) * wide, TOP - 8, columns[k][0], "quiet")
        for k in range(0, len(columns), every)
    ]
    for y, name in enumerate(rows):
        parts.append(svg.text(LEFT - 8, TOP + (y + 1) * CELL - 4, _words(name), "quiet", "end"))
        parts += _row(
            y,
            f"node {_words(name)}, {across}",
            [cells.get((y, x), -1) for x in range(len(columns))],
            columns,
            wide,
        )
    return svg.drawing(
        LEFT + max(len(columns) * wide, 8 * CELL) + 8, TOP + len(rows) * CELL + 8, parts, label
    )


def _row(
    y: int, name: str, values: Sequence[int], columns: Sequence[Span], wide: float
) -> Iterable[Markup]:
    """Draw the cells of a row, neighbours of one shade as one rectangle; -1 was not looked at."""
    x = 0
    for value, run in itertools.groupby(values):
        count = len(list(run))
        said = "not looked at" if value < 0 else STEPS[value]
        title = f"{name} {_words((columns[x][0], columns[x + count - 1][1]))}: {said}"
        shade = "blank" if value < 0 else f"s{value}"
        yield svg.rectangle(
            LEFT + x * wide, TOP + y * CELL, count * wide - 1, CELL - 1, shade, title
        )
        x += count


def _span(values: Sequence[int]) -> Span:
    return str(values[0]), str(values[-1])


def _words(span: Span) -> str:
    return span[0] if span[0] == span[1] else f"{span[0]} to {span[1]}"
