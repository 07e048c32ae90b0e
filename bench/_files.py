"""Image files in the format of their authors, for replays of published experiments."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FASHION = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def fashion(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the training images (60000, 784) float32 in 0..255 and labels (60000,) int64, then those of the test set."""
    x, y, more, theirs = (_idx(folder / name) for name in FASHION)
    return x.flatten(1).float(), y.long(), more.flatten(1).float(), theirs.long()


def unit(x: Tensor) -> Tensor:
    """Scale every row (n, p) to Euclidean norm 1."""
    lengths: Tensor = x.norm(dim=1, keepdim=True)
    return x / lengths


def _idx(path: Path) -> Tensor:
    """Read a gzipped IDX file of bytes: two zero bytes, type 8, the number of dimensions, their sizes big-endian, the bytes."""
    raw = gzip.decompress(path.read_bytes())
    sizes = np.frombuffer(raw, ">u4", raw[3], 4).astype(int)
    return torch.from_numpy(
        np.frombuffer(raw, np.uint8, offset=4 + 4 * len(sizes)).reshape(sizes).copy()
    )
