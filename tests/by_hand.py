"""A small model whose nodes take steps of SGD on a record each, for tests that make messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

import leakaudit as la
from leakaudit.tasks.task import Task

TASK = Task.build(la.TaskSpec("mlp", {"hidden": "6"}, shape=(1, 4, 4), classes=3))
LR = 0.05
# What the messages prove of clients that take one step each, if their server sends the mean.
FEDAVG = {"samples": 1, "lr": LR, "epochs": 1, "batch": 0, "server": "mean"}


def state(w: Tensor) -> dict[str, Any]:
    """The parameters of a model by name, in order."""
    layout = TASK.layout
    return {
        name: w[layout.slices[name]].reshape(shape).numpy()
        for name, shape in zip(layout.names, layout.shapes, strict=True)
    }


def records(node: int, count: int = 1) -> tuple[Tensor, Tensor]:
    """The records of a node and their labels."""
    random = Generator().manual_seed(node)
    x = torch.randint(0, 256, (count, 1, 4, 4), generator=random).float() / 255
    return x, torch.tensor([node % 3]).expand(count)


def come_back(trace: Path, nodes: int) -> bool:
    """Whether an attack returns the record of each node bit for bit, and its label."""
    leaks = la.leaks(la.load(trace))
    shown = la.attack(leaks, generator=Generator().manual_seed(0))
    if sorted(one.node for one in shown) != list(range(nodes)):
        return False
    for one in shown:
        x, y = records(one.node)
        if not torch.equal(one.x.float(), x):
            return False
        if one.y is None or int(one.y[0]) != int(y[0]):
            return False
    return True
