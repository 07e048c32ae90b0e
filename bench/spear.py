"""Images from ONE gradient of a fully connected ReLU network, the setting of SPEAR.

    python bench/spear.py [--data-root FOLDER] [--batches 4 8 12 16 20 24] [--seconds 120]

FOLDER holds cifar10_train_subset.npz and mnist_subset.npz (arrays x_train, y_train). SPEAR
(Dimitrov et al. 2024) has no code here to run beside ours, so this measures ours: `cone` from one
gradient; `exact`, which searches for sparse rows as SPEAR does, from one gradient; and `exact` from
as many gradients of the same batch as it has images, for which it was made. The network has two
layers of 200 neurons and random weights, and the gradients are those of automatic differentiation
in float64.
Prints the rows of docs/cone.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from _limits import OutOfTimeError, at_most
from cone import batch, leak
from torch import Generator, Tensor

from leakaudit.attacks import Cone, Exact
from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.trace import TaskSpec
from leakaudit.tasks.task import Task

NEURONS = (200, 200)
# Name, shape, mean and standard deviation of the normalisation, file. Without it, photographs make
# most neurons active for all images or for none, and rows are hardly ever sparse.
ROWS = (
    ("MNIST", (1, 28, 28), 0.0, 1.0, "mnist_subset.npz"),
    ("CIFAR-10", (3, 32, 32), 0.5, 0.25, "cifar10_train_subset.npz"),
)

# Step size of gradient descent between two of the gradients.
STEP = 0.1


@dataclass(frozen=True)
class Outcome:
    """What an attack returned; None instead of a count if it was stopped.

    Attributes:
        certified: Number of images that are called exact.
        right: Number of images of the batch that were found bit for bit.
        seconds: CPU time.
    """

    certified: int
    right: int | None
    seconds: float


def descent(task: Task, x: Tensor, y: Tensor, theta: Tensor, count: int) -> GradientLeak:
    """Plant the gradients of several steps of gradient descent on one batch."""
    planted = []
    for _ in range(count):
        planted.append(leak(task, x, y, theta))
        theta = theta - STEP * planted[-1].value[0]
    assert all(one.theta is not None for one in planted)
    return replace(
        planted[0],
        rounds=torch.arange(1, count + 1),
        combination=torch.eye(count, dtype=torch.float64),
        value=torch.cat([one.value for one in planted]),
        std=torch.cat([one.std for one in planted]),
        theta=torch.cat([one.theta for one in planted if one.theta is not None]),
    )


def attacked(
    attack: Cone | Exact, planted: GradientLeak, task: Task, x: Tensor, limit: int
) -> Outcome:
    """Run an attack and count."""
    start = time.process_time()
    found: Reconstruction | None = None
    try:
        with at_most(limit):
            found = attack(planted, task, Generator().manual_seed(len(x)))
    except OutOfTimeError:
        pass
    spent = time.process_time() - start
    if found is None:
        return Outcome(0, None, spent)
    images = found.x.to(x).flatten(1)
    right = sum(bool((images == one.flatten()).all(1).any()) for one in x)
    return Outcome(found.certified, right, spent)


def main() -> None:
    """Print one row for each data set, batch size and attack."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-root", default=os.environ.get("LEAKAUDIT_TEST_DATA", "."))
    parser.add_argument("--batches", type=int, nargs="+", default=[4, 8, 12, 16, 20, 24])
    parser.add_argument("--only", default="", help="print rows of this data set")
    parser.add_argument("--seconds", type=int, default=120, help="CPU seconds of an attack")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sys.stdout.write(
        "| data | b | attack | gradients | exact | bit-identical | CPU s |\n"
        "|---|--:|---|--:|--:|--:|--:|\n"
    )
    for name, shape, mean, std, file in ROWS:
        if asked.only not in name:
            continue
        spec = TaskSpec(
            "mlp",
            {"hidden": NEURONS},
            shape=shape,
            mean=(mean,),
            std=(std,),
            classes=10,
            levels=255,
        )
        task = Task.build(spec, dtype=torch.float64)
        for count in asked.batches:
            x, y = batch(Path(asked.data_root) / file, count, seed=count)
            theta = task.init(Generator().manual_seed(count))
            once, many = leak(task, x, y, theta), descent(task, x, y, theta, count)
            runs: tuple[tuple[Cone | Exact, GradientLeak], ...] = (
                (Cone(), once),
                (Exact(), once),
                (Exact(), many),
            )
            for attack, planted in runs:
                seen = attacked(attack, planted, task, x, asked.seconds)
                right, spent = f"{seen.right}", f"{seen.seconds:.1f}"
                if seen.right is None:
                    right, spent = "stopped", f"over {asked.seconds}"
                label = f"`{type(attack).__name__.lower()}`"
                cells = (name, count, label, len(planted.value), seen.certified, right, spent)
                sys.stdout.write("| " + " | ".join(map(str, cells)) + " |\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
