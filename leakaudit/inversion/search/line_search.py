"""Step lengths of many searches at once: each has its own bracket, and every evaluation of the batch is one trial of each.

Weak Wolfe conditions (Nocedal and Wright 2006, eq. 3.6): f(t) <= f + 1e-4 t s and slope(t) >= 0.9 s, with s the slope along the
direction. A trial that is too long or not finite becomes the bracket's upper end, one that is too short its lower end, and the next trial
is the minimum of the cubic through both ends, kept a tenth of the bracket away from them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FALL, FLATTER = 1e-4, 0.9
GROW = 2.5  # of a trial that is too short where no upper end is known
MARGIN = 0.1


class Brackets:
    """Both ends of K brackets: step (K,), objective and slope there; all in float64."""

    def __init__(self, value: Tensor, slope: Tensor) -> None:
        """Open them at step 0 with value and slope (K,) there."""
        zero = torch.zeros_like(value)
        self.low = torch.stack([zero, value, slope])
        self.high = torch.stack([zero + math.inf, zero, zero])
        self.start = self.low.clone()

    def keep(self, index: Tensor) -> None:
        """Go on with these searches alone."""
        self.low, self.high, self.start = (
            self.low[:, index],
            self.high[:, index],
            self.start[:, index],
        )

    def open(self, which: Tensor, value: Tensor, slope: Tensor) -> None:
        """Begin anew at step 0 where `which` (K,) is set."""
        fresh = Brackets(value, slope)
        self.low, self.high, self.start = (
            torch.where(which, new, old)
            for new, old in (
                (fresh.low, self.low),
                (fresh.high, self.high),
                (fresh.start, self.start),
            )
        )

    def judge(self, t: Tensor, value: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Return which trials t (K,) are accepted, and the next trial of the others."""
        finite = value.isfinite() & slope.isfinite()
        _, f, s = self.start
        long = ~finite | (value > f + FALL * t * s)
        short = ~long & (slope < FLATTER * s)
        here = torch.stack([t, value, slope])
        self.high, self.low = torch.where(long, here, self.high), torch.where(short, here, self.low)
        (low, _, _), (high, _, _) = self.low, self.high
        width = high - low
        inside = torch.minimum(
            torch.maximum(_cubic(self.low, self.high), low + MARGIN * width), high - MARGIN * width
        )
        inside = torch.where(inside.isfinite(), inside, low + 0.5 * width)
        inside = torch.where(finite, inside, low + MARGIN * width)
        return ~long & ~short, torch.where(high.isinf(), GROW * t, inside)


def _cubic(low: Tensor, high: Tensor) -> Tensor:
    """Minimum of the cubic through two points with slopes (Nocedal and Wright 2006, eq. 3.59); NaN where it has none."""
    (a, fa, sa), (b, fb, sb) = low, high
    d1 = sa + sb - 3 * (fa - fb) / (a - b)
    d2 = (d1.square() - sa * sb).sqrt()
    t: Tensor = b - (b - a) * (sb + d2 - d1) / (sb - sa + 2 * d2)
    return t
