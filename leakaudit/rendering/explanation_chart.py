"""Pictures of numbers: which combinations of gradients are determined, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from PIL import Image, ImageDraw

from leakaudit.errors import LeakauditError
from leakaudit.extraction.explanation import Explanation
from leakaudit.rendering.pictures import EDGE, EMPTY, INK, PAPER, QUIET, say

# All of these are choices, the first four in pixels.
CELL = 26
LEFT = 96
TOP = 60
GAP = 48
WIDEST = 64  # columns at most
MANY = 24  # rows of a node at most
_POSITIVE = (180, 35, 24)  # colours of the weights
_NEGATIVE = (30, 90, 160)

Gradient = tuple[int, int | None]  # round, and index in the round


def combinations(found: Sequence[Explanation]) -> Image.Image:
    """Draw a matrix for each node, with a column for each gradient and a row for each combination.

    Positive weights are red and negative ones blue; the colour's strength is the weight over the
    largest of its row.

    Args:
        found: One for each node; those of which nothing is determined are left out.

    Returns:
        The picture.

    Raises:
        LeakauditError: Nothing is determined of any node.
    """
    shown = [one for one in found if one.rows]
    if not shown:
        raise LeakauditError(
            "picture: nothing is determined of these nodes, there is nothing to draw"
        )
    columns = max(min(len(_columns(one)), WIDEST) for one in shown)
    heights = [TOP + min(len(one.rows), MANY) * CELL + GAP for one in shown]
    width = max(480, LEFT + columns * CELL + GAP)
    page = Image.new("RGB", (width, sum(heights) + GAP), PAPER)
    draw = ImageDraw.Draw(page)
    top = GAP // 2
    for one, height in zip(shown, heights, strict=True):
        _matrix(draw, one, top)
        top += height
    return page


def _columns(one: Explanation) -> list[Gradient]:
    """Gradients that occur, in the order in which they were taken."""
    seen: set[Gradient] = set()
    for row in one.rows:
        for t, k, _ in row.weights:
            seen.add((t, k))
    return sorted(seen, key=lambda gradient: (gradient[0], gradient[1] or 0))


def _matrix(draw: ImageDraw.ImageDraw, one: Explanation, top: int) -> None:
    columns = _columns(one)[:WIDEST]
    rows = one.rows[:MANY]
    say(draw, (GAP // 2, top), one.summary, 14, INK, "lt")
    say(draw, (LEFT - 10, top + TOP - 10), "gradient", 11, QUIET, "rb")
    for x, (t, k) in enumerate(columns):
        label = str(t)
        if k is not None:
            label = f"{t}.{k}"
        say(draw, (LEFT + (x + 0.5) * CELL, top + TOP - 10), label, 11, QUIET, "mb")
    for y, row in enumerate(rows):
        weights = {(t, k): Fraction(value) for t, k, value in row.weights}
        largest = max(map(abs, weights.values()))
        upper = top + TOP + y * CELL
        say(draw, (LEFT - 10, upper + CELL / 2), f"x{row.amplification:.3g}", 11, QUIET, "rm")
        for x, gradient in enumerate(columns):
            share = weights.get(gradient, Fraction(0)) / largest
            box = (LEFT + x * CELL, upper, LEFT + (x + 1) * CELL - 3, upper + CELL - 3)
            draw.rectangle(box, fill=_shade(float(share)), outline=EDGE)
    foot = "rows: combinations, with their amplification of an error in each message"
    left_out = len(one.rows) - len(rows)
    if left_out:
        foot += f"; {left_out} more rows"
    say(draw, (LEFT, top + TOP + len(rows) * CELL + 6), foot, 11, QUIET, "lt")


def _shade(weight: float) -> tuple[int, int, int] | str:
    """Colour of a weight in [-1, 1]."""
    if not weight:
        return EMPTY
    strong = _POSITIVE
    if weight < 0:
        strong = _NEGATIVE
    # The smallest weight keeps a quarter of the colour, so that it is told apart from no weight.
    share = 0.25 + 0.75 * abs(weight)
    red, green, blue = (round(255 + (c - 255) * share) for c in strong)
    return red, green, blue
