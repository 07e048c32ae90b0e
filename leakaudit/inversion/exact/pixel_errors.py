"""The error of every pixel, estimated from the rows themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakaudit.inversion.exact.pixel_grid import PixelGrid
from leakaudit.inversion.linear import least_squares

# Once the inputs X (b, p + 1) are known, the slopes Delta follow by least squares, and the inputs
# can be estimated again from all rows, column by column: X = (Delta' Delta)^-1 Delta' W. The
# residual of a column of W is its noise, and (Delta' Delta)^-1 determines how much of it enters
# each input. Every pixel therefore has an error of its own, measured in the data, independent of
# the noise that a protocol declares. This matters because messages round large values more than
# small ones, and zeros not at all.
#
# `wrong_pixel` converts these errors into the probability that rounding to the grid moved a pixel
# to a wrong level, `Estimates.half_widths` into intervals for data without a grid.

# Joint confidence of the intervals for all values of a reconstruction (Bonferroni).
SURE = 0.99

# Messages round large numbers more than small ones: the errors of some rows exceed the average by
# this factor.
UNEVEN = 2.0

# Factor by which measured errors are increased: they are not quite Gaussian, and are estimates
# themselves. A choice on the safe side.
CAUTION = 1.5

# Distance to the grid, in grid units, that a program's own rounding explains: k/255 in float32,
# normalised, is off by up to 2e-5.
STORED = 1e-4

# Maximum distance to the grid, in grid units, up to which twice as many deviations as `STRAY` are
# allowed, because rounding is not Gaussian: 11 of them, or 1e-3, were observed in a batch of 32
# from float32 messages.
LEVEL = 5e-3

# Precision of messages above which they have half precision: 8e-3 for bfloat16, 1e-3 for float16,
# 1e-7 for float32.
HALF = 1e-4

# Distance to the grid, in grid units, beyond which a pixel is nearly as close to another level.
HALFWAY = 0.25

# Errors, in units of their standard deviation, beyond which a pixel contains something else. A
# Gaussian error exceeds 8 with probability 1e-15.
STRAY = 8.0

# Number of rows beyond unknowns above which the noise of each column is well known: to 13 %.
MANY = 30

# Columns of the rows that are processed together, which bounds the memory.
COLUMNS = 512


@dataclass(frozen=True)
class Estimates:
    """Inputs that are estimated again, column by column, from all rows."""

    values: Tensor  # (b, p + 1), each known up to its scale
    # (p + 1,) standard deviation of the rows' errors in each column, from its residual
    noise: Tensor
    # (p + 1,) the standard deviation that the leak states; rounding is in proportion to a column's
    # size, unless a state of the sender keeps that of other columns and nodes
    stated: Tensor
    gain: Tensor  # (b, 1) or (b, p) the error of an estimate per unit of noise
    freedom: int  # number of rows beyond unknowns
    # (b, p + 1) largest errors of the values if every row's entries are off by half of the
    # messages' precision, the worst that rounding can cause
    rounding: Tensor
    coarse: bool  # whether the messages have half precision

    @classmethod
    def of(cls, white: Tensor, rows: Tensor, stack: Tensor, wire: float, fresh: bool) -> Estimates:
        """Estimate inputs (b, p + 1), as the first layer receives them, again from whitened rows.

        Errors of repeated rows in the original `stack` do not average out. `fresh` is as in
        `first_layer_rows.fresh`.
        """
        flat = white.flatten(0, 1)
        slopes = least_squares(rows.T, flat.T).T
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
            # Few rows may agree by chance, or repeat each other and hide their rounding. No column
            # is assumed to be relatively more precise than all are together, nor than the leak
            # states, which is 1 here, in proportion to its size.
            noise = noise.clamp_min(noise.square().mean().sqrt() * share).clamp_min(share)
        stated = torch.ones_like(noise)
        if fresh and freedom >= MANY:
            stated = share.clamp_max(1)
        gain = repeated(stack) * inverse.diagonal().clamp_min(0).sqrt()
        return cls(again, noise, stated, gain[:, None], freedom, rounding, wire > HALF)

    @classmethod
    def observed(cls, white: Tensor, seen: Tensor, rows: Tensor, stack: Tensor) -> Estimates:
        """Estimate inputs (b, p + 1) again from rows of which only some entries were observed.

        Every column has equations of its own, from the neurons (H, p + 1) that show it. Its
        noise is measured in its residual, and never assumed to be smaller than the leak
        states.
        """
        b, columns = rows.shape
        grams = rows.new_zeros(columns, b, b)
        sides = rows.new_zeros(columns, b)
        count = rows.new_zeros(columns)
        shown: list[tuple[Tensor, Tensor, Tensor]] = []
        for r, mine in enumerate(seen):
            part = white[:, r, mine]
            if part.shape[1] <= b:
                continue
            slopes = least_squares(rows[:, mine].T, part.T).T
            grams[mine] += slopes.T @ slopes
            sides[mine] += part.T @ slopes
            count[mine] += len(part)
            shown.append((mine, part, slopes))
        inverse = torch.linalg.pinv(grams, hermitian=True)
        again = (inverse @ sides[:, :, None])[:, :, 0].T
        left = rows.new_zeros(columns)
        for mine, part, slopes in shown:
            left[mine] += (part - slopes @ again[:, mine]).square().sum(0)
        freedom = (count - b).clamp_min(0)
        noise = (left / freedom.clamp_min(1)).sqrt().clamp_min(1.0)
        gain = repeated(stack) * inverse.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt().T
        # The scale comes from the last column, whose error may be larger than a pixel's.
        gain = gain[:, :-1].maximum(gain[:, -1:])
        stated = torch.ones_like(noise)
        none = torch.zeros_like(rows)
        return cls(again, noise, stated, gain, int(freedom.min()), none, coarse=False)

    def pixels(self, grid: PixelGrid) -> Tensor:
        """Return the inputs (b, p) in the data's units."""
        return self.values[:, :-1] / self.values[:, -1:] * grid.std + grid.mean

    def errors(self, grid: PixelGrid, noise: Tensor) -> Tensor:
        """Return standard deviations (b, p) of the inputs' errors, to first order, in data units.

        A pixel is the ratio of its column to the last one, the 1 that follows every input,
        and both have errors `noise` (p + 1,).
        """
        seen = self.values[:, :-1] / self.values[:, -1:]
        both = torch.hypot(noise[:-1], seen * noise[-1])
        return both * self.gain / self.values[:, -1:].abs() * grid.std

    def half_widths(self, grid: PixelGrid) -> Tensor:
        """Return half-widths (b, p) of intervals that contain all values jointly (see `SURE`).

        The error of a column is the measured one, with Student's quantile for the number of
        rows, or the one that the leak states. It is never less than the worst that rounding
        can cause: if one row is much larger than the others, or rows repeat, rounding
        errors do not average out.
        """
        from scipy.special import ndtri, stdtrit  # slow to import, and only intervals need it

        tail = (1 - SURE) / (2 * self.values.numel())
        if self.freedom:
            shown = -self.noise * float(stdtrit(self.freedom, tail))
        else:
            shown = torch.zeros_like(self.noise)
        noise = UNEVEN * shown.maximum(-float(ndtri(tail)) * self.stated)
        return self.errors(grid, noise).maximum(self.rounded(grid))

    def rounded(self, grid: PixelGrid) -> Tensor:
        """Return the errors (b, p) in the data's units that rounding can cause at worst."""
        seen = self.values[:, :-1] / self.values[:, -1:]
        worst = self.rounding[:, :-1] + seen.abs() * self.rounding[:, -1:]
        return worst / self.values[:, -1:].abs() * grid.std


