"""Who leaks, and when: heat maps of nodes against rounds, points of a grid and adversaries.

They are tables and not charts: a cell has one of six meanings in words, which a screen reader reads
with its row and column, and the shades follow the page into dark mode.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from leakaudit.rendering.html.shades import STEPS, Scene, Shade
from leakaudit.results.model import Extended, decoded

ROWS = 48  # cells at most; more nodes share a cell, which shows the worst of them
COLUMNS = 48  # the same of rounds
CELL = 18  # pixels
NAMED = 24  # adversaries that are drawn

Span = tuple[str, str]  # first and last of what shares a cell
Places = Callable[[Shade], Iterable[int]]  # the columns of a shade


@dataclass(frozen=True)
class Cell:
    """Neighbouring places of one shade.

    Attributes:
        shade: Class of the page's style.
        words: What the shade means.
        title: The same with the place, for the pointer.
        columns: How many columns it spans.
    """

    shade: str
    words: str
    title: str
    columns: int


@dataclass(frozen=True)
class HeatTable:
    """A heat map as a table, which the page's colours and a screen reader apply to.

    Attributes:
        label: Description for a reader who does not see it.
        across: What the columns are.
        heads: Name and number of columns of each heading.
        rows: Name and cells of each row.
        columns: How many columns there are.
        wide: Width of a column in pixels, if the page is wide enough.
    """

    label: str
    across: str
    heads: tuple[tuple[str, int], ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    columns: int
    wide: int


def by_round(scene: Scene) -> HeatTable | None:
    """Show nodes against rounds: what a leak that spans these rounds gave away.

    Args:
        scene: What was given away.

    Returns:
        The table, None if nothing was attacked.
    """
    # Round 0 stands for what was taken before the first message.
    first = min([1, *(max(0, one.first) for one in scene.shades)])
    rounds = range(first, max(1, scene.trace.rounds) + 1)
    wide = math.ceil(len(rounds) / COLUMNS)
    columns = _spans(rounds, wide)

    def places(one: Shade) -> Iterable[int]:
        low = max(one.first, rounds[0])
        high = min(one.last, rounds[-1])
        return range((low - first) // wide, (high - first) // wide + 1)

    said = "What the leaks of each node gave away, by the rounds that they span."
    return _map(scene.shades, columns, places, "round", said)


def by_point(scene: Scene) -> HeatTable | None:
    """Show nodes against the points of an audit's grid, the largest epsilon at the right.

    Args:
        scene: What was given away.

    Returns:
        The table, None if there is no grid.
    """
    shades = [one for one in scene.shades if one.point]
    points = sorted({one.point[0] for one in shades}, key=_order)[-COLUMNS:]
    columns: list[Span] = []
    column: dict[tuple[Extended, ...], int] = {}
    for k, point in enumerate(points):
        name = _name(point)
        columns.append((name, name))
        column[point,] = k

    def places(one: Shade) -> Iterable[int]:
        return [column[one.point]] if one.point in column else []

    said = "What each node gave away at each epsilon."
    return _map(shades, columns, places, "epsilon", said, wide=3 * CELL)


def _order(epsilon: Extended) -> float:
    return float(decoded(epsilon) or 0.0)


def _name(epsilon: Extended) -> str:
    if epsilon is None:
        return "as set"
    if epsilon == "inf":
        return "inf"
    return f"{epsilon:g}"


def by_adversary(scene: Scene) -> HeatTable | None:
    """Show nodes against adversaries.

    Args:
        scene: What was given away.

    Returns:
        The table, None if there are not several.
    """
    names = adversaries(scene)
    if len(names) < 2:
        return None
    columns = _spans(range(1, len(names) + 1), 1)
    column = {name: k for k, name in enumerate(names)}

    def places(one: Shade) -> Iterable[int]:
        return [column[one.adversary]] if one.adversary in column else []

    said = "What each node gave away to each adversary."
    return _map(scene.shades, columns, places, "adversary", said)


def adversaries(scene: Scene) -> list[str]:
    """Return the adversaries that `by_adversary` draws.

    Args:
        scene: What was given away.

    Returns:
        Their names, in the order of the columns.
    """
    return list(dict.fromkeys(one.adversary for one in scene.shades))[:NAMED]


def _map(
    shades: Sequence[Shade],
    columns: Sequence[Span],
    places: Places,
    across: str,
    label: str,
    wide: int = CELL,
) -> HeatTable | None:
    """Make one row for each node, or for several that share one."""
    nodes = sorted({one.node for one in shades})
    if not nodes:
        return None
    tall = math.ceil(len(nodes) / ROWS)
    row = {node: k // tall for k, node in enumerate(nodes)}
    steps: dict[tuple[int, int], int] = {}
    for one in shades:
        y = row[one.node]
        for x in places(one):
            steps[y, x] = max(steps.get((y, x), 0), one.step)
    rows = []
    for y, span in enumerate(_spans(nodes, tall)):
        name = _words(span)
        values = [steps.get((y, x), -1) for x in range(len(columns))]
        rows.append((name, _cells(f"node {name}, {across}", values, columns)))
    stride = _stride(len(columns))
    heads = []
    for x in range(0, len(columns), stride):
        heads.append((columns[x][0], min(stride, len(columns) - x)))
    return HeatTable(label, across, tuple(heads), tuple(rows), len(columns), wide)


def _stride(columns: int) -> int:
    """Every how many columns one is named, so that names do not run into each other."""
    if columns <= 12:
        return 1
    if columns <= 30:
        return 5
    return 10


def _cells(name: str, values: Sequence[int], columns: Sequence[Span]) -> tuple[Cell, ...]:
    """The cells of a row, neighbours of one shade as one cell; -1 was not looked at."""
    cells = []
    x = 0
    for value, run in itertools.groupby(values):
        count = len(list(run))
        said = "not looked at"
        shade = "blank"
        if value >= 0:
            said = STEPS[value]
            shade = f"s{value}"
        span = _words((columns[x][0], columns[x + count - 1][1]))
        cells.append(Cell(shade, said, f"{name} {span}: {said}", count))
        x += count
    return tuple(cells)


def _spans(values: Sequence[int], size: int) -> list[Span]:
    """First and last of every `size` values in a row."""
    found = []
    for k in range(0, len(values), size):
        some = values[k : k + size]
        found.append((str(some[0]), str(some[-1])))
    return found


def _words(span: Span) -> str:
    if span[0] == span[1]:
        return span[0]
    return f"{span[0]} to {span[1]}"
