"""How large a recording becomes, before it is made."""

from __future__ import annotations

import torch

from leakaudit.errors import LeakauditError
from leakaudit.trace import Graph, Layout

INDEX = 5 * 4 + 1  # bytes of a message beside its payload
HEAD = 16 << 10


def human(size: float) -> str:
    """Bytes in words: ``3.9 GB`` (powers of 1000)."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB" if size < 1000 else f"{size:,.0f} TB"


def plan_size(messages: int, columns: int, dtype: torch.dtype, rows: int | None = None) -> int:
    """Bytes of a recording; rows: payloads, fewer than messages where broadcasts are stored once."""
    return HEAD + messages * INDEX + (messages if rows is None else rows) * columns * dtype.itemsize


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
    """Bytes of a recording as it was asked for, first, and of smaller ones: by name, in words.

    One node's wires are those of the node with most neighbours; the first layer is all parameters beside the first.
    """
    rows = messages if rows is None else rows
    whole = plan_size(messages, columns, dtype, rows)
    found = {"all of it": whole}
    if rounds and rounds > 1 and whole > HEAD:
        fewer = max(1, min(rounds - 1, int(rounds * (max_bytes - HEAD) / (whole - HEAD))))
        found[f"{fewer} of {rounds} rounds"] = plan_size(
            -(-messages * fewer // rounds), columns, dtype, -(-rows * fewer // rounds)
        )
    if len(graph.edges) > 1:
        share = max(map(len, graph.neighbours)) / len(graph.edges)
        if share < 1:
            found["one node's wires"] = plan_size(
                int(messages * share), columns, dtype, int(rows * share)
            )
    module = layout.names[0].rpartition(".")[0]
    first = sum(
        s.stop - s.start for n, s in layout.slices.items() if n.rpartition(".")[0] == module
    )
    if first < columns:
        found["the first layer only"] = plan_size(messages, first, dtype, rows)
    return found


def refuse_above(max_bytes: float, sizes: dict[str, int]) -> None:
    """Raise LeakauditError, naming the smaller recordings of `estimate`, where the first of `sizes` is above `max_bytes`."""
    (_, whole), *smaller = sizes.items()
    if whole > max_bytes:
        others = "; ".join(f"{name} {human(size)}" for name, size in smaller)
        hint = f"; smaller: {others}" if others else ""
        raise LeakauditError(
            f"the recording needs {human(whole)}, max_bytes allows {human(max_bytes)}{hint}"
        )
