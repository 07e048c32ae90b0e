"""The only bisection of the package: the point at which a monotone condition begins to hold.

It ends with two values, and the caller knows which is conservative: a published epsilon must not be
too small, so it is the upper one; a mu that counts refute is the lower one.

>>> def enough(x):
...     return x * x >= 2
>>> crossing(enough, 1.0, 2.0, side="above")
1.4142135623730951
>>> crossing(enough, 1.0, 2.0, side="below")
1.414213562373095
>>> bracket(enough)
(1.0, 2.0)
>>> crossing_integer(lambda n: n * n >= 50, 0, 100)
8
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from leakaudit.core.errors import LeakauditError

Side = Literal["above", "below"]

# A bracket of floats that differ by a factor below 2^147 ends at two adjacent floats after 200
# halvings: 53 for the digits of the result, the others to come down from the upper end.
HALVINGS = 200


def crossing(
    holds: Callable[[float], bool],
    low: float,
    high: float,
    *,
    side: Side,
    halvings: int = HALVINGS,
    tolerance: float = 0.0,
    middle: Callable[[float, float], float] | None = None,
) -> float:
    """Return where a monotone condition begins to hold, rounded to the selected side.

    The ends are not evaluated: the condition is taken as false at `low` and as true at `high`. Of
    several crossings, one is found.

    Args:
        low: Lower end of the bracket; if an end is infinite, that of the chosen side is returned.
        side: `"above"`: the smallest value at which the condition held when evaluated, or `high`.
            `"below"`: the largest value at which it did not, or `low`.
        halvings: Most halvings; the default suffices for two adjacent floats.
        tolerance: Stop once the bracket is narrower than this fraction of its upper end.
        middle: Returns the next point; `geometric` if the scale of the crossing is unknown.
    """
    if not low <= high:
        raise LeakauditError(f"bisection: expected low <= high, got {low} and {high}")
    between = middle or arithmetic
    for _ in range(halvings):
        at = between(low, high)
        if not low < at < high or high - low < tolerance * high:
            break
        if holds(at):
            high = at
        else:
            low = at
    return high if side == "above" else low


def crossing_integer(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the least integer at which a monotone condition holds."""
    if not low < high:
        raise LeakauditError(f"bisection: expected low < high, got {low} and {high}")
    while high - low > 1:
        at = (low + high) // 2
        if holds(at):
            high = at
        else:
            low = at
    return high


def bracket(holds: Callable[[float], bool]) -> tuple[float, float]:
    """Double the upper end of a bracket from 0 to 1 until the condition holds, or it is inf."""
    low = 0.0
    high = 1.0
    while high < math.inf and not holds(high):
        low = high
        high = 2 * high
    return low, high


def bracket_integer(holds: Callable[[int], bool], most: int) -> tuple[int, int] | None:
    """Return the same for integers; None if the condition does not hold up to `most`."""
    low = 0
    high = 1
    while not holds(high):
        low = high
        high = 2 * high
        if high > most:
            return None
    return low, high


def arithmetic(low: float, high: float) -> float:
    """Return the mean of the two ends, even if their sum overflows."""
    mean = (low + high) / 2
    if math.isinf(mean):
        return low / 2 + high / 2
    return mean


def geometric(low: float, high: float) -> float:
    """Return the geometric mean of two ends above 0: each factor of ten takes as many halvings."""
    return math.sqrt(low * high)
