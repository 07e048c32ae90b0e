"""Column blocks: what large states go through from the first operation of an update to the last, without leaving the cache."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

BLOCK = 1 << 18  # numbers of one state of all nodes that are worked on together


def blocks(v: Tensor) -> Iterator[slice]:
    """Yield the columns of v (N, d) in pieces that stay in cache; all at once where v is small."""
    nodes, size = v.shape
    width = max(64, BLOCK // nodes)
    return (slice(at, at + width) for at in range(0, size, width))
