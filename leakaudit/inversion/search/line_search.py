"""Step lengths of many searches at once, each with its own bracket."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Every evaluation is one trial of each search.
#
# A step t is accepted under the weak Wolfe conditions (Nocedal and Wright 2006, eq. 3.6), with s
# the slope along the direction at 0:
#
#     f(t) <= f(0) + FALL t s    and    slope(t) >= FLATTER s.
#
# A trial that is too long or not finite becomes the upper end of the bracket, one that is too short
# the lower end. The next trial is the minimum of the cubic through both ends, kept away from them
# by a tenth of the bracket.

# Constants of the conditions, as recommended by Nocedal and Wright for quasi-Newton methods.
FALL = 1e-4
FLATTER = 0.9

# Ratio of the next trial to one that is too short, as long as no upper end is known. A choice.
GROW = 2.5

# Minimum distance of a trial from both ends, relative to the bracket, so that it shrinks. A choice.
MARGIN = 0.1


class Brackets:
    """Both ends of K brackets: step, objective and slope (3, K) at each; all in float64.

    The step of the upper end is infinite as long as it is unknown.
    """

    def __init__(self, value: Tensor, slope: Tensor) -> None:
        """Start the brackets at step 0 with value and slope (K,) there."""
        zero = torch.zeros_like(value)
        self.low = torch.stack([zero, value, slope])
        self.high = torch.stack([zero + math.inf, zero, zero])
        self.start = self.low.clone()

    def keep(self, index: Tensor) -> None:
        """Continue with only these searches."""
        self.low = self.low[:, index]
        self.high = self.high[:, index]
        self.start = self.start[:, index]

    def open(self, which: Tensor, value: Tensor, slope: Tensor) -> None:
        """Restart the brackets of `which` (K,) at step 0."""
        fresh = Brackets(value, slope)
        self.low = torch.where(which, fresh.low, self.low)
        self.high = torch.where(which, fresh.high, self.high)
        self.start = torch.where(which, fresh.start, self.start)

    def judge(self, t: Tensor, value: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Decide which trials (K,) are accepted, and return the next trial of the others."""
        finite = value.isfinite() & slope.isfinite()
        _, f, s = self.start
        long = ~finite | (value > f + FALL * t * s)
        short = ~long & (slope < FLATTER * s)
        here = torch.stack([t, value, slope])
        self.high = torch.where(long, here, self.high)
        self.low = torch.where(short, here, self.low)
        low = self.low[0]
        high = self.high[0]
        width = high - low
        inside = torch.maximum(_cubic(self.low, self.high), low + MARGIN * width)
        inside = torch.minimum(inside, high - MARGIN * width)
        inside = torch.where(inside.isfinite(), inside, low + 0.5 * width)
        inside = torch.where(finite, inside, low + MARGIN * width)
        return ~long & ~short, torch.where(high.isinf(), GROW * t, inside)


def _cubic(low: Tensor, high: Tensor) -> Tensor:
    """Return the minimum of the cubic through two points with slopes (eq. 3.59), or NaN."""
    a, fa, sa = low
    b, fb, sb = high
    d1 = sa + sb - 3 * (fa - fb) / (a - b)
    d2 = (d1.square() - sa * sb).sqrt()
    t: Tensor = b - (b - a) * (sb + d2 - d1) / (sb - sa + 2 * d2)
    return t
