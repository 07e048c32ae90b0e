"""Drawn digits: images with black pixels and grey edges, as MNIST has them."""

from __future__ import annotations

import torch
from torch import Generator, Tensor


def digits(count: int, seed: int) -> Tensor:
    """Bright strokes on black, smoothed, on the grid: black pixels and grey edges, as MNIST."""
    g = Generator().manual_seed(seed)
    strokes = torch.zeros(count, 1, 20, 20, dtype=torch.float64)
    for k in range(count):
        for _ in range(3):
            row, column = torch.randint(3, 17, (2,), generator=g).tolist()
            length = int(torch.randint(4, 12, (), generator=g))
            if torch.rand((), generator=g) < 0.5:
                strokes[k, 0, row, column : column + length] = 1
            else:
                strokes[k, 0, row : row + length, column] = 1
    blurred = torch.nn.functional.avg_pool2d(strokes, 3, 1, 1) * 2.2
    tones = blurred * (0.7 + 0.3 * torch.rand(strokes.shape, generator=g, dtype=torch.float64))
    return (tones.clamp(0, 1) * 255).round() / 255
