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
    """Yield the data of some steps.

    Every node shuffles anew at each call, and begins again at the front when its records end.

    Args:
        problem: All records of the nodes.
        size: Records of a node in a step; 0 takes all.
        steps: Number of steps.
        generator: Source of randomness, on the CPU.

    Raises:
        LeakauditError: A node holds fewer than `size` records.
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
    """Return which gradients of `batches`, called once a round, a record can enter.

    Args:
        size: Records of a node in a step.
        steps: Steps of a round.
        rounds: Length of the run.
        samples: Records of a node; 0 if that is not known.

    Returns:
        What `Victim.turns` returns; None if every step takes all records, or if their number is
        not known.
    """
    if not 0 < size < samples:
        return None
    # Step k takes the places k size, k size + 1, ..., of the order, counted modulo its length.
    choices = set()
    for place in range(samples):
        entered = [k for k in range(steps) if (place - k * size) % samples < size]
        choices.add(tuple(entered))
    ordered = sorted(choices)
    return [[[t * steps + k for k in entered] for entered in ordered] for t in range(rounds)]


def enough(size: int, samples: int) -> None:
    """Check that a node can fill a mini-batch.

    Args:
        size: Records of a mini-batch.
        samples: Records of a node.

    Raises:
        LeakauditError: It cannot.
    """
    if size > samples:
        raise LeakauditError(
            f"batch: expected at most the {samples} records that a node holds, got {size}"
        )


def replaced(lipschitz: float, batch: int, records: int) -> float:
    """Return how far one record for another moves a mean of gradients, in Euclidean norm.

    Args:
        lipschitz: Largest norm of the gradient of one record.
        batch: Records of a mini-batch; 0 takes all.
        records: Records of a node.
    """
    return 2 * lipschitz / (batch or records)


def is_drawn(batch: int, records: int) -> bool:
    """Return whether a record takes part only in some of the gradients.

    Args:
        batch: Records of a mini-batch; 0 takes all.
        records: Records of a node.
    """
    return 0 < batch < records


def _shuffled(problem: Problem, count: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Return `count` records of every node in a random order, moved once for all steps."""
    shape = (problem.nodes, problem.samples)
    order = torch.rand(shape, generator=generator, dtype=torch.float64).argsort(1)
    rows = order[:, :count].to(problem.x.device)
    nodes = torch.arange(problem.nodes)[:, None].to(problem.x.device)
    return problem.x[nodes, rows], problem.y[nodes, rows]


def _around(values: Tensor, at: int, size: int) -> Tensor:
    """Return `size` columns from `at` on, from the front again after the last."""
    held = values.shape[1]
    if at + size <= held:
        return values[:, at : at + size]
    return torch.cat((values[:, at:], values[:, : at + size - held]), 1)
