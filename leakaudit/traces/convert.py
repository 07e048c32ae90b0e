"""Conversion of traces between formats: .pt, a folder of shards, .npz, .safetensors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leakaudit._util import files
from leakaudit.core.errors import LeakauditError
from leakaudit.core.progress import step
from leakaudit.core.trace import Messages, Trace
from leakaudit.traces import trace_file
from leakaudit.traces._storage import foreign
from leakaudit.traces._storage.sizes import human, plan_size
from leakaudit.traces.recorder import Recorder, RecorderOptions, Storage

READ = {".npz": foreign.read_npz, ".safetensors": foreign.read_safetensors}
WRITE = {".npz": foreign.write_npz, ".safetensors": foreign.write_safetensors}


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    max_bytes: float = 4e9,
    shard_bytes: int = 1 << 30,
) -> None:
    """Write a trace in another format, determined by the endings of the paths.

    Args:
        target: A .pt, .npz or .safetensors file, or a folder (``name/``).

    Raises:
        LeakauditError: An array is missing or out of range, or the result would exceed max_bytes.
    """
    old = Path(source)
    new = Path(target)
    folder = os.fspath(target).endswith("/") or new.is_dir()
    if not folder and new.suffix not in (".pt", *WRITE):
        raise LeakauditError(
            "convert: expected a target that ends in .pt, .npz, .safetensors or /, "
            f"got {os.fspath(target)!r}"
        )
    if files.resolved(old) == files.resolved(new):
        raise LeakauditError(f"convert: {old} is both source and target; name another target")
    if old.suffix in READ and not old.is_dir():
        trace = READ[old.suffix](old, max_bytes)
    else:
        trace = trace_file.load(old)
    if folder or new.suffix == ".pt":
        _record(trace, target, max_bytes, shard_bytes)
        return
    rows = sum(len(m.payload) for m in trace.messages)
    size = plan_size(len(trace), trace.recorded.width, trace.dtype, rows)
    if size > max_bytes:
        raise LeakauditError(
            f"convert: {new} requires {human(size)}, but max_bytes allows {human(max_bytes)}"
        )
    WRITE[new.suffix](trace, new)


def _record(
    trace: Trace, target: str | os.PathLike[str], max_bytes: float, shard_bytes: int
) -> None:
    storage = Storage(
        target,
        truth=False,
        messages=len(trace),
        rows=sum(len(m.payload) for m in trace.messages),
        max_bytes=max_bytes,
        shard_bytes=shard_bytes,
    )
    recorder = Recorder(
        storage,
        protocol=trace.protocol,
        task=trace.task,
        graph=trace.graph,
        params=trace.params,
        rounds=trace.rounds,
        public=trace.public,
        options=RecorderOptions(
            layers=trace.recorded,
            layout=trace.layout,
            dtype=trace.dtype,
            id=trace.id,
            provenance=trace.provenance,
            check=False,
        ),
    )
    with recorder:
        for m in trace.messages:
            for group in _groups(m):
                _send(recorder, m, group)
                step("converting", int(m.round[int(group[0])]), trace.rounds)
        recorder.close(complete=trace.complete)


Places = np.ndarray[Any, np.dtype[np.int64]]


def _groups(m: Messages) -> Iterator[Places]:
    """Split messages by round, kind and encryption, in order of rounds.

    Within a group, they keep their order.
    """
    columns = np.stack([m.round.numpy(), m.kind.numpy(), m.secure.numpy()])
    order = np.lexsort(columns[::-1])
    if len(order):
        changes = (np.diff(columns[:, order]) != 0).any(axis=0)
        yield from np.split(order, 1 + np.flatnonzero(changes))


def _send(recorder: Recorder, m: Messages, group: Places) -> None:
    """Record the messages of a group; payloads of broadcasts are stored once."""
    first = int(group[0])
    rows, row = np.unique(m.row.numpy()[group], return_inverse=True)
    out = recorder.send_many(
        int(m.round[first]),
        m.src.numpy()[group],
        m.dst.numpy()[group],
        m.kinds[int(m.kind[first])],
        bool(m.secure[first]),
        row=row,
    )
    torch.index_select(m.rows, 0, torch.from_numpy(rows), out=out)
