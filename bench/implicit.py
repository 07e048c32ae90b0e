"""Local training differentiated through all steps, and by the implicit function theorem.

    python bench/implicit.py [--data-root FOLDER] [--records 4]

FOLDER holds mnist_subset.npz (arrays x_train, y_train). An attack on FedAvg compares the update
u = (w_0 - w_K) / rate of K local steps with that of dummy records x, and needs the derivative of
the difference in x. The product differentiates through all steps, whose graph grows with K. If the
steps have converged, the gradient of the loss L is zero at w_K, and the theorem gives

    du/dx = (d^2 L / dw^2)^-1 (d^2 L / dw dx) / rate  at w_K,

without a graph of the steps. Both are computed in float64, the inverse by conjugate gradients, and
one line of JSON is printed for each network and K: the cosine between the two derivatives, the norm
of the gradient at w_K over that at w_0, CPU seconds, and the bytes that the graph of all steps
keeps.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor
from torch.autograd.graph import saved_tensors_hooks

from leakaudit.core.trace import TaskSpec
from leakaudit.inversion.search.local_training import Local, update
from leakaudit.tasks.task import Task

STEPS = (1, 5, 20, 100, 500)
# Name, network and step size; the first is strongly convex.
ROWS = (
    (
        "logistic, weight decay .1",
        TaskSpec("logistic", {"l2": 0.1}, shape=(1, 28, 28), classes=2, loss="binary"),
        0.1,
    ),
    ("LeNet", TaskSpec("lenet", {}, shape=(1, 28, 28), classes=10), 0.1),
)
PRODUCTS = 50  # of the Hessian with a vector, in conjugate gradients
SMALL = 1e-10  # relative residual at which they end

Product = Callable[[Tensor], Tensor]


def solved(product: Product, right: Tensor) -> Tensor:
    """Solve a symmetric system by conjugate gradients, up to a direction of negative curvature."""
    found = torch.zeros_like(right)
    left, direction = right.clone(), right.clone()
    size = left @ left
    for _ in range(PRODUCTS):
        image = product(direction)
        curvature = direction @ image
        if curvature <= 0:
            break
        step = size / curvature
        found = found + step * direction
        left = left - step * image
        before, size = size, left @ left
        if size <= SMALL**2 * (right @ right):
            break
        direction = left + size / before * direction
    return found


def difference(found: Tensor, aim: Tensor) -> Tensor:
    """Return one minus the cosine of two updates."""
    cosine: Tensor = found @ aim / (found.norm() * aim.norm())
    return 1 - cosine


def unrolled(
    task: Task, local: Local, theta: Tensor, x: Tensor, y: Tensor, aim: Tensor
) -> tuple[Tensor, int]:
    """Return the derivative through all steps, and the bytes that its graph keeps."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    x = x.clone().requires_grad_()
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = difference(update(task, local, theta, x, y), aim)
    return torch.autograd.grad(loss, x)[0], sum(kept.values())


def implicit(
    task: Task, local: Local, theta: Tensor, x: Tensor, y: Tensor, aim: Tensor
) -> tuple[Tensor, float]:
    """Return the derivative by the theorem, and how far the training has converged."""
    found = update(task, local, theta, x, y, graph=False).detach().requires_grad_()
    (slope,) = torch.autograd.grad(difference(found, aim), found)
    last = (theta - local.rate * found.detach()).requires_grad_()
    x = x.clone().requires_grad_()
    gradient = task.gradient(last, x, y, create_graph=True)

    def product(vector: Tensor) -> Tensor:
        return torch.autograd.grad(gradient, last, vector, retain_graph=True)[0]

    along = solved(product, slope)
    converged = float(gradient.detach().norm() / task.gradient(theta, x.detach(), y).norm())
    return torch.autograd.grad(gradient, x, along)[0] / local.rate, converged


def main() -> None:
    """Print one line for each network and number of steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", default=os.environ.get("LEAKAUDIT_TEST_DATA", "."))
    parser.add_argument("--records", type=int, default=4)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with np.load(Path(asked.data_root) / "mnist_subset.npz") as data:
        pixels = torch.from_numpy(data["x_train"][: 2 * asked.records]).double()[:, None] / 255
        labels = torch.from_numpy(data["y_train"][: asked.records]).long()
    true, dummy = pixels.split(asked.records)
    for name, spec, rate in ROWS:
        task = Task.build(spec, dtype=torch.float64)
        y = labels % spec.classes
        theta = task.init(Generator().manual_seed(0))
        for count in STEPS:
            local = Local(count, rate, asked.records, asked.records)
            aim = update(task, local, theta, true, y, graph=False)
            implicit(task, local, theta, dummy, y, aim)  # not counted: first calls are slow
            start = time.process_time()
            exact, kept = unrolled(task, local, theta, dummy, y, aim)
            middle = time.process_time()
            other, converged = implicit(task, local, theta, dummy, y, aim)
            end = time.process_time()
            line = {
                "network": name,
                "steps": count,
                "cosine": round(float(torch.cosine_similarity(exact.ravel(), other.ravel(), 0)), 3),
                "gradient_left": float(f"{converged:.2g}"),
                "seconds_unrolled": round(middle - start, 3),
                "seconds_implicit": round(end - middle, 3),
                "graph_bytes": kept,
            }
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
