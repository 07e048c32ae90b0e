"""Whole batches from one gradient: how many images the attack `cone` certifies, and in what time.

    python bench/cone.py [--data-root FOLDER] [--largest 64] [--only TEXT]

FOLDER holds cifar10_train_subset.npz and mnist_subset.npz (arrays x_train, y_train). The gradients
are those of automatic differentiation, at random weights or after training on all images of the
file, of which the attacked batch is a part. Rows with 100 classes have random labels; several
rounds are those of a fixed batch at different random weights. Prints the rows of docs/cone.md.
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
from leakaudit.core.leak import GradientLeak
from leakaudit.core.trace import TaskSpec
from leakaudit.protocols import recording
from leakaudit.protocols.scenario import Scenario
from leakaudit.tasks.task import Task

# Rounding of a gradient of sums over thousands of terms, in units of the number format.
ROUNDING = 8.0
CNN = TaskSpec("cnn", {}, shape=(3, 32, 32), mean=(0.5,), std=(0.25,), classes=10, levels=255)
TANH = TaskSpec(
    "cnn", {"act": "tanh"}, shape=(3, 32, 32), mean=(0.5,), std=(0.25,), classes=10, levels=255
)
PIXELS = TaskSpec(
    "mlp", {"hidden": (256,), "act": "sigmoid"}, shape=(1, 28, 28), classes=10, levels=255
)
DENSE = TaskSpec(
    "cnn",
    {"channels": (32, 32), "stride": 1},
    shape=(3, 32, 32),
    mean=(0.5,),
    std=(0.25,),
    classes=10,
    levels=255,
)
CONVNET = TaskSpec(
    "convnet", {}, shape=(3, 32, 32), mean=(0.5,), std=(0.25,), classes=10, levels=255
)
SIZES = (16, 32, 64)
# Name, network, data, epochs of training, and batch sizes. ConvNet has one linear layer, whose
# gradient has rank 9 for 10 classes.
ROWS = (
    ("CIFAR-10, conv 3-32 stride 2, ReLU, FC 256 ReLU", CNN, "cifar10_train_subset.npz", 0, SIZES),
    ("the same after 1 epoch", CNN, "cifar10_train_subset.npz", 1, SIZES),
    ("the same after 10 epochs", CNN, "cifar10_train_subset.npz", 10, SIZES),
    ("the same, untrained, FC 256 tanh", TANH, "cifar10_train_subset.npz", 0, SIZES),
    ("CIFAR-10, conv 3-32-32 stride 1, FC 256", DENSE, "cifar10_train_subset.npz", 0, (16,)),
    ("CIFAR-10, `convnet`", CONVNET, "cifar10_train_subset.npz", 0, (1, 2, 4)),
    ("MNIST pixels, FC 256 sigmoid", PIXELS, "mnist_subset.npz", 0, SIZES),
)
# Batches of 16 images with 100 classes: name, network, its settings, data, and rounds.
MANY = 16
CLASSES = 100
LABELLED = (
    ("faces, `convnet`", "convnet", {"width": 16}, "faces", 1),
    ("faces, `convnet`", "convnet", {"width": 32}, "faces", 1),
    ("faces, `convnet`", "convnet", {"width": 64}, "faces", 1),
    ("CIFAR-10, `convnet`", "convnet", {"width": 32}, "cifar10_train_subset.npz", 1),
    ("faces, `lenet`", "lenet", {"act": "sigmoid"}, "faces", 2),
    ("faces, `lenet`", "lenet", {"act": "relu"}, "faces", 5),
    ("CIFAR-10, `lenet`", "lenet", {"act": "sigmoid"}, "cifar10_train_subset.npz", 7),
)
# Stochastic gradient descent with momentum.
STEP = 0.01
MOMENTUM = 0.9
SIZE = 32


def images(file: Path) -> tuple[Tensor, Tensor]:
    """Read images and labels."""
    data = np.load(file, allow_pickle=False)
    x = torch.from_numpy(data["x_train"]).double() / 255
    x = x.movedim(-1, 1) if x.ndim == 4 else x[:, None]
    return x, torch.from_numpy(data["y_train"]).long()


def batch(file: Path, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw images and labels."""
    x, y = images(file)
    chosen = np.random.default_rng(seed).choice(len(x), count, replace=False)
    return x[chosen], y[chosen]


