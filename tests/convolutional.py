"""Small networks, most of them convolutional, that are not among the models of leakaudit."""

from __future__ import annotations

import math

from torch import nn


def averaging(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Average pooling between two convolutions."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2, ceil_mode=True),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 13 * 13, 48),
        nn.ReLU(),
        nn.Linear(48, classes),
    )


def normalised(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Batch normalisation behind both convolutions, with statistics as if it had been trained."""
    module = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 64, 3, stride=2, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 48),
        nn.ReLU(),
        nn.Linear(48, classes),
    )
    for norm in (module[1], module[4]):
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.normal_(0, 0.1)
        norm.running_var.uniform_(0.3, 0.6)
        nn.init.normal_(norm.bias, 0, 0.1)
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    return module


def maximum(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Max pooling behind a convolution."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 11 * 11, 16),
        nn.ReLU(),
        nn.Linear(16, classes),
    )


def normalised_mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Batch normalisation between two fully connected layers."""
    inputs = math.prod(shape)
    layers = (nn.Linear(inputs, 4), nn.BatchNorm1d(4), nn.Sigmoid(), nn.Linear(4, classes))
    return nn.Sequential(nn.Flatten(), *layers)
