"""What the data's grid k/levels reveals about a reconstruction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# Images are stored as whole grey levels, k/255 for eight bits, so they lie on a grid. An estimate
# with small errors is near the grid in every pixel. A wrong one, such as a mixture of two images,
# is not: its distances are practically uniform, with a root mean square of 1/sqrt(12) = 0.289 grid
# units. The grid therefore distinguishes a correct estimate from a wrong one without access to the
# truth, and rounding then makes it exact.
#
# It also reveals how much of another input an estimate still contains. If x = x_true + a (y -
# x_true) with one known input y and an unknown number a, only one value of a takes all pixels onto
# the grid. A pixel has levels + 1 possible values, and each of them gives an a that the other
# pixels confirm or refute (`PixelGrid.in_plane`). `others_between` uses the same idea in integers
# to list all images with which two or three images on the grid could be confused.

# Maximum root mean square distance to the grid, in grid units, of an estimate that lies on it.
# Gaussian errors of this size exceed half a unit with probability 3e-8.
OFF = 0.09

# The same if many candidates are tried. See `INSIDE`.
OFF_SEARCHED = 0.08

# Minimum number of pixels strictly inside the range for an estimate to be judged. By the volume of
# a ball in 24 dimensions, uniform distances have a root mean square below `OFF` with probability
# 6e-12, and below `OFF_SEARCHED` with 3e-13, or 3e-8 for any of `TRIALS` candidates.
INSIDE = 24

# Distance below which rounding to the grid removes more noise than it adds. Errors of size s leave
# a mean square of erfc(1 / (2 sqrt(2) s)) after rounding, which is less than s^2 up to s = 0.29 and
# a third of it at 0.2.
NEAR = 0.2

# Maximum distance of a pixel from [0, 1]. A choice: 2.5 grey levels of 255, far above `OFF`.
RANGE = 0.01

# Maximum number of candidates to try: enough for a plane of 256^2 levels or a line of 65,536.
TRIALS = 100_000

# Number of candidates that are examined at once, which bounds the memory.
CHUNK = 4096

# Number of pixels in a first check of a candidate. It only saves time: the few candidates that pass
# are checked in all pixels, and the first check is twice as lenient.
FIRST = 48

# Minimum squared size of a pixel's differences, in the data's units, for it to be a pivot.
FLAT = 1e-8

# Distance from 1 of the multiple that turns an estimate into the other input itself.
ITSELF = 1e-6


@dataclass(frozen=True)
class PixelGrid:
    """Inputs k/levels, which the model receives as (x - mean) / std."""

    levels: int  # number of steps of the grid between 0 and 1, or 0 if the data have no grid
    mean: Tensor  # (p,) subtracted from the flattened input
    std: Tensor  # (p,) divisor of the result

    @classmethod
    def of(cls, task: Task) -> PixelGrid:
        """Return the grid of a task's data."""
        like = torch.ones(task.spec.shape, dtype=torch.float64)
        mean, std = task.mean_and_std(like)
        return cls(task.spec.levels, (mean * like).flatten(), (std * like).flatten())

    def pixels(self, rows: Tensor) -> Tensor:
        """Convert rows (n, p + 1), multiples of an input and a 1, into the data's units (n, p)."""
        return rows[:, :-1] / rows[:, -1:] * self.std + self.mean

    def rows(self, x: Tensor) -> Tensor:
        """Convert inputs (n, p) into what the first layer receives, followed by a 1: (n, p + 1)."""
        return torch.cat([(x - self.mean) / self.std, x.new_ones(len(x), 1)], dim=1)

    def snapped(self, x: Tensor) -> Tensor:
        """Return the nearest inputs on the grid."""
        return (x * self.levels).round().clamp(0, self.levels) / self.levels

    def rounded(self, x: Tensor) -> Tensor:
        """Return the nearest inputs on the grid, both as the network receives them."""
        return (self.snapped(x * self.std + self.mean) - self.mean) / self.std

    def stored(self, x: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (n, p) on the grid as the first layer received them.

        The program may have stored k/levels in full or rounded it to float32. The version that
        lies closer to the space with `basis` (b, p + 1) is returned: its rows (n, p + 1), and its
        coordinates (n, b) in the space.
        """
        versions = torch.stack([self.rows(x), self.rows(x.float().to(x))])
        inside = versions @ basis.T
        off = (versions - inside @ basis).norm(dim=2)
        full = (off[0] < off[1])[:, None]
        rows = torch.where(full, versions[0], versions[1])
        return rows, torch.where(full, inside[0], inside[1])

    def denoised(self, x: Tensor) -> Tensor:
        """Round the inputs (n, p) that are close enough to the grid to benefit (`NEAR`)."""
        if not self.levels:
            return x
        away = self._away(x)
        return torch.where((away.square().mean(1) < NEAR**2)[:, None], self.snapped(x), x)

    def holds(self, x: Tensor, limit: float = OFF) -> Tensor:
        """Decide which inputs (n, p) lie on the grid, by their pixels strictly inside the range.

        Pixels at its ends carry little information: a mixture of two inputs is black
        wherever both are. `limit` is the maximum root mean square distance, in grid units.
        """
        if not self.levels:
            return torch.zeros(len(x), dtype=torch.bool, device=x.device)
        away = self._away(x)
        snapped = self.snapped(x)
        inside = (snapped > 0) & (snapped < 1)
        number = inside.sum(1)
        off = (away.square() * inside).sum(1) / number.clamp_min(1)
        near = (off < limit**2) & (away.square().mean(1) < limit**2)
        in_range = (x.amin(1) > -RANGE) & (x.amax(1) < 1 + RANGE)
        good: Tensor = near & (number >= INSIDE) & in_range
        return good & x.isfinite().all(1)

    def in_plane(self, x: Tensor, others: Tensor) -> Tensor | None:
        """Return x + sum_k a_k (other_k - x) on the grid, except the others (k, p), or None.

        As many pixels as there are other inputs, the pivots, are set to every combination
        of levels. Each choice determines the a_k, and the other pixels must then lie on the
        grid.
        """
        sides = others - x
        pivot = _pivots(sides)
        number = (self.levels + 1) ** len(others)
        if not self.levels or pivot is None or not bool(x.isfinite().all()) or number > TRIALS:
            return None
        one = torch.arange(self.levels + 1, dtype=x.dtype) / self.levels
        values = torch.cartesian_prod(*[one] * len(others)).reshape(-1, len(others))
        a = torch.linalg.solve(sides[:, pivot].T, (values - x[pivot]).T).T
        first = sides.abs().amin(0).topk(min(FIRST, len(x))).indices
        for some in a.split(CHUNK):
            look = x[first] + some @ sides[:, first]
            off = self._away(look).square().mean(1)
            fine = off < (2 * OFF_SEARCHED) ** 2
            fine &= (look.amin(1) > -RANGE) & (look.amax(1) < 1 + RANGE)
            fine &= (some.sum(1) - 1).abs() > ITSELF
            whole = x + some[fine] @ sides
            whole = whole[self.holds(whole, OFF_SEARCHED)]
            if not len(whole):
                continue
            apart = (whole[:, None] - others).abs().amax(2).amin(1) > 0.5 / self.levels
            if bool(apart.any()):
                found: Tensor = whole[apart][0]
                return found
        return None

    def _away(self, x: Tensor) -> Tensor:
        """Return the distances of all pixels to the grid, in grid units."""
        return x * self.levels - (x * self.levels).round()


def others_between(x: Tensor, companions: Tensor, levels: int) -> Tensor | None:
    """List all images x + sum_k a_k (companion_k - x) on the grid, except those given.

    Integer multiples are obvious, such as 2x - y. But if images share a factor, for example if
    all differences are multiples of 17, fractions are also possible. Therefore the pixels where
    the companions (k, p) differ most from x are set to every value, which determines all
    others. Everything is computed in integers, so that the list is complete. None if k > 2, or
    too many.
    """
    if not len(companions):
        return x[None, :][:0]
    start = (x * levels).round().long()
    ends = (companions * levels).round().long()
    sides = ends - start
    pivot = _pivots(sides.double())
    if len(companions) > 2 or (levels + 1) ** len(companions) > TRIALS or pivot is None:
        return None
    values = torch.arange(levels + 1)
    moves = torch.cartesian_prod(*[values - start[p] for p in pivot]).reshape(-1, len(pivot))
    # a = moves @ inverse of the pivots' sides. By Cramer's rule this is the adjoint over the
    # determinant, which is the common denominator of all a.
    corner = sides[:, pivot]
    if len(pivot) == 1:
        adjoint = torch.ones(1, 1, dtype=torch.long)
        denominator = int(corner)
    else:
        above = torch.stack([corner[1, 1], -corner[0, 1]])
        below = torch.stack([-corner[1, 0], corner[0, 0]])
        adjoint = torch.stack([above, below])
        denominator = int(corner[0, 0] * corner[1, 1] - corner[0, 1] * corner[1, 0])
    first = sides.abs().amin(0).topk(min(FIRST, len(x))).indices
    found = []
    for some in (moves @ adjoint).split(CHUNK):
        look = _integers(start[first], some @ sides[:, first], denominator, levels)[1]
        values_there, good = _integers(start, some[look] @ sides, denominator, levels)
        found.append(values_there[good])
    every = torch.cat(found)
    given = torch.cat([start[None], ends])
    new = (every[:, None] != given).any(2).all(1)
    return every[new].to(x) / levels


def _integers(start: Tensor, moves: Tensor, denominator: int, levels: int) -> tuple[Tensor, Tensor]:
    """Return start + moves / denominator (n, p), and which rows (n,) are integers in range."""
    there = start + moves.div(denominator, rounding_mode="floor")
    whole = (moves % denominator == 0).all(1)
    return there, whole & (there >= 0).all(1) & (there <= levels).all(1)


def _pivots(sides: Tensor) -> list[int] | None:
    """Choose as many pixels as there are sides (k, p), where these are large and independent.

    Gaussian elimination with column pivoting; None if the sides are linearly dependent.
    """
    left = sides.clone()
    chosen: list[int] = []
    for _ in range(len(sides)):
        size = left.square().sum(0)
        at = int(size.argmax())
        if not float(size[at]) > FLAT:
            return None
        chosen.append(at)
        column = left[:, at] / size[at].sqrt()
        left = left - column[:, None] * (column @ left)
    return chosen
