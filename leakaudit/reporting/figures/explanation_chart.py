"""Chart of an explanation: which combinations of gradients are determined, round by round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from leakaudit.core.errors import LeakauditError
from leakaudit.reporting.figures import plots
from leakaudit.views.extraction.explanation import Explanation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDEST = 64  # most columns; this and the next are choices
MANY = 24  # most rows of a node
# Sizes in mm.
CELL = 6.6
FRAME = 25.0  # height of a matrix without its rows
BESIDE = 42.0  # width of a matrix without its columns
NARROWEST = 130.0
POSITIVE = ("#f2c4b8", "#a3200d")  # colours from the smallest to the largest weight
NEGATIVE = ("#bcd7ea", "#0b5394")

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
    heights = [len(one.rows[:MANY]) * CELL + FRAME for one in shown]
    page = max(NARROWEST, BESIDE + CELL * max(len(_columns(one)) for one in shown))
    with plots.settings():
        figure = plots.empty(page, sum(heights))
        places = figure.subplots(len(shown), 1, height_ratios=heights, squeeze=False)[:, 0]
        for place, one in zip(places, shown, strict=True):
            _matrix(place, one, letters=int((page - 30) / plots.LETTER))
    return figure


def _columns(one: Explanation) -> list[Gradient]:
    seen: set[Gradient] = set()
    for row in one.rows:
        for t, k, _ in row.weights:
            seen.add((t, k))
    return sorted(seen, key=lambda gradient: (gradient[0], gradient[1] or 0))[:WIDEST]


def _matrix(place: Axes, one: Explanation, letters: int) -> None:
    columns = _columns(one)
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
    _colour(place, values)
    place.invert_yaxis()
    place.grid(visible=False)
    place.spines[:].set_visible(False)
    place.set_title(plots.wrapped(one.summary, letters))
    place.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    names = []
    for t, k in columns:
        names.append(plots.said(str(t) if k is None else f"{t}.{k}", plots.NAMED))
    step = math.ceil(max(map(len, names)) * plots.LETTER / CELL)
    across = [k + 0.5 for k in range(len(columns))]
    place.set_xticks(across[::step], names[::step])
    down = [k + 0.5 for k in range(len(rows))]
    place.set_yticks(down, [f"x{row.amplification:.3g}" for row in rows])
    place.set_xlabel(plots.wrapped(note, letters), loc="left")
    place.text(
        -0.01,
        1.0,
        "gradient",
        transform=place.transAxes,
        ha="right",
        va="bottom",
        color=plots.QUIET,
    )


def _colour(place: Axes, values: Sequence[Sequence[float]]) -> None:
    """Draw weights in [-1, 1] by row and column; 0 means no weight."""
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    # Each sign has its own scale, so that the smallest weight is distinct from zero.
    scale = [(0.0, NEGATIVE[1]), (0.5, NEGATIVE[0]), (0.5, POSITIVE[0]), (1.0, POSITIVE[1])]
    colours = LinearSegmentedColormap.from_list("weights", scale)
    shown = np.ma.masked_equal(np.asarray(values, dtype=float), 0.0)
    mesh = place.pcolormesh(
        shown,
        cmap=colours.with_extremes(bad=plots.NO_WEIGHT),
        vmin=-1,
        vmax=1,
        edgecolors="white",
        linewidth=2,
    )
    mesh.set_edgecolor("white")
    bar = place.figure.colorbar(
        mesh, ax=place, ticks=[-1, 0, 1], pad=0.02, fraction=0.05, aspect=25
    )
    bar.set_label("weight")
    bar.outline.set_visible(False)
