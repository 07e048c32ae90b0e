"""Labels that a search finds: as variables in addition to the inputs, or by trying all sets."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task


def raw(task: Task, batch: int, generator: Generator, dtype: torch.dtype) -> Tensor:
    """Draw label variables (batch, classes), or (batch,) for loss ``binary``, from N(0, 1)."""
    shape = (batch,) if task.spec.loss == "binary" else (batch, task.spec.classes)
    drawn = torch.randn(shape, generator=generator, dtype=dtype, device=generator.device)
    return drawn.to(task.device)


def soft(task: Task, variables: Tensor) -> Tensor:
    """Convert label variables into the argument of the loss: softmax, sigmoid, or unchanged."""
    if task.spec.loss == "cross_entropy":
        return F.softmax(variables, dim=-1)
    return variables.sigmoid() if task.spec.loss == "binary" else variables


def hard(task: Task, variables: Tensor) -> Tensor:
    """Convert label variables into the labels that they represent."""
    if task.spec.loss == "cross_entropy":
        return variables.argmax(-1)
    return (variables > 0).long() if task.spec.loss == "binary" else variables


def candidates(task: Task, batch: int) -> list[Tensor]:
    """List all labels (batch,) that differ by more than their order, which a mean hides."""
    every = itertools.combinations_with_replacement(range(task.spec.classes), batch)
    return [torch.tensor(labels, device=task.device) for labels in every]


def count(task: Task, batch: int) -> int:
    """Return the number of `candidates`."""
    return math.comb(task.spec.classes + batch - 1, batch)
