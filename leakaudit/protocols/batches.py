"""Mini-batches of every node at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Generator, Tensor

from leakaudit.errors import LeakauditError
from leakaudit.relations import Turns
from leakaudit.tasks.task import Problem


def batches(problem: Problem, size: int, steps: int, generator: Generator) -> Iterator[Problem]:
    """Yield the data of `steps` steps: all records where size is 0, else the next `size` of each node's records in a random order.

    Every node shuffles anew at each call and begins again at the front when its records end (random permutation).
    Raises LeakauditError where a node holds fewer than `size` records.
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
    """Return which of the gradients of `batches`, called once a round, a record can enter (`Victim.turns`).

    None if every step takes all records, or if their number is not known.
    """
    if not 0 < size < samples:
        return None
    places = [
        [k for k in range(steps) if (place - k * size) % samples < size] for place in range(samples)
    ]
    choices = sorted({tuple(some) for some in places})
    return [[[t * steps + k for k in some] for some in choices] for t in range(rounds)]


def enough(size: int, samples: int) -> None:
    """Raise LeakauditError where a node holds fewer records than a mini-batch."""
    if size > samples:
        raise LeakauditError(
            f"batch: expected at most the {samples} records that a node holds, got {size}"
        )


def _shuffled(problem: Problem, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Return `count` records of every node in a random order, moved once for all steps."""
    order = torch.rand(
        problem.nodes, problem.samples, generator=generator, dtype=torch.float64
    ).argsort(1)[:, :count]
    nodes, rows = (
        torch.arange(problem.nodes)[:, None].to(problem.x.device),
        order.to(problem.x.device),
    )
    return problem.x[nodes, rows], problem.y[nodes, rows]


def _around(values: Tensor, at: int, size: int) -> Tensor:
    """Return `size` columns from `at` on, from the front again after the last."""
    return (
        values[:, at : at + size]
        if at + size <= values.shape[1]
        else torch.cat((values[:, at:], values[:, : at + size - values.shape[1]]), 1)
    )
