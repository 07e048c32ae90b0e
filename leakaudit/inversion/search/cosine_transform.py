"""Coordinates in which coarse and fine parts of a photograph are of more similar magnitude."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

# Amplitudes of photographs decrease as 1/f (Field 1987, Relations between the statistics of natural
# images and the response properties of cortical cells). L-BFGS has no information about this at the
# start: in pixels, it takes about three times as many evaluations to reach the same error. The
# coordinates compensate for half of the decrease, 1/sqrt(f), because with all of it, the finest
# parts converge last.

# Power of 1/f.
FALL = 0.5


# Orthonormal cosine transforms (DCT-II) of rows (h, h) and columns (w, w), and the typical sizes
# (h, w) of the coefficients, with mean 1, by which they are divided.
Transform: TypeAlias = tuple[Tensor, Tensor, Tensor]


def transform(shape: Sequence[int], device: torch.device | str = "cpu") -> Transform | None:
    """Return the transform of images (channels, h, w); None for inputs of another shape."""
    if len(shape) != 3:
        return None
    high, wide = shape[1:]
    down = torch.arange(high, dtype=torch.float64, device=device)
    right = torch.arange(wide, dtype=torch.float64, device=device)
    # Frequency (k, l) has a length of sqrt(k^2 + l^2); adding 1 keeps the mean of the image finite.
    size = (1 + down[:, None].square() + right.square()) ** (-FALL / 2)
    return _cosines(high).to(device), _cosines(wide).to(device), size / size.mean()


def coordinates(space: Transform, x: Tensor) -> Tensor:
    """Return the coordinates of images (..., h, w)."""
    rows, columns, size = space
    return rows.to(x) @ x @ columns.to(x).mT / size.to(x)


def image(space: Transform, z: Tensor) -> Tensor:
    """Return the images (..., h, w) of coordinates; differentiable."""
    rows, columns, size = space
    return rows.to(z).mT @ (z * size.to(z)) @ columns.to(z)


def _cosines(n: int) -> Tensor:
    """Return a matrix (n, n) whose row k is the cosine of k half-waves."""
    k = torch.arange(n, dtype=torch.float64)
    waves = (math.pi / n * k[:, None] * (k + 0.5)).cos() * math.sqrt(2 / n)
    waves[0] /= math.sqrt(2)
    return waves
