"""Contents of a trace (`leakaudit trace info`), and verification of all of it (`trace verify`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from leakaudit.core.errors import LeakauditError
from leakaudit.core.payload import StoredColumns
from leakaudit.core.progress import step
from leakaudit.core.sketch import NUMBERS
from leakaudit.core.trace import Json, Trace
from leakaudit.traces import gaps, trace_file
from leakaudit.traces._storage import shards, sidecar

if TYPE_CHECKING:
    from torch import Tensor

    from leakaudit.core.trace import Messages
    from leakaudit.traces._storage.wellformed import CommittedTable

CHUNK = 32 << 20  # bytes of payload that are checked at once: a choice


def info(path: str | os.PathLike[str]) -> dict[str, Json]:
    """Return the facts about a trace as plain values, without its payloads and without torch."""
    path = Path(path)
    trace, tables = trace_file.outline(path)
    files = [path]
    if not path.is_file():
        files = [path / name for name in shards.read(path).files]
    return {
        "path": str(path),
        "format": trace_file.TRACE,
        "version": trace_file.version(trace),
        "id": trace.id,
        "protocol": trace.protocol,
        "params": dict(trace.params),
        "task": trace.task.to_json(),
        "nodes": trace.graph.nodes,
        "edges": len(trace.graph.edges),
        "rounds": trace.rounds,
        "complete": trace.complete,
        **_missing(trace),
        "messages": sum(map(len, tables)),
        "kinds": _kinds(tables),
        "secure": sum(int(table.secure.sum()) for table in tables),
        "dtype": tables[0].dtype,
        "d": trace.layout.size,
        "columns": list(trace.columns),
        **_kept(trace),
        "public": {name: list(t.shape) for name, t in trace.public.items()},
        "files": len(files),
        "bytes": sum(file.stat().st_size for file in files),
        "sha256": sidecar.recorded(path if path.is_file() else shards.place(path)),
        "provenance": dict(trace.provenance),
    }


def _kept(trace: Trace) -> dict[str, Json]:
    if trace.kept is None:
        return {}
    spans = [list(span) for span in trace.spans]
    if trace.kept.seed is None:
        return {"spans": spans}
    return {"spans": spans, "sketch": {"seed": trace.kept.seed, "numbers": NUMBERS}}


def _missing(trace: Trace) -> dict[str, Json]:
    said = gaps.sentences(trace)
    return {"missing": said} if said else {}


def _kinds(tables: Sequence[CommittedTable]) -> dict[str, dict[str, int]]:
    counts = {kind: {"messages": 0, "secure": 0} for table in tables for kind in table.kinds}
    for table in tables:
        kind = table.index["kind"]
        sent = np.bincount(kind, minlength=len(table.kinds)).tolist()
        secure = np.bincount(kind[table.secure], minlength=len(table.kinds)).tolist()
        for name, total, closed in zip(table.kinds, sent, secure, strict=True):
            counts[name]["messages"] += total
            counts[name]["secure"] += closed
    return counts


def verify(path: str | os.PathLike[str]) -> dict[str, Json]:
    """Check a complete trace: its sha256 if there is one, its form, and that payloads are finite.

    Returns the sha256, the numbers of messages and values, and sentences on what is missing.
    """
    path = Path(path)
    main = shards.place(path) if path.is_dir() else path
    sha = sidecar.recorded(main) if main.is_file() else None
    trace = trace_file.load(path, verify=sha is not None)
    total = sum(len(m.payload) for m in trace.messages)
    done = 0
    for m in trace.messages:
        row_bytes = max(1, m.payload.shape[1] * m.payload.element_size())
        rows = max(1, CHUNK // row_bytes)
        for at in range(0, len(m.payload), rows):
            part = m.payload[at : at + rows]
            finite = part.isfinite()
            if not bool(finite.all()):
                first = int((~finite).any(dim=1).int().argmax())
                _name_worst(m, at + first, path)
            if trace.kept is not None and m.stored is not None:
                _check_kept(trace.kept, m.stored[at : at + rows], at, path)
            done += len(part)
            step("checking", done, total)
    return {
        "path": str(path),
        "sha256": sha,
        "messages": len(trace),
        "values": sum(m.payload.numel() for m in trace.messages),
        **_missing(trace),
    }


def diverged(trace: Trace) -> bool:
    """Return whether the last payloads of a run are not finite."""
    return any(not bool(m.payload[-1:].isfinite().all()) for m in trace.messages)


def _check_kept(kept: StoredColumns, stored: Tensor, first: int, path: Path) -> None:
    import torch

    wrong = ~torch.isfinite(stored[:, : kept.linear]).all(dim=1)
    says = "values that are not finite in another span or its sketch"
    if kept.seed is not None and not bool(wrong.any()):
        norms = stored[:, kept.linear]
        # The norm is NaN if it was not computed. Both norms are rounded sums of many squares.
        least = torch.linalg.vector_norm(stored[:, : kept.raw].double(), dim=1) * (1 - 1e-3)
        wrong = torch.isinf(norms) | (norms < least)
        says = "a norm that is smaller than that of its recorded columns, or infinite"
    if bool(wrong.any()):
        payload = first + int(wrong.int().argmax())
        raise LeakauditError(f"{path}: payload {payload} has {says}; record again")


def _name_worst(m: Messages, row: int, path: Path) -> None:
    carrying = np.flatnonzero(m.row.numpy() == row)
    if not carrying.size:
        raise LeakauditError(
            f"{path}: payload {row} contains values that are not finite (used by no message)"
        )
    k = int(carrying[0])
    round = int(m.round[k])
    bad = int((~m.payload[row].isfinite()).sum())
    ends = f"{int(m.src[k])} -> {int(m.dst[k])}"
    raise LeakauditError(
        f"{path}: message {m.kinds[int(m.kind[k])]!r} {ends} of round {round} "
        f"contains {bad} values that are not finite; attack earlier rounds with --rounds 0:{round}"
    )
