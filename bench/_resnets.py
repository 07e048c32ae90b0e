"""A narrow ResNet for small images, which allows to measure GradInversion in reasonable time."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Basic block of a ResNet (He et al. 2016) with batch normalisation."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        """Change the number of channels from `before` to `after`."""
        super().__init__()
        first, second = (
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
        )
        self.main = nn.Sequential(
            first, nn.BatchNorm2d(after), nn.ReLU(), second, nn.BatchNorm2d(after)
        )
        short = [nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)]
        self.side = nn.Sequential(*([] if before == after and stride == 1 else short))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for a batch."""
        return F.relu(self.main(x) + self.side(x))


def narrow(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """ResNet-10 for small images: 3x3 stem without pooling, 16 to 128 channels, 12 layers of batch normalisation."""
    stem: list[nn.Module] = [
        nn.Conv2d(shape[0], 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
    ]
    blocks = [Block(a, b, s) for a, b, s in ((16, 16, 1), (16, 32, 2), (32, 64, 2), (64, 128, 2))]
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, outputs)
    )
