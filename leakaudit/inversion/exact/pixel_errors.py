"""How large the error of every pixel is, as the rows themselves show it.

Once the inputs X (b, p + 1) are known, the slopes Delta follow by least squares, and the inputs can
be estimated again from all rows, column by column: X = (Delta' Delta)^-1 Delta' W. What this leaves
of a column of W is its noise, and (Delta' Delta)^-1 says how much of it enters each input. So every
pixel has an error of its own, measured in the data, however much noise a protocol declares. That
matters because wires round large values more than small ones, and zeros not at all.

`wrong_pixel` turns these errors into the probability that rounding to the grid took a pixel to a
wrong level, `Estimates.half_widths` into intervals for data without a grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakaudit.inversion.exact.pixel_grid import Grid

# Confidence of intervals, for all values of a reconstruction together (Bonferroni).
SURE = 0.99

# Wires round large numbers more than small ones: errors of some rows are so many times larger than
# the average.
UNEVEN = 2.0

# Errors are taken this many times as large as measured: they are not quite Gaussian, and measured
# themselves. A choice on the safe side.
CAUTION = 1.5

# Distance to the grid, in grid units, that needs no explanation: rounding leaves 2e-3 in a batch of
# 32 from float32 wires.
LEVEL = 5e-3

# Precision of a wire above which it is a half-precision one: 8e-3 for bfloat16, 1e-3 for float16,
# 1e-7 for float32.
HALF = 1e-4

# Distance to the grid, in grid units, beyond which a pixel is nearly as close to another level.
HALFWAY = 0.25

# Errors in units of their standard deviation beyond which something else is in a pixel. A Gaussian
# error exceeds 8 with probability 1e-15.
STRAY = 8.0

# Rows beyond unknowns above which each column's own noise is well known: to 13 %.
MANY = 30

# Columns of the rows that are processed together, which bounds the memory.
COLUMNS = 512


@dataclass(frozen=True)
class Estimates:
    """Inputs that are estimated again, column by column, from all rows.

    Attributes:
        values: (b, p + 1), each known up to its scale.
        noise: (p + 1,) standard deviation of the rows' errors in each column, from what the
            estimates leave of it.
        gain: (b,) the error of an estimate per unit of it.
        freedom: Rows beyond unknowns.
        rounding: (b, p + 1) largest errors of the values if every row's entries are off by half of
            the wire's precision, the worst that rounding can do.
        coarse: Whether the wire has half precision.
    """

    values: Tensor
    noise: Tensor
    gain: Tensor
    freedom: int
    rounding: Tensor
    coarse: bool

    @classmethod
    def of(cls, white: Tensor, rows: Tensor, stack: Tensor, wire: float) -> Estimates:
        """Estimate inputs again.

        Args:
            white: (m, H, p + 1) whitened rows.
            rows: (b, p + 1) the inputs as the first layer sees them.
            stack: The rows as they are; repeated ones do not average their errors.
            wire: Precision of the wire's number format.
        """
        flat = white.flatten(0, 1)
        slopes = torch.linalg.lstsq(rows.T, flat.T, driver="gelsd").solution.T
        inverse = torch.linalg.pinv(slopes.T @ slopes, hermitian=True)
        weights = inverse @ slopes.T
        again = weights @ flat
        blocks = list(zip(flat.split(COLUMNS, dim=1), again.split(COLUMNS, dim=1), strict=True))
        left = torch.cat([(part - slopes @ found).square().sum(0) for part, found in blocks])
        rounding = wire / 2 * torch.cat([weights.abs() @ part.abs() for part, _ in blocks], dim=1)
        freedom = max(0, len(flat) - len(rows))
        noise = (left / max(1, freedom)).sqrt()
        size = flat.square().mean(0).sqrt()
        share = size / size.square().mean().sqrt().clamp_min(1e-300)
        if freedom < MANY:
            # Few rows may agree by luck, or repeat each other and hide their rounding. No column is
            # taken to be relatively more precise than all are together, nor than the leak states,
            # which is 1 here, in proportion to its size.
            noise = noise.clamp_min(noise.square().mean().sqrt() * share).clamp_min(share)
        gain = repeated(stack) * inverse.diagonal().clamp_min(0).sqrt()
        return cls(again, noise, gain, freedom, rounding, wire > HALF)

    def pixels(self, grid: Grid) -> Tensor:
        """Inputs (b, p) in the data's units."""
        return self.values[:, :-1] / self.values[:, -1:] * grid.std + grid.mean

    def errors(self, grid: Grid, noise: Tensor) -> Tensor:
        """Standard deviations of the inputs' errors, to first order.

        A pixel is the ratio of its column and the last one, the 1 behind every input, and both have
        errors.

        Args:
            grid: Of the data.
            noise: (p + 1,) errors of the rows.

        Returns:
            (b, p) in the data's units.
        """
        seen = self.values[:, :-1] / self.values[:, -1:]
        both = torch.hypot(noise[:-1], seen * noise[-1])
        return both * self.gain[:, None] / self.values[:, -1:].abs() * grid.std

    def half_widths(self, grid: Grid) -> Tensor:
        """Half-widths (b, p) of intervals that hold all values at once at the confidence `SURE`.

        The error of a column is what its rows show, with Student's quantile for their number, or
        what the leak states, which is 1 in whitened rows, if that is more. It is never less than
        the worst that rounding can do: if one row is much larger than the others, or rows repeat,
        errors of rounding do not average.
        """
        from scipy.special import ndtri, stdtrit  # slow to import, and only intervals need it

        tail = (1 - SURE) / (2 * self.values.numel())
        if self.freedom:
            shown = -self.noise * float(stdtrit(self.freedom, tail))
        else:
            shown = torch.zeros_like(self.noise)
        noise = UNEVEN * shown.clamp_min(-float(ndtri(tail)))
        return self.errors(grid, noise).maximum(self.rounded(grid))

    def rounded(self, grid: Grid) -> Tensor:
        """Errors (b, p) in the data's units that rounding can make at worst."""
        seen = self.values[:, :-1] / self.values[:, -1:]
        worst = self.rounding[:, :-1] + seen.abs() * self.rounding[:, -1:]
        return worst / self.values[:, -1:].abs() * grid.std


