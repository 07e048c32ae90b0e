"""Coordinates in which a photograph's coarse and fine parts are more alike in size, so that a search finds both.

Amplitudes of photographs fall as 1/f (Field 1987, Relations between the statistics of natural images and the response properties of
cortical cells). L-BFGS starts without knowing that: in pixels it takes about three times the evaluations to the same error. Half of the
fall, 1/sqrt(f), is taken here, as with the whole of it the finest parts come last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FALL = 0.5  # power of 1/f


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Cosine coefficients of each channel (..., h, w), divided by `size` (h, w).

    rows (h, h), columns (w, w): orthonormal cosine transforms (DCT-II).
    """

    rows: Tensor
    columns: Tensor
    size: Tensor

    @classmethod
    def of(cls, shape: Sequence[int], device: torch.device | str = "cpu") -> Spectrum | None:
        """Return those of images (channels, h, w), None for inputs of another shape."""
        if len(shape) != 3:
            return None
        rows, columns = (_cosines(n).to(device) for n in shape[1:])
        down, right = (torch.arange(n, dtype=torch.float64, device=device) for n in shape[1:])
        size = (1 + down[:, None].square() + right.square()) ** (-FALL / 2)
        return cls(rows, columns, size / size.mean())

    def coordinates(self, x: Tensor) -> Tensor:
        """Return the coordinates of images (..., h, w)."""
        return self.rows.to(x) @ x @ self.columns.to(x).mT / self.size.to(x)

    def image(self, z: Tensor) -> Tensor:
        """Return the images (..., h, w) of coordinates; differentiable."""
        return self.rows.to(z).mT @ (z * self.size.to(z)) @ self.columns.to(z)


def _cosines(n: int) -> Tensor:
    """Matrix (n, n) whose row k is the cosine of k half-waves."""
    k = torch.arange(n, dtype=torch.float64)
    waves = (math.pi / n * k[:, None] * (k + 0.5)).cos() * math.sqrt(2 / n)
    waves[0] /= math.sqrt(2)
    return waves
