"""Heat maps of leakage by node and round, grid point, or adversary.

They are tables, so that a screen reader reads each cell with its row and column.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from leakaudit.reporting.findings.wording import epsilon_name, epsilon_order
from leakaudit.reporting.rendering.html.shades import STEPS, NetworkScene, Shade

ROWS = 48  # most rows; if there are more nodes, several share a row, which shows the worst of them
COLUMNS = 48  # the same for rounds
CELL = 18  # pixels
NAMED = 24  # most adversaries that are drawn

Span = tuple[str, str]  # names of the first and last item that share a cell
Places = Callable[[Shade], Iterable[int]]  # returns the columns of a shade


@dataclass(frozen=True)
class _HeatCell:
    """Neighbouring places with the same shade."""

    shade: str  # CSS class
    words: str  # meaning of the shade
    title: str  # the meaning with the place, shown as a tooltip
    columns: int  # number of columns that it spans


@dataclass(frozen=True)
class _HeatTable:
    """A heat map as a table that uses the page's colours and is accessible to screen readers."""

    label: str  # description for screen readers
    across: str  # what the columns represent
    heads: tuple[tuple[str, int], ...]  # name and number of columns of each heading
    rows: tuple[tuple[str, tuple[_HeatCell, ...]], ...]  # name and cells of each row
    columns: int  # number of columns
    wide: int  # width of a column in pixels, if the page is wide enough


def by_round(scene: NetworkScene) -> _HeatTable | None:
    """Show by node and round what was recovered from leaks that span the round."""
    # Round 0 is the state before the first message.
    first = min([1, *(max(0, one.first) for one in scene.shades)])
    rounds = range(first, max(1, scene.trace.rounds) + 1)
    wide = math.ceil(len(rounds) / COLUMNS)
    columns = _spans(rounds, wide)

    def places(one: Shade) -> Iterable[int]:
        low = max(one.first, rounds[0])
        high = min(one.last, rounds[-1])
        return range((low - first) // wide, (high - first) // wide + 1)

    said = "What was recovered from the leaks of each node, by the rounds that they span."
    return _map(scene.shades, columns, places, "round", said)


def by_point(scene: NetworkScene) -> _HeatTable | None:
    """Show by node and grid point of an audit what was recovered, with the largest epsilon last."""
    shades = [one for one in scene.shades if one.point]
    points = sorted({one.point for one in shades}, key=lambda point: epsilon_order(*point))
    names = {point: epsilon_name(*point) for point in points[-COLUMNS:]}

    def places(one: Shade) -> Iterable[int]:
        return [list(names).index(one.point)] if one.point in names else []

    said = "What was recovered from each node at each epsilon."
    columns = [(name, name) for name in names.values()]
    return _map(shades, columns, places, "epsilon", said, wide=3 * CELL)


def by_adversary(scene: NetworkScene) -> _HeatTable | None:
    """Show by node and adversary what was recovered; None if there is only one adversary."""
    names = adversaries(scene)
    if len(names) < 2:
        return None

    def places(one: Shade) -> Iterable[int]:
        return [names.index(one.adversary)] if one.adversary in names else []

    said = "What each adversary recovered from each node."
    return _map(scene.shades, _spans(range(1, len(names) + 1), 1), places, "adversary", said)


def adversaries(scene: NetworkScene) -> list[str]:
    """Return the adversaries that `by_adversary` draws."""
    return list(dict.fromkeys(one.adversary for one in scene.shades))[:NAMED]


def _map(
    shades: Sequence[Shade],
    columns: Sequence[Span],
    places: Places,
    across: str,
    label: str,
    wide: int = CELL,
) -> _HeatTable | None:
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
    return _HeatTable(label, across, tuple(heads), tuple(rows), len(columns), wide)


def _stride(columns: int) -> int:
    if columns <= 12:
        return 1
    if columns <= 30:
        return 5
    return 10


def _cells(name: str, values: Sequence[int], columns: Sequence[Span]) -> tuple[_HeatCell, ...]:
    """The cells of a row; neighbours with the same shade are merged. -1 means not examined."""
    cells = []
    x = 0
    for value, run in itertools.groupby(values):
        count = len(list(run))
        said = "not examined"
        shade = "blank"
        if value >= 0:
            said = STEPS[value]
            shade = f"s{value}"
        span = _words((columns[x][0], columns[x + count - 1][1]))
        cells.append(_HeatCell(shade, said, f"{name} {span}: {said}", count))
        x += count
    return tuple(cells)


def _spans(values: Sequence[int], size: int) -> list[Span]:
    found = []
    for k in range(0, len(values), size):
        some = values[k : k + size]
        found.append((str(some[0]), str(some[-1])))
    return found


def _words(span: Span) -> str:
    if span[0] == span[1]:
        return span[0]
    return f"{span[0]} to {span[1]}"