def wrong_pixel(estimates: Estimates, grid: PixelGrid, x: Tensor) -> Tensor:
    """Bound the probability (b,) that a pixel of an image (p,) has another level than it should.

    A pixel is wrong if its error exceeds half a grid unit; the bound is the sum over all
    pixels. It is 1 if a pixel is farther from its level than errors explain.
    """
    off = (estimates.pixels(grid) - x) * grid.levels
    spread = estimates.errors(grid, estimates.noise) * grid.levels
    missed = torch.special.erfc(0.5 / (CAUTION * spread.clamp_min(1e-12)) / math.sqrt(2)).sum(1)
    explained = STRAY * spread
    explained = explained + explained.clamp_max(LEVEL) + STORED
    strays = (off.abs() > explained.clamp_max(HALFWAY)).any(1)
    if estimates.coarse:
        # Rounding to half precision moves several pixels in the same direction if one row is much
        # larger than the others.
        unsure = (estimates.rounded(grid) * grid.levels > 0.5).any(1)
        missed = torch.where(unsure, missed.clamp_min(0.5), missed)
    return torch.where(strays, torch.ones_like(missed), missed)


def repeated(stack: Tensor) -> float:
    """Return how much larger errors are than for independent rounds.

    A model that does not change repeats its rounding: an entry that is equal in two consecutive
    rounds has the same error in both.
    """
    told = stack[1:] != 0
    equal = (stack[1:] == stack[:-1]) & told
    share = equal.flatten(1).sum(1) / told.flatten(1).sum(1).clamp_min(1)
    return math.sqrt(len(stack) / (1 + float((1 - share).sum())))
