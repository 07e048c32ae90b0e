"""The model, the records and the training."""

import numpy as np
import torch
from skimage.data import lfw_subset
from torch import nn


def build() -> nn.Module:
    """Return a small classifier."""
    return nn.Sequential(nn.Flatten(), nn.Linear(625, 64), nn.ReLU(), nn.Linear(64, 2))


def load_data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a client's picture (1, 1, 25, 25), k/255, and whether it is a face."""
    pictures, faces = np.round(lfw_subset() * 255) / 255, np.arange(200) < 100
    mine = np.random.default_rng(11).permutation(200)[client : client + 1]
    return torch.tensor(pictures[mine, None], dtype=torch.float32), torch.tensor(
        faces[mine], dtype=torch.int64
    )


def build_optimiser(net: nn.Module, name: str, lr: float) -> torch.optim.Optimizer:
    """Return the optimiser of a client, which lasts for one round."""
    if name == "adam":
        return torch.optim.Adam(net.parameters(), lr=lr)
    return torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9 if name == "momentum" else 0.0)


def train(net: nn.Module, client: int, optimiser: torch.optim.Optimizer, epochs: int) -> float:
    """Train on the client's records; return the last loss."""
    x, y = load_data(client)
    loss = torch.tensor(0.0)
    for _ in range(epochs):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimiser.step()
    return loss.item()
