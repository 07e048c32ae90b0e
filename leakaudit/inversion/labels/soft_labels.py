"""Labels that are searched: as variables beside the inputs, or one set after the other."""

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
    """Draw label variables from N(0, 1), for a search that moves labels too.

    Args:
        task: What is trained.
        batch: Samples.
        generator: Draws them.
        dtype: Number format.

    Returns:
        (batch, classes), or (batch,) for loss ``binary``.
    """
    shape = (batch,) if task.spec.loss == "binary" else (batch, task.spec.classes)
    drawn = torch.randn(shape, generator=generator, dtype=dtype, device=generator.device)
    return drawn.to(task.device)


def soft(task: Task, variables: Tensor) -> Tensor:
    """Map label variables to what the loss takes.

    Args:
        task: What is trained.
        variables: (..., classes), or (...) for loss ``binary``.

    Returns:
        Their softmax or sigmoid, or themselves for loss ``squared``.
    """
    if task.spec.loss == "cross_entropy":
        return F.softmax(variables, dim=-1)
    return variables.sigmoid() if task.spec.loss == "binary" else variables


def hard(task: Task, variables: Tensor) -> Tensor:
    """Map label variables to the labels that they mean.

    Args:
        task: What is trained.
        variables: (..., classes), or (...) for loss ``binary``.

    Returns:
        The largest class, 0 or 1, or themselves for loss ``squared``.
    """
    if task.spec.loss == "cross_entropy":
        return variables.argmax(-1)
    return (variables > 0).long() if task.spec.loss == "binary" else variables


def candidates(task: Task, batch: int) -> list[Tensor]:
    """List all labels that differ by more than their order, which a mean gradient does not show.

    Args:
        task: What is trained.
        batch: Samples.

    Returns:
        Each (batch,).
    """
    every = itertools.combinations_with_replacement(range(task.spec.classes), batch)
    return [torch.tensor(labels, device=task.device) for labels in every]


def count(task: Task, batch: int) -> int:
    """Number of `candidates`.

    Args:
        task: What is trained.
        batch: Samples.
    """
    return math.comb(task.spec.classes + batch - 1, batch)
