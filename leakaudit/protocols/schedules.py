"""Public schedules, drawn in advance: who takes part in a round, and when its messages are sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Generator, Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.theory.relations import decimal


class Unscheduled(LeakauditError):
    """A protocol needs a public schedule that a recording lacks, so it did not run with it."""


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
    expected = (
        f"expected a public tensor {name!r} of {width} integers for each of {rounds} rounds; "
        "draw it with schedule()"
    )
    table = public.get(name)
    if table is None:
        raise Unscheduled(expected)
    fits = table.dim() == 2 and not table.is_floating_point()
    if not fits or len(table) < rounds or table.shape[1] != width:
        raise LeakauditError(expected)
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


# --- the clients or peers that take part in a round ---------------------------------------------


def within_one(name: str, **shares: float) -> None:
    """Check constants that are shares, such as C, that of the clients."""
    for constant, share in shares.items():
        if not 0 < share <= 1:
            raise LeakauditError(f"{name}: expected 0 < {constant} <= 1, got {share:g}")


def draw_clients(
    fraction: float, nodes: int, rounds: int, generator: Generator
) -> dict[str, Tensor]:
    """Draw the clients of every round, ``active`` (rounds, m); nothing if all take part."""
    if fraction == 1:
        return {}
    return {"active": draw_nodes(nodes, rounds, clients_of(fraction, nodes), generator)}


def clients(
    fraction: float, nodes: int, rounds: int, public: Mapping[str, Tensor]
) -> Sequence[Tensor | None]:
    """Return the clients (m,) of every round, ascending; None stands for all."""
    if fraction == 1:
        return [None] * rounds
    table = read(public, "active", rounds, clients_of(fraction, nodes), range(nodes))
    return list(table)


def listed(some: Tensor | None, nodes: int) -> list[int]:
    """Return the numbers of these clients."""
    return list(range(nodes)) if some is None else some.tolist()


def most_of(fraction: float, nodes: int, rounds: int, wires: Iterable[tuple[int, int]]) -> int:
    """Return the most messages between a server and the clients of all rounds, as recorded."""
    return 2 * rounds * min(len(set(wires)), clients_of(fraction, nodes))


def clients_of(fraction: float, nodes: int) -> int:
    """Return m = max(C N, 1), rounded down."""
    return max(1, int(decimal(fraction) * nodes))
