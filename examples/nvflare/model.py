"""The model and the records of the clients."""

import numpy as np
import torch
from skimage.data import lfw_subset
from torch import nn


class Net(nn.Sequential):
    """A small classifier."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = nn.Flatten(), nn.Linear(625, 64), nn.Sigmoid(), nn.Linear(64, 2)
        super().__init__(*layers)


def record(client: int) -> tuple[np.ndarray, int]:
    """Return a client's picture (1, 25, 25), k/255, and whether it is a face."""
    pictures, faces = np.round(lfw_subset() * 255) / 255, np.arange(200) < 100
    mine = np.random.default_rng(11).permutation(200)[client]
    return pictures[mine].astype(np.float32)[None], int(faces[mine])
