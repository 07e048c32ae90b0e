"""Whole batches from one gradient of a vision transformer: what the attack `patches` certifies.

    python bench/vit.py [--data-root FOLDER] [--tokens 40]

FOLDER holds cifar10_train_subset.npz (arrays x_train, y_train). The gradients are those of
automatic differentiation at random weights. Prints the rows of docs/vision.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import cone
import torch
from torch import Generator

from leakaudit.attacks import Patches
from leakaudit.core.trace import TaskSpec
from leakaudit.tasks.task import Task

# Side of a patch, depth, and batch sizes.
ROWS = (
    (16, 2, (1, 2, 4, 8, 16, 32)),
    (16, 12, (8,)),
    (8, 2, (1, 2, 4, 8)),
    (4, 2, (1, 2)),
)


def spec(patch: int, depth: int) -> TaskSpec:
    """Describe a model for CIFAR-10."""
    return TaskSpec(
        "vit",
        {"patch": patch, "depth": depth},
        shape=(3, 32, 32),
        mean=(0.5,),
        std=(0.25,),
        classes=10,
        levels=255,
    )


def main() -> None:
    """Print one row for each setting and batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", default=os.environ.get("LEAKAUDIT_TEST_DATA", "."))
    parser.add_argument("--tokens", type=int, default=40, help="most tokens of a batch")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sys.stdout.write(
        "| patch | depth | b | tokens | float | exact | bit-identical | CPU s |\n"
        "|--:|--:|--:|--:|---|--:|--:|--:|\n"
    )
    file = Path(asked.data_root) / "cifar10_train_subset.npz"
    for patch, depth, counts in ROWS:
        task = Task.build(spec(patch, depth), dtype=torch.float64)
        for count in counts:
            tokens = count * (1 + (32 // patch) ** 2)
            for dtype in (torch.float64, torch.float32):
                if tokens > asked.tokens and count > 1:
                    continue
                x, y = cone.batch(file, count, seed=count)
                theta = task.init(Generator().manual_seed(count)).to(dtype)
                planted = cone.leak(task, x, y, theta)
                start = time.process_time()
                found = Patches()(planted, task, Generator().manual_seed(count))
                spent = time.process_time() - start
                same = 0
                for one in found.x:
                    same += bool((x.to(one.dtype) == one).flatten(1).all(1).any())
                bits = 64 if dtype is torch.float64 else 32
                sys.stdout.write(
                    f"| {patch} | {depth} | {count} | {tokens} | {bits} "
                    f"| {found.certified} | {same} | {spent:.1f} |\n"
                )
                sys.stdout.flush()
                if not found.certified:
                    sys.stderr.write(f"{found.note}\n")


if __name__ == "__main__":
    main()
