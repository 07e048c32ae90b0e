"""Blocks of columns: all operations of an update then find their part of a large state in cache."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

# Numbers of one state that are processed together, over all nodes: 1 MiB in float32, so that a
# state and its update fit into a second-level cache. Chosen for common processors.
BLOCK = 1 << 18
NARROWEST = 64  # minimum columns of a block for any number of nodes: whole cache lines of a row


def blocks(v: Tensor) -> Iterator[slice]:
    """Yield slices of the columns of a state that fit into the cache.

    Args:
        v: State of all nodes, (N, d).
    """
    nodes, size = v.shape
    width = max(NARROWEST, BLOCK // nodes)
    return (slice(at, at + width) for at in range(0, size, width))
