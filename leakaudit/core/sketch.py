"""A sketch of a vector: 1024 sums of all its numbers, of which every linear relation can be tested.

A protocol's relations sum_k c_k x_k = 0 hold in every coordinate, so for a linear map S, sum_k c_k
S x_k = 0 as well. The converse holds for almost all signs, as follows.

The numbers of a vector are written in rows of WIDTH, and row i has ROWS random signs s_ri. Entry
(r, c) of the sketch is sum_i s_ri x_ic / sqrt(ROWS), so the expected squared length of S x is that
of x. If y has a non-zero number in column c, the sum of this column vanishes for at most half of
all signs, and so all ROWS sums vanish with probability at most 2^-ROWS (without rounding, for a y
that was not chosen with the signs in mind). The map is a product of two matrices. Projections by
random signs are those of Achlioptas 2003; here, the numbers of a row share their signs.
"""

from __future__ import annotations

from functools import cached_property
from hashlib import shake_128
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the layout of a sketch is read without torch
    from torch import Tensor

ROWS = 16  # signs per row of numbers; ROWS x WIDTH sums take 4 kB per message in float32: choices
WIDTH = 64
NUMBERS = ROWS * WIDTH
TOGETHER = 1 << 17  # numbers of a vector that are multiplied at once, which fit into a cache


def signs(seed: int, rows: int, count: int) -> Tensor:
    """Return signs (rows, count): the bits of SHAKE128 of "leakaudit sketch SEED", 1 for plus."""
    import numpy as np
    import torch

    source = shake_128(f"leakaudit sketch {seed}".encode())
    drawn = np.frombuffer(source.digest(-(-rows * count // 8)), np.uint8)
    bits = np.unpackbits(drawn, count=rows * count).reshape(rows, count)
    return torch.from_numpy(2 * bits.astype(np.float32) - 1)


class Sketch:
    """The linear map S for vectors of one length."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.seed = seed

    def of(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sketches (n, NUMBERS) and the norms (n,), in float64, of vectors (n, d)."""
        import torch

        total = values.new_zeros(len(values), NUMBERS, dtype=torch.float64)
        squares = values.new_zeros(len(values), dtype=torch.float64)
        self.add(total, values, squares=squares)
        return total, squares.sqrt_()

    def add(
        self, total: Tensor, values: Tensor, start: int = 0, squares: Tensor | None = None
    ) -> None:
        """Add the sketches of some columns of vectors; the columns may come in any order.

        Args:
            total: (n, NUMBERS) the sketches so far, in float64, which are changed.
            values: (n, c) columns of the vectors.
            start: The first of these columns, a multiple of WIDTH.
            squares: (n,) the sums of squares so far, in float64, which are changed.
        """
        import torch

        sums = total.view(-1, ROWS, WIDTH)
        wide = torch.promote_types(values.dtype, torch.float32)
        drawn = self._scaled.to(values.device, wide)
        row = start // WIDTH
        # Signs of a few rows are multiplied with the numbers of all vectors, and the sums are
        # accumulated in float64, so that their rounding error does not grow with d.
        step = max(WIDTH, TOGETHER // WIDTH * WIDTH)
        for at in range(0, values.shape[1], step):
            part = values[:, at : at + step].to(wide)
            if squares is not None:
                squares += torch.linalg.vector_norm(part, dim=1).double().square_()
            full = part.shape[1] // WIDTH
            first = row + at // WIDTH
            if full:
                block = part[:, : full * WIDTH].unflatten(1, (full, WIDTH))
                sums += torch.matmul(drawn[:, first : first + full], block)
            rest = part[:, full * WIDTH :]
            if rest.shape[1]:  # the last row of the vector is shorter
                sums[:, :, : rest.shape[1]] += drawn[:, first + full, None] * rest[:, None]

    @cached_property
    def _scaled(self) -> Tensor:
        """The signs over sqrt(ROWS), (ROWS, rows of a vector)."""
        scaled: Tensor = signs(self.seed, ROWS, -(-self.size // WIDTH)) / ROWS**0.5
        return scaled
