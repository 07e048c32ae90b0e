"""Mini-batches for all nodes at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.relations import Turns

if TYPE_CHECKING:
    from leakaudit.tasks.task import Problem


def batches(problem: Problem, size: int, steps: int, generator: Generator) -> Iterator[Problem]:
    """Yield the data of several steps.

    Each call shuffles every node's records anew; after the last record a node continues with the
    first in the same order.

    Args:
        size: Records per node and step; 0 uses all.
    """
    enough(size, problem.samples)
    if not size:
        yield from [problem] * steps
        return
    x, y = _shuffled(problem, min(steps * size, problem.samples), generator)
    for step in range(steps):
        at = step * size % problem.samples
        yield replace(problem, x=_around(x, at, size), y=_around(y, at, size))


def turns(size: int, steps: int, rounds: int, samples: int) -> Turns | None:
    """Return which gradients a record can enter if `batches` is called once per round.

    As `Victim.turns`; None if every step uses all records, or if their number is 0 (unknown).
    """
    if not 0 < size < samples:
        return None
    # Step k uses positions k size, k size + 1, ..., of the order, modulo its length.
    choices = set()
    for place in range(samples):
        entered = [k for k in range(steps) if (place - k * size) % samples < size]
        choices.add(tuple(entered))
    ordered = sorted(choices)
    return [[[t * steps + k for k in entered] for entered in ordered] for t in range(rounds)]


def enough(size: int, samples: int) -> None:
    """Check that a node has enough records for a mini-batch."""
    if size > samples:
        raise LeakauditError(
            f"batch: expected at most the {samples} records that a node holds, got {size}"
        )


def replaced(lipschitz: float, batch: int, records: int) -> float:
    """Return the largest change of a mean gradient by replacing one record, in Euclidean norm.

    Args:
        batch: Records per mini-batch; 0 uses all.
    """
    return 2 * lipschitz / (batch or records)


def is_drawn(batch: int, records: int) -> bool:
    """Return whether a record enters only some of the gradients.

    Args:
        batch: Records per mini-batch; 0 uses all.
    """
    return 0 < batch < records


def _shuffled(problem: Problem, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Return `count` records of every node in random order, gathered once for all steps."""
    shape = (problem.nodes, problem.samples)
    order = torch.rand(shape, generator=generator, dtype=torch.float64).argsort(1)
    return chosen(problem, order[:, :count])


def chosen(problem: Problem, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inputs and labels of some records (N, b) of every node."""
    rows = rows.to(problem.x.device)
    nodes = torch.arange(problem.nodes, device=rows.device)[:, None]
    return problem.x[nodes, rows], problem.y[nodes, rows]


def _around(values: Tensor, at: int, size: int) -> Tensor:
    """Return `size` columns from `at` on, continuing at the front after the last."""
    held = values.shape[1]
    if at + size <= held:
        return values[:, at : at + size]
    return torch.cat((values[:, at:], values[:, : at + size - held]), 1)
