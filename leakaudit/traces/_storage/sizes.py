"""The size of a recording, before it is made."""

from __future__ import annotations

import torch

from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph, Layout

INDEX = 5 * 4 + 1  # bytes of a message in addition to its payload: five int32 columns and a bool
HEAD = 16 << 10  # bytes for the description and the archive's own records: a choice

MANY = 1e9  # TB, from which on a size is written with an exponent


def human(size: float) -> str:
    """Return a size as text, such as ``3.9 GB`` (powers of 1000).

    Args:
        size: Size in bytes.
    """
    size = min(size, 1e300)  # a plan may ask for more than a float holds
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 999.5:  # from there on, three digits would round up to 1000
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.0f} TB" if 1000 <= size < MANY else f"{size:.3g} TB"


def plan_size(messages: int, columns: int, dtype: torch.dtype, rows: int | None = None) -> int:
    """Return the size of a recording in bytes.

    Args:
        rows: Number of payloads, smaller than that of messages if broadcasts are stored once.
    """
    if rows is None:
        rows = messages
    return HEAD + messages * INDEX + rows * columns * dtype.itemsize


def estimate(
    messages: int,
    columns: int,
    dtype: torch.dtype,
    *,
    graph: Graph,
    layout: Layout,
    rounds: int | None = None,
    rows: int | None = None,
    max_bytes: float = 4e9,
) -> dict[str, int]:
    """Return the size of the requested recording, and of smaller ones."""
    if rows is None:
        rows = messages
    whole = plan_size(messages, columns, dtype, rows)
    found = {"all of it": whole}
    if rounds and rounds > 1 and whole > HEAD:
        affordable = int(rounds * (max_bytes - HEAD) / (whole - HEAD))
        fewer = max(1, min(rounds - 1, affordable))
        found[f"{fewer} of {rounds} rounds (--rounds)"] = plan_size(
            _ceil(messages * fewer, rounds), columns, dtype, _ceil(rows * fewer, rounds)
        )
    if len(graph.edges) > 1:
        share = max(map(len, graph.neighbours)) / len(graph.edges)
        if share < 1:
            found["one node's channels (--wires node:0)"] = plan_size(
                int(messages * share), columns, dtype, int(rows * share)
            )
    first = _first_layer(layout)
    if first < columns:
        found["the first layer only (--layers first)"] = plan_size(messages, first, dtype, rows)
    return found


def _ceil(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _first_layer(layout: Layout) -> int:
    module = layout.names[0].rpartition(".")[0]
    total = 0
    for name, columns in layout.slices.items():
        if name.rpartition(".")[0] == module:
            total += columns.stop - columns.start
    return total


def refuse_above(max_bytes: float, sizes: dict[str, int]) -> None:
    """Reject a recording that is too large, and list smaller ones."""
    (_, whole), *smaller = sizes.items()
    if whole > max_bytes:
        others = "; ".join(f"{name} {human(size)}" for name, size in smaller)
        hint = f"; smaller recordings: {others}" if others else ""
        raise LeakauditError(
            f"the recording requires {human(whole)}, but max_bytes allows {human(max_bytes)}{hint}"
        )
