"""Images behind a low-rank adapter of the first layer, from one gradient of the second step.

    python bench/lora.py [--data-root FOLDER] [--ranks 8 16 32 64] [--step 0.01] [--seconds 300]

FOLDER holds cifar10_train_subset.npz and mnist_subset.npz (arrays x_train, y_train). The network
has two layers and random weights. Two steps of gradient descent are computed by automatic
differentiation; their gradients, or the difference of the models before and after the second step,
are attacked. Prints the rows of docs/exact.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from _limits import OutOfTimeError, at_most
from torch import Generator, Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from leakaudit.core.leak import GradientLeak
from leakaudit.core.reconstruction import Reconstruction
from leakaudit.core.trace import TaskSpec
from leakaudit.inversion.attacking import attack_one
from leakaudit.tasks.task import Task

FORMATS = {32: torch.float32, 64: torch.float64}
FILES = {
    "CIFAR-10": ("cifar10_train_subset.npz", (3, 32, 32)),
    "MNIST": ("mnist_subset.npz", (1, 28, 28)),
}


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    data: str
    act: str
    trained: str
    neurons: int
    rank: int
    batch: int
    bits: int
    models: bool = False  # whether models are leaked instead of gradients


def rows(ranks: list[int]) -> list[Row]:
    """List the rows for some ranks: the largest batch, and one of half the size."""
    found = []
    for rank in ranks:
        neurons = max(256, 8 * rank)
        for batch in sorted({1, rank // 2, rank - 1}):
            for bits in (32, 64):
                found.append(Row("CIFAR-10", "relu", "first", neurons, rank, batch, bits))
                found.append(Row("CIFAR-10", "gelu", "all", neurons, rank, batch, bits))
                found.append(Row("MNIST", "tanh", "head", neurons, rank, batch, bits))
            found.append(Row("CIFAR-10", "gelu", "first", neurons, rank, batch, 64, models=True))
    return found


def planted(row: Row, root: Path, step: float) -> tuple[Task, GradientLeak, Tensor]:
    """Return the task of a row, the gradients of two steps on one batch, and the batch."""
    file, shape = FILES[row.data]
    with np.load(root / file) as given:
        images = torch.tensor(given["x_train"][: row.batch]).reshape(row.batch, -1)
        y = torch.tensor(given["y_train"][: row.batch]).long().flatten()
    if row.data == "CIFAR-10":
        images = images.reshape(-1, 32, 32, 3).movedim(3, 1)
    dtype = FORMATS[row.bits]
    x = (images.reshape(-1, *shape) / 255).to(dtype)
    spec = TaskSpec(
        "adapters:mlp",
        {"hidden": row.neurons, "rank": row.rank, "act": row.act, "trained": row.trained},
        shape=shape,
        classes=10,
        mean=(0.5,),
        std=(0.25,),
        levels=255,
    )
    task = Task.build(spec, Generator().manual_seed(row.batch), trusted=True)
    theta = task.init(Generator().manual_seed(row.rank)).to(dtype)
    first = task.gradient(theta, x, y)
    after = theta - step * first
    second = task.gradient(after, x, y)
    value = torch.stack([first, second])
    thetas = torch.stack([theta, after])
    rounding = torch.finfo(dtype).eps / 3
    std = rounding * value.double().square().mean(1).sqrt()
    if row.models:
        last = after - step * second
        value = ((after - last) / step)[None]
        thetas = after[None]
        std = rounding * after.double().square().mean().sqrt()[None] / step
    leak = GradientLeak(
        0,
        torch.arange(1, len(value) + 1),
        torch.eye(len(value), dtype=dtype),
        value,
        std,
        (0, task.layout.size),
        theta=thetas,
        batch=row.batch,
        records=row.batch,
        wire=torch.finfo(dtype).eps,
    )
    return task, leak, x


def main() -> None:
    """Print one row for each setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-root", default=os.environ.get("LEAKAUDIT_TEST_DATA", "."))
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--step", type=float, default=0.01, help="step size of the descent")
    parser.add_argument("--seconds", type=int, default=300, help="CPU seconds of an attack")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sys.stdout.write(
        "| r | b | data, activation | trained | leak | float | exact | bit-identical | CPU s |\n"
        "|--:|--:|---|---|---|--:|--:|--:|--:|\n"
    )
    for row in rows(asked.ranks):
        task, leak, x = planted(row, Path(asked.data_root), asked.step)
        start = time.process_time()
        found: Reconstruction | None = None
        try:
            with at_most(asked.seconds):
                found = attack_one(leak, task, "exact", Generator().manual_seed(0))
        except OutOfTimeError:
            pass
        spent = time.process_time() - start
        certified = right = 0
        if found is not None:
            certified = found.certified
            images = found.x.flatten(1).double()
            truth = (x.double() * 255).round() / 255
            close = [(images - one.flatten()).abs().amax(1) < 1e-6 for one in truth]
            right = sum(bool(one.any()) for one in close)
        kind = "models" if row.models else "gradients"
        sys.stdout.write(
            f"| {row.rank} | {row.batch} | {row.data}, {row.act} | {row.trained} | {kind} "
            f"| {row.bits} | {certified} | {right} | {spent:.1f} |\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
