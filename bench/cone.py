"""Whole batches from one gradient: how many images the attack `cone` certifies, and in what time.

    python bench/cone.py [--data-root FOLDER] [--largest 64]

FOLDER holds cifar10_train_subset.npz and mnist_subset.npz (arrays x_train, y_train). The gradients
are those of automatic differentiation at random weights. Prints the rows of docs/cone.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from leakaudit.attacks import Cone
from leakaudit.leak import GradientLeak
from leakaudit.tasks.task import Task
from leakaudit.trace import TaskSpec

# Rounding of a gradient of sums over thousands of terms, in units of the number format.
ROUNDING = 8.0
CNN = TaskSpec("cnn", {}, shape=(3, 32, 32), mean=(0.5,), std=(0.25,), classes=10, levels=255)
TANH = TaskSpec(
    "cnn", {"act": "tanh"}, shape=(3, 32, 32), mean=(0.5,), std=(0.25,), classes=10, levels=255
)
PIXELS = TaskSpec(
    "mlp", {"hidden": (256,), "act": "sigmoid"}, shape=(1, 28, 28), classes=10, levels=255
)
ROWS = (
    ("CIFAR-10, conv 3-32 stride 2, ReLU, FC 256 ReLU", CNN, "cifar10_train_subset.npz"),
    ("the same, FC 256 tanh", TANH, "cifar10_train_subset.npz"),
    ("MNIST pixels, FC 256 sigmoid", PIXELS, "mnist_subset.npz"),
)


def batch(file: Path, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw images and labels."""
    data = np.load(file, allow_pickle=False)
    chosen = np.random.default_rng(seed).choice(len(data["x_train"]), count, replace=False)
    x = torch.from_numpy(data["x_train"][chosen]).double() / 255
    x = x.movedim(-1, 1) if x.ndim == 4 else x[:, None]
    return x, torch.from_numpy(data["y_train"][chosen]).long()


def leak(task: Task, x: Tensor, y: Tensor, dtype: torch.dtype, seed: int) -> GradientLeak:
    """Plant the gradient of one batch."""
    theta = task.init(Generator().manual_seed(seed)).to(dtype)
    gradient = task.gradient(theta, x.to(dtype), y).double()
    noise = ROUNDING * torch.finfo(dtype).eps * float(gradient.square().mean().sqrt())
    return GradientLeak(
        0,
        torch.ones(1, dtype=torch.long),
        torch.ones(1, 1, dtype=torch.float64),
        gradient[None],
        torch.tensor([noise]),
        (0, task.layout.size),
        theta=theta.double()[None],
        batch=len(x),
        wire=torch.finfo(dtype).eps,
    )


def main() -> None:
    """Print one row for each setting and batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", default=os.environ.get("LEAKAUDIT_TEST_DATA", "."))
    parser.add_argument("--largest", type=int, default=64)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sys.stdout.write(
        "| model | b | float | exact | bit-identical | CPU s |\n|---|--:|---|--:|--:|--:|\n"
    )
    for name, spec, file in ROWS:
        task = Task.build(spec, dtype=torch.float64)
        for count in (16, 32, 64):
            for dtype in (torch.float64, torch.float32):
                if count > asked.largest:
                    continue
                x, y = batch(Path(asked.data_root) / file, count, seed=count)
                planted = leak(task, x, y, dtype, seed=count)
                start = time.process_time()
                found = Cone()(planted, task, Generator().manual_seed(count))
                spent = time.process_time() - start
                same = 0
                for one in found.x:
                    same += bool((x.to(one.dtype) == one).flatten(1).all(1).any())
                bits = 64 if dtype is torch.float64 else 32
                sys.stdout.write(
                    f"| {name} | {count} | {bits} | {found.certified} | {same} | {spent:.1f} |\n"
                )
                sys.stdout.flush()


if __name__ == "__main__":
    main()
