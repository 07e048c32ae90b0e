"""Pictures of numbers: which combinations of gradients are determined, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from PIL import Image, ImageDraw

from leakaudit.errors import LeakauditError
from leakaudit.extraction.explanation import Explanation
from leakaudit.rendering.pictures import EDGE, EMPTY, INK, PAPER, QUIET, say

CELL, LEFT, TOP, GAP, WIDEST = 26, 96, 60, 48, 64  # pixels, and columns at most
_MORE, _LESS = (180, 35, 24), (30, 90, 160)  # positive and negative weights
MANY = 24  # rows of a node at most


def combinations(found: Sequence[Explanation]) -> Image.Image:
    """Draw a matrix a node: a column a gradient, a row a combination, red for positive weights and blue for negative ones.

    The colour's strength is the weight over the largest of its row. Raises LeakauditError where nothing is determined.
    """
    shown = [e for e in found if e.rows]
    if not shown:
        raise LeakauditError(
            "picture: nothing is determined of these nodes, there is nothing to draw"
        )
    wide = max(min(len(_columns(e)), WIDEST) for e in shown)
    heights = [TOP + min(len(e.rows), MANY) * CELL + GAP for e in shown]
    page = Image.new("RGB", (max(480, LEFT + wide * CELL + GAP), sum(heights) + GAP), PAPER)
    draw, top = ImageDraw.Draw(page), GAP // 2
    for one, height in zip(shown, heights, strict=True):
        _matrix(draw, one, top)
        top += height
    return page


def _columns(one: Explanation) -> list[tuple[int, int | None]]:
    """Gradients that occur, (round, index) in the order in which they were taken."""
    return sorted(
        {(t, k) for r in one.rows for t, k, _ in r.weights}, key=lambda c: (c[0], c[1] or 0)
    )


def _matrix(draw: ImageDraw.ImageDraw, one: Explanation, top: int) -> None:
    columns, rows = _columns(one)[:WIDEST], one.rows[:MANY]
    say(draw, (GAP // 2, top), one.summary, 14, INK, "lt")
    say(draw, (LEFT - 10, top + TOP - 10), "gradient", 11, QUIET, "rb")
    for x, (t, k) in enumerate(columns):
        label = str(t) if k is None else f"{t}.{k}"
        say(draw, (LEFT + (x + 0.5) * CELL, top + TOP - 10), label, 11, QUIET, "mb")
    for y, row in enumerate(rows):
        weights = {(t, k): Fraction(v) for t, k, v in row.weights}
        largest = max(abs(v) for v in weights.values())
        upper = top + TOP + y * CELL
        say(draw, (LEFT - 10, upper + CELL / 2), f"x{row.amplification:.3g}", 11, QUIET, "rm")
        for x, place in enumerate(columns):
            box = (LEFT + x * CELL, upper, LEFT + (x + 1) * CELL - 3, upper + CELL - 3)
            draw.rectangle(
                box, fill=_shade(float(weights.get(place, Fraction(0)) / largest)), outline=EDGE
            )
    left_out = len(one.rows) - len(rows)
    foot = "rows: combinations, with their amplification of an error in each message" + (
        f"; {left_out} more rows" if left_out else ""
    )
    say(draw, (LEFT, top + TOP + len(rows) * CELL + 6), foot, 11, QUIET, "lt")


def _shade(weight: float) -> tuple[int, int, int] | str:
    """Colour of a weight in [-1, 1]."""
    if not weight:
        return EMPTY
    strong, share = (_MORE if weight > 0 else _LESS), 0.25 + 0.75 * abs(weight)
    red, green, blue = (round(255 + (c - 255) * share) for c in strong)
    return red, green, blue