def trained(spec: TaskSpec, x: Tensor, y: Tensor, epochs: int) -> Tensor:
    """Train on all images."""
    task = Task.build(spec, dtype=torch.float32)
    generator = Generator().manual_seed(0)
    theta = task.init(generator)
    speed = torch.zeros_like(theta)
    for _ in range(epochs):
        for some in torch.randperm(len(x), generator=generator).split(SIZE):
            speed = MOMENTUM * speed + task.gradient(theta, x[some].float(), y[some])
            theta = theta - STEP * speed
    sys.stderr.write(f"{epochs} epochs: {task.accuracy(theta, x.float(), y):.2f} correct\n")
    return theta


def leak(task: Task, x: Tensor, y: Tensor, *thetas: Tensor) -> GradientLeak:
    """Plant the gradients of one batch at one or several models."""
    dtype = thetas[0].dtype
    gradients = torch.stack([task.gradient(one, x.to(dtype), y).double() for one in thetas])
    noise = ROUNDING * torch.finfo(dtype).eps * gradients.square().mean(1).sqrt()
    return GradientLeak(
        0,
        torch.arange(1, len(thetas) + 1),
        torch.eye(len(thetas), dtype=torch.float64),
        gradients,
        noise,
        (0, task.layout.size),
        theta=torch.stack(thetas).double(),
        batch=len(x),
        wire=torch.finfo(dtype).eps,
    )


def faces(count: int, seed: int) -> Tensor:
    """Draw bundled faces."""
    scenario = Scenario(victim="fedsgd", nodes=2, data="faces", samples=count, seed=seed)
    plan = recording.plan(scenario)
    pixels: Tensor = (plan.source.x[plan.rows[-1]].double() * 255).round() / 255
    return pixels


def attacked(task: Task, planted: GradientLeak, x: Tensor, seed: int) -> tuple[int, int, float]:
    """Return the numbers of certified and of bit-identical images, and CPU seconds."""
    start = time.process_time()
    found = Cone()(planted, task, Generator().manual_seed(seed))
    spent = time.process_time() - start
    same = 0
    for one in found.x:
        same += bool((x.to(one.dtype) == one).flatten(1).all(1).any())
    return found.certified, same, spent


def labelled(root: Path, only: str) -> None:
    """Print one row for each network with 100 classes."""
    for name, model, settings, data, rounds in LABELLED:
        (setting,) = settings.items()
        full = f"{name} {setting[0]}={setting[1]}, {CLASSES} classes, rounds: {rounds}"
        if only not in full:
            continue
        x = faces(MANY, MANY) if data == "faces" else batch(root / data, MANY, MANY)[0]
        y = torch.randint(0, CLASSES, (MANY,), generator=Generator().manual_seed(MANY))
        spec = TaskSpec(
            model,
            settings,
            shape=tuple(x.shape[1:]),
            mean=(0.5,),
            std=(0.25,),
            classes=CLASSES,
            levels=255,
        )
        task = Task.build(spec, dtype=torch.float64)
        seeds = [MANY + 100 * k for k in range(rounds)]
        for dtype in (torch.float64, torch.float32):
            thetas = [task.init(Generator().manual_seed(seed)).to(dtype) for seed in seeds]
            exact, same, spent = attacked(task, leak(task, x, y, *thetas), x, MANY)
            bits = 64 if dtype is torch.float64 else 32
            sys.stdout.write(f"| {full} | {MANY} | {bits} | {exact} | {same} | {spent:.1f} |\n")
            sys.stdout.flush()


def main() -> None:
    """Print one row for each setting and batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", default=os.environ.get("LEAKAUDIT_TEST_DATA", "."))
    parser.add_argument("--largest", type=int, default=64)
    parser.add_argument("--only", default="", help="print rows whose name contains this")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sys.stdout.write(
        "| model | b | float | exact | bit-identical | CPU s |\n|---|--:|---|--:|--:|--:|\n"
    )
    for name, spec, file, epochs, counts in ROWS:
        if asked.only not in name:
            continue
        task = Task.build(spec, dtype=torch.float64)
        path = Path(asked.data_root) / file
        weights = trained(spec, *images(path), epochs) if epochs else None
        for count in counts:
            for dtype in (torch.float64, torch.float32):
                if count > asked.largest:
                    continue
                x, y = batch(path, count, seed=count)
                theta = task.init(Generator().manual_seed(count)) if weights is None else weights
                planted = leak(task, x, y, theta.to(dtype))
                exact, same, spent = attacked(task, planted, x, count)
                bits = 64 if dtype is torch.float64 else 32
                sys.stdout.write(
                    f"| {name} | {count} | {bits} | {exact} | {same} | {spent:.1f} |\n"
                )
                sys.stdout.flush()
    labelled(Path(asked.data_root), asked.only)


if __name__ == "__main__":
    main()
