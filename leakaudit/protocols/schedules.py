"""Public schedules, drawn in advance: who takes part in a round, and when its messages are sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Generator, Tensor

from leakaudit.core.errors import LeakauditError


def draw_nodes(nodes: int, rounds: int, count: int, generator: Generator) -> Tensor:
    """Draw different nodes for every round; all sets of this size are equally likely.

    Returns:
        The nodes in ascending order, (rounds, count).
    """
    keys = torch.rand(
        rounds, nodes, generator=generator, dtype=torch.float64, device=generator.device
    )
    return keys.argsort(1)[:, :count].sort(1).values


def draw_moments(channels: int, rounds: int, steps: int, generator: Generator) -> Tensor:
    """Draw after which step of a round each channel's message is sent, uniformly.

    Returns:
        Steps from 1 to `steps`, (rounds, channels).
    """
    shape = (rounds, channels)
    return torch.randint(1, steps + 1, shape, generator=generator, device=generator.device)


def read(
    public: Mapping[str, Tensor], name: str, rounds: int, width: int, allowed: range
) -> Tensor:
    """Return the first rounds of a schedule, (rounds, width).

    Args:
        allowed: What its numbers may be.
    """
    table = public.get(name)
    fits = table is not None and table.dim() == 2 and not table.is_floating_point()
    if table is None or not fits or len(table) < rounds or table.shape[1] != width:
        raise LeakauditError(
            f"expected a public tensor {name!r} of {width} integers for each of {rounds} rounds; "
            "draw it with schedule()"
        )
    table = table[:rounds]
    if not bool(((table >= allowed.start) & (table < allowed.stop)).all()):
        raise LeakauditError(
            f"the public tensor {name!r} contains numbers outside {allowed.start} to "
            f"{allowed.stop - 1}"
        )
    return table


def most_sent(wires: Iterable[tuple[int, int]], count: int) -> int:
    """Return the largest number of recorded channels on which `count` nodes send."""
    ends = [i for edge in set(wires) for i in edge]
    busiest = sorted(map(ends.count, set(ends)), reverse=True)
    return sum(busiest[:count])