def wrong_pixel(estimates: Estimates, grid: Grid, x: Tensor) -> Tensor:
    """Bound the probability that a pixel of an image is another level than it should be.

    A pixel is wrong if its error exceeds half a grid unit. The bound is the sum over all pixels.

    Args:
        estimates: Of the images, with their errors.
        grid: Of the data.
        x: (b, p) images on the grid.

    Returns:
        (b,) one bound per image, 1 if something else is in it: a pixel is farther from its level
        than errors explain.
    """
    off = (estimates.pixels(grid) - x) * grid.levels
    spread = estimates.errors(grid, estimates.noise) * grid.levels
    missed = torch.special.erfc(0.5 / (CAUTION * spread.clamp_min(1e-12)) / math.sqrt(2)).sum(1)
    strays = (off.abs() > (STRAY * spread + LEVEL).clamp_max(HALFWAY)).any(1)
    if estimates.coarse:
        # Rounding to half precision takes several pixels the same way if one row is much larger
        # than the others.
        unsure = (estimates.rounded(grid) * grid.levels > 0.5).any(1)
        missed = torch.where(unsure, missed.clamp_min(0.5), missed)
    return torch.where(strays, torch.ones_like(missed), missed)


def repeated(stack: Tensor) -> float:
    """How much larger errors are than independent rounds would make them.

    A model that stands still repeats its rounding: an entry that is equal in two rounds in a row
    has the same error in both.

    Args:
        stack: (m, H, p + 1) rows of the first layer.

    Returns:
        The square root of rounds over rounds that count, at least 1.
    """
    told = stack[1:] != 0
    equal = (stack[1:] == stack[:-1]) & told
    share = equal.flatten(1).sum(1) / told.flatten(1).sum(1).clamp_min(1)
    return math.sqrt(len(stack) / (1 + float((1 - share).sum())))
