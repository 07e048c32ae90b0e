"""Images outside the project, as arrays for `npz:FILE`: Fashion-MNIST's test set and part of
CIFAR-10.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np

FASHION = ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")

ROOT = Path(
    os.environ.get("LEAKAUDIT_TEST_DATA")
    or Path(__file__).resolve().parent.parent.parent / "shared" / "data"
)


def arrays(name: str, folder: Path) -> str:
    """Return a data set's name for a scenario; if it is one of these, it is written to `folder`."""
    if name not in ("fashion", "cifar10"):
        return name
    file = folder / f"{name}.npz"
    if not file.exists():
        if name == "fashion":
            images, labels = (
                gzip.decompress((ROOT / "fashion_mnist" / part).read_bytes()) for part in FASHION
            )
            x = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28)
            y = np.frombuffer(labels, np.uint8, offset=8)
        else:
            with np.load(ROOT / "cifar10_train_subset.npz") as given:
                x, y = given["x_train"], given["y_train"]
        np.savez(file, x=x, y=y.astype(np.int64))
    return f"npz:{file}"
