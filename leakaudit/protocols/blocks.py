"""Column blocks, which let all operations of an update find a large state in the cache."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

# Numbers of one state that are worked on together, over all nodes: 1 MiB in float32, so that a
# state and its update fit into a second-level cache. A choice for common processors.
BLOCK = 1 << 18
NARROWEST = 64  # columns of a block however many nodes there are: whole cache lines of a row


def blocks(v: Tensor) -> Iterator[slice]:
    """Yield the columns of a state in pieces that stay in cache.

    Args:
        v: State of all nodes, (N, d).

    Returns:
        Slices of the columns; one if v is small.
    """
    nodes, size = v.shape
    width = max(NARROWEST, BLOCK // nodes)
    return (slice(at, at + width) for at in range(0, size, width))
