"""A sketch of the parameters that a tap leaves out: a few sums of all their numbers.

Most of a large model is worth nothing to an attack on its first or last layer, but without it
nobody can check that a recomputed gradient is the one that was sent. A sketch is a linear map from
all left-out numbers to 1024 of them, so it can be compared with the sketch of a recomputed vector,
and sums, means and multiples of vectors have the same sums, means and multiples of sketches.

The numbers of each parameter are written in rows of WIDTH, each parameter beginning a new row, and
row i of the whole model has ROWS signs s_ri. Entry (r, c) of the sketch is the sum over all rows of
s_ri x_ic: one pass over the numbers, as a product of two matrices. For signs that are drawn at
random, its square is on average the sum of the squares in column c. A difference that is aligned
with the rows could cancel with one sign per row, but hardly with ROWS at once.

This module does not import torch before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import shake_128
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 4  # independent signs per row of numbers; ROWS x WIDTH numbers are stored: choices
WIDTH = 256
NUMBERS = ROWS * WIDTH


class ModelSketch:
    """The linear map for one model.

    Args:
        sizes: lengths of all parameters, in the order in which they are sent.
        seed: determines the signs, which are the bits of SHAKE128 of "leakaudit sketch SEED".
    """

    def __init__(self, sizes: Sequence[int], seed: int) -> None:
        self.seed = seed
        heights = [-(-size // WIDTH) for size in sizes]
        self._first = [0, *accumulate(heights)]  # row in which each parameter begins
        self._signs: Tensor | None = None

    def add(self, total: Tensor, place: int, values: Tensor) -> None:
        """Add the sketch of one parameter.

        Args:
            total: (ROWS, WIDTH) the sum so far, which is changed.
        """
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


class RunningSketch:
    """The sketch of one message whose parameters come one after the other."""

    def __init__(self, sketch: ModelSketch) -> None:
        self._sketch = sketch
        self._total: Tensor | None = None
        self._places: list[int] = []

    def add(self, place: int, values: Tensor) -> None:
        """Add a parameter."""
        import torch

        if self._total is None:
            # Sums in a shorter format would be rounded far more coarsely than the numbers.
            wide = torch.promote_types(values.dtype, torch.float32)
            self._total = torch.zeros(ROWS, WIDTH, dtype=wide, device=values.device)
        self._sketch.add(self._total, place, values)
        self._places.append(place)

    def take(self) -> tuple[Tensor, list[int]] | None:
        """Return the sketch of what was added, with the places, and begin anew.

        Returns:
            (ROWS, WIDTH) and the places; None if nothing was added.
        """
        if self._total is None:
            return None
        taken = self._total, self._places
        self._total = None
        self._places = []
        return taken
