"""Chart of an explanation: which combinations of gradients are determined, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from leakaudit.core.errors import LeakauditError
from leakaudit.reporting.figures import plots
from leakaudit.views.extraction.explanation import Explanation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDEST = 64  # most columns; this and the next are choices
MANY = 24  # most rows of a node

Gradient = tuple[int, int | None]  # round, and index in the round


def combinations(found: Sequence[Explanation]) -> Figure:
    """Draw a matrix for each node, with a column for each gradient and a row for each combination.

    Positive weights are red and negative ones blue; the intensity of the colour is the weight
    divided by the largest weight of the row.
    """
    shown = [one for one in found if one.rows]
    if not shown:
        raise LeakauditError(
            "picture: expected at least one determined combination, got none: there is no leak "
            "to draw for these nodes"
        )
    return plots.heat(list(map(_matrix, shown)))


def _columns(one: Explanation) -> list[Gradient]:
    seen: set[Gradient] = set()
    for row in one.rows:
        for t, k, _ in row.weights:
            seen.add((t, k))
    return sorted(seen, key=lambda gradient: (gradient[0], gradient[1] or 0))


def _matrix(one: Explanation) -> plots.HeatMap:
    columns = _columns(one)[:WIDEST]
    names = []
    for t, k in columns:
        names.append(str(t) if k is None else f"{t}.{k}")
    rows = one.rows[:MANY]
    values = []
    for row in rows:
        weights = {(t, k): Fraction(value) for t, k, value in row.weights}
        largest = max(map(abs, weights.values()))
        values.append([float(weights.get(column, Fraction(0)) / largest) for column in columns])
    note = "rows: combinations, with the factor by which each amplifies errors in the messages"
    left_out = len(one.rows) - len(rows)
    if left_out:
        note += f"; {left_out} more rows"
    return plots.HeatMap(
        title=one.summary,
        columns=names,
        rows=[f"x{row.amplification:.3g}" for row in rows],
        values=values,
        across="gradient",
        note=note,
    )
