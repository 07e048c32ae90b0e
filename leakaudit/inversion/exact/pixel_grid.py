"""What the data's grid k/levels tells of a reconstruction: whether it is exact, and which multiple of another input it still holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

OFF = 0.09  # largest rms distance to the grid, in grid units, at which noise takes no pixel to another value; 0.289 for anything else
NEAR = 0.2  # the same at which rounding to the grid removes more noise than it adds
OFF_SEARCHED = 0.08  # the same where many candidates were tried
INSIDE = 24  # pixels strictly inside the range that must be there to be judged
RANGE = 0.01  # how far a pixel may leave [0, 1]
TRIALS = 100_000  # most candidates that are tried: a plane of 256 levels, or a line of 65536
CHUNK = 4096  # candidates that are looked at together
FIRST = 48  # pixels that a first look at a candidate takes


@dataclass(frozen=True)
class Grid:
    """Inputs k/levels, seen by the model as (x - mean) / std.

    shape: of an input; mean, std: (p,) for the flattened input.
    """

    levels: int
    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, task: Task) -> Grid:
        """Return the grid of a task's data, with mean and standard deviation of every entry."""
        like = torch.ones(task.spec.shape, dtype=torch.float64)
        mean, std = task.mean_and_std(like)
        return cls(task.spec.levels, (mean * like).flatten(), (std * like).flatten())

    def pixels(self, rows: Tensor) -> Tensor:
        """Turn rows (n, p + 1) of inputs and a 1, each known up to its scale, into the data's units (n, p)."""
        return rows[:, :-1] / rows[:, -1:] * self.std + self.mean

    def rows(self, x: Tensor) -> Tensor:
        """Turn inputs (n, p) into what the first layer sees and a 1: (n, p + 1)."""
        return torch.cat([(x - self.mean) / self.std, x.new_ones(len(x), 1)], dim=1)

    def snapped(self, x: Tensor) -> Tensor:
        """Return the nearest inputs on the grid."""
        return (x * self.levels).round().clamp(0, self.levels) / self.levels

    def denoised(self, x: Tensor) -> Tensor:
        """Round the inputs (n, p) that are near the grid."""
        if not self.levels:
            return x
        away = x * self.levels - (x * self.levels).round()
        return torch.where((away.square().mean(1) < NEAR**2)[:, None], self.snapped(x), x)

    def holds(self, x: Tensor, limit: float = OFF) -> Tensor:
        """Tell which inputs (n, p) lie on the grid, by their pixels strictly inside the range; (n,) bool.

        Pixels at its ends say little: a mixture of two inputs is black wherever both are.
        """
        if not self.levels:
            return torch.zeros(len(x), dtype=torch.bool, device=x.device)
        away = x * self.levels - (x * self.levels).round()
        snapped = self.snapped(x)
        inside = (snapped > 0) & (snapped < 1)
        number = inside.sum(1)
        off = (away.square() * inside).sum(1) / number.clamp_min(1)
        low, high = x.amin(1), x.amax(1)
        good: Tensor = (
            (off < limit**2)
            & (away.square().mean(1) < limit**2)
            & (number >= INSIDE)
            & (low > -RANGE)
            & (high < 1 + RANGE)
        )
        return good & x.isfinite().all(1)

    def on_line(self, x: Tensor, other: Tensor) -> Tensor | None:
        """Return other + a (x - other) on the grid, for the one number a that puts it there; x, other, result: (p,)."""
        return self.in_plane(x, other[None])

    def in_plane(self, x: Tensor, others: Tensor) -> Tensor | None:
        """Return x + sum_k a_k (other_k - x) on the grid, for one or two inputs others (k, p); None where none lies there.

        As many pixels as there are others are set to every value; the rest must then fall on the grid.
        """
        sides = others - x
        pivot = _pivots(sides)
        number = (self.levels + 1) ** len(others)
        if not self.levels or pivot is None or not bool(x.isfinite().all()) or number > TRIALS:
            return None
        values = torch.cartesian_prod(
            *[torch.arange(self.levels + 1, dtype=x.dtype) / self.levels] * len(others)
        ).reshape(-1, len(others))
        a = torch.linalg.solve(sides[:, pivot].T, (values - x[pivot]).T).T
        first = sides.abs().amin(0).topk(min(FIRST, len(x))).indices
        for some in a.split(CHUNK):
            look = x[first] + some @ sides[:, first]
            off = (look * self.levels - (look * self.levels).round()).square().mean(1)
            fine = (
                (off < (2 * OFF_SEARCHED) ** 2)
                & (look.amin(1) > -RANGE)
                & (look.amax(1) < 1 + RANGE)
            )
            fine &= (some.sum(1) - 1).abs() > 1e-6  # a = 1 is the other input itself
            whole = x + some[fine] @ sides
            whole = whole[self.holds(whole, OFF_SEARCHED)]
            apart = (
                (whole[:, None] - others).abs().amax(2).amin(1) > 0.5 / self.levels
                if len(whole)
                else torch.zeros(0, dtype=torch.bool)
            )
            if bool(apart.any()):
                found: Tensor = whole[apart][0]
                return found
        return None


def others_between(x: Tensor, companions: Tensor, levels: int) -> Tensor | None:
    """List all images x + sum_k a_k (companion_k - x) with pixels 0, 1/levels, ..., 1 that are none of those given.

    Integer multiples are the obvious ones, such as 2x - y, but where images share a factor, so that all differences are multiples of
    17, say, fractions count too. So the pixels where the companions differ most from x take every value, and all others must follow.

    Args:
        x: (p,) on the grid.
        companions: (k, p) on the grid, k <= 2, and independent of x.
        levels: Steps of the grid between 0 and 1.

    Returns:
        (n, p), or None if there are too many companions to try.
    """
    if not len(companions):
        return x[None, :][:0]
    start, ends = (x * levels).round().long(), (companions * levels).round().long()
    sides = ends - start
    pivot = _pivots(sides.double())
    if len(companions) > 2 or (levels + 1) ** len(companions) > TRIALS or pivot is None:
        return None
    values = torch.arange(levels + 1)
    moves = torch.cartesian_prod(*[values - start[p] for p in pivot]).reshape(-1, len(pivot))
    # a = moves @ inverse of the pivots' sides, with the determinant as common denominator, all in integers
    corner = sides[:, pivot]
    if len(pivot) == 1:
        adjoint, denominator = torch.ones(1, 1, dtype=torch.long), int(corner)
    else:
        adjoint = torch.stack(
            [torch.stack([corner[1, 1], -corner[0, 1]]), torch.stack([-corner[1, 0], corner[0, 0]])]
        )
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
    """Return start + moves / denominator (n, p) and which rows (n,) of it are integers from 0 to levels."""
    there = start + moves.div(denominator, rounding_mode="floor")
    whole = (moves % denominator == 0).all(1)
    return there, whole & (there >= 0).all(1) & (there <= levels).all(1)


def _pivots(sides: Tensor) -> list[int] | None:
    """Choose pixels where the sides (k, p) are large and independent."""
    left, chosen = sides.clone(), list[int]()
    for _ in range(len(sides)):
        size = left.square().sum(0)
        at = int(size.argmax())
        if not float(size[at]) > 1e-8:
            return None
        chosen.append(at)
        column = left[:, at] / size[at].sqrt()
        left = left - column[:, None] * (column @ left)
    return chosen
