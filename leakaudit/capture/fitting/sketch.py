"""A sketch of the parameters that a tap leaves out: a few sums of all their numbers."""

# Most of a large model is worth nothing to an attack on its first or last layer, but without it
# nobody can check that a recomputed gradient is the one that was sent. A sketch is a linear map
# from all left-out numbers to 1024 of them, so it can be compared with the sketch of a recomputed
# vector, and sums, means and multiples of vectors have the same sums, means and multiples of
# sketches.
#
# The numbers of each parameter are written in rows of WIDTH, each parameter beginning a new row,
# and row i of the whole model has ROWS signs s_ri. Entry (r, c) of the sketch is the sum over all
# rows of s_ri x_ic: one pass over the numbers, as a product of two matrices. For signs that are
# drawn at random, its square is on average the sum of the squares in column c. A difference that is
# aligned with the rows could cancel with one sign per row, but hardly with ROWS at once.
#
# This module does not import torch before it is used.

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import shake_128
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 4  # independent signs per row of numbers; ROWS x WIDTH numbers are stored: choices
WIDTH = 256
NUMBERS = ROWS * WIDTH


class ModelSketch:
    """The linear map for one model, whose parameters have some sizes.

    seed: determines the signs, which are the bits of SHAKE128 of "leakaudit sketch SEED".
    """

    def __init__(self, sizes: Sequence[int], seed: int) -> None:
        self.seed = seed
        heights = [-(-size // WIDTH) for size in sizes]
        self._first = [0, *accumulate(heights)]  # row in which each parameter begins
        self._signs: Tensor | None = None

    def added(self, total: Tensor | None, place: int, values: Tensor) -> Tensor:
        """Return the sum (ROWS, WIDTH) with that of one parameter, which is added to it in place.

        total: the sum so far; None to begin one.
        """
        import torch

        if total is None:
            # Sums in a shorter format would be rounded far more coarsely than the numbers.
            wide = torch.promote_types(values.dtype, torch.float32)
            total = torch.zeros(ROWS, WIDTH, dtype=wide, device=values.device)
        flat = values.detach().reshape(-1).to(total.dtype)
        signs = self._of(total)
        first = self._first[place]
        full = len(flat) // WIDTH
        end = first + full
        if full:
            total.addmm_(signs[:, first:end], flat[: full * WIDTH].view(full, WIDTH))
        rest = len(flat) - full * WIDTH
        if rest:
            total[:, :rest].addmm_(signs[:, end : end + 1], flat[full * WIDTH :].view(1, rest))
        return total

    def _of(self, like: Tensor) -> Tensor:
        """Return the signs (ROWS, rows of the model) in the format of a tensor, on its device."""
        if self._signs is None:
            import numpy as np
            import torch

            count = self._first[-1]
            source = shake_128(f"leakaudit sketch {self.seed}".encode())
            drawn = np.frombuffer(source.digest(-(-ROWS * count // 8)), np.uint8)
            bits = np.unpackbits(drawn)[: ROWS * count].reshape(ROWS, count)
            self._signs = torch.from_numpy(2 * bits.astype(np.float32) - 1)
        self._signs = self._signs.to(like)
        return self._signs


@dataclass(frozen=True)
class FactorDeviation:
    """How a recomputed vector differs from a recorded one, up to one factor."""

    step: float  # the factor, by least squares over the recorded columns
    kept: float  # relative miss of the recorded columns
    rest: float  # relative miss of the sketch of the others; 0 if all columns are recorded

    @property
    def miss(self) -> float:
        """The larger of both misses."""
        return max(self.kept, self.rest)


@dataclass(frozen=True)
class RecordedPart:
    """What is recorded of a vector (d,)."""

    kept: Tensor  # (d,) bool, the columns whose numbers are recorded
    # place of a parameter among all -> its columns, for the sketched parameters
    others: Mapping[int, slice]
    sketch: ModelSketch  # the linear map
    total: Tensor  # (ROWS, WIDTH) float64, the sketch of these parameters

    def of(self, vector: Tensor) -> Tensor:
        """Return the sketch (ROWS, WIDTH) of the same parameters of another vector (d,)."""
        import torch

        total = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
        for place, columns in self.others.items():
            self.sketch.added(total, place, vector[columns])
        return total

    def subtracted_from(self, vector: Tensor) -> RecordedPart:
        """Return the part of a vector (d,), all of which is known, less the recorded one."""
        return replace(self, total=self.of(vector) - self.total)


def deviation(value: Tensor, vector: Tensor, part: RecordedPart | None = None) -> FactorDeviation:
    """Compare the recorded columns of a value (d,) with a recomputed vector (d,)."""
    # A difference outside the recorded columns shows in the sketch only, so that both have to
    # fit. Its miss is relative to the sketch, which is about as long as the sketched numbers.
    sent = value.double()
    again = vector.double()
    if part is not None:
        sent = sent[part.kept]
        again = again[part.kept]
    square = float(again @ again)
    step = float(sent @ again) / square if square else 0.0
    rest = 0.0
    if part is not None:
        rest = _miss(part.total - step * part.of(vector), part.total)
    return FactorDeviation(step, _miss(sent - step * again, sent), rest)


def _miss(difference: Tensor, of: Tensor) -> float:
    length = float(difference.norm())
    whole = float(of.norm())
    if whole:
        return length / whole
    return math.inf if length else 0.0
