"""From the logs of all processes to one trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch

from leakaudit import registry
from leakaudit.capture.tap.arranged import Plan
from leakaudit.capture.tap.reading import RankLog
from leakaudit.errors import LeakauditError
from leakaudit.progress import step
from leakaudit.trace import Json, Trace
from leakaudit.traces import gaps, trace_file
from leakaudit.traces._storage import sidecar
from leakaudit.traces.recorder import Recorder

Truth = tuple[np.ndarray, np.ndarray, np.ndarray]


def write(
    plan: Plan,
    logs: Sequence[RankLog],
    path: Path,
    code: int = 0,
    truth: Truth | None = None,
    max_bytes: float = 4e9,
    command: str = "",
) -> Trace:
    """Write the trace at `path`, and the truth beside it where there is one, and return it.

    code: with which the program ended. It is marked as incomplete where a process did not end in order or a round is not whole.
    Raises LeakauditError, with nothing left behind, where the trace would exceed max_bytes or cannot be written.
    """
    description, sent = plan.description, plan.sent
    if not sent:
        raise LeakauditError(
            f"no payload of a message was kept ({_listed(plan.left_out) or 'the program ended too early'})"
        )
    facts = about(plan, logs, code)
    complete = code == 0 and not plan.missing and all(log.closed for log in logs)
    dtype = max({s.message.dtype for s in sent}, key=lambda d: (d.itemsize, d != torch.bfloat16))
    groups = [list(g) for _, g in groupby(_together(plan), key=lambda pair: pair[0])]
    count = sum(len(s.dst) for s in sent)
    public = {} if plan.start is None else {"w0": plan.start.to(dtype) * description.scale}
    values = {**registry.values(description.victim), **description.params}
    fresh = not path.exists()
    try:
        with Recorder(
            path,
            protocol=description.protocol,
            task=description.task,
            graph=plan.graph,
            params=values,
            messages=count,
            rows=len(groups),
            dtype=dtype,
            public=public,
            max_bytes=max_bytes,
            provenance={**facts, **({"command": command} if command else {})},
        ) as recorder:
            for x, y, node in [truth] if truth is not None else ():
                for owner in np.unique(node).tolist():
                    recorder.truth(
                        owner,
                        x[node == owner],
                        y[node == owner],
                        index=np.flatnonzero(node == owner),
                    )
            for group in groups:
                first = group[0][1]
                value = first.message.value(plan.slices).to(dtype)
                value = value if description.scale == 1 else value * description.scale
                recorder.send(
                    first.round, first.src, [j for _, s in group for j in s.dst], first.kind, value
                )
                step("writing the trace", first.round, plan.rounds)
            recorder.close(complete=complete)
        return recorder.trace
    except BaseException:
        if fresh:
            for file in (path, trace_file.truth_path(path)):
                for part in (file, sidecar.beside(file)):
                    part.unlink(missing_ok=True)
        raise


def _together(plan: Plan) -> list[tuple[Any, Any]]:
    """Put messages of one sender, round and kind that carry the same bytes beside each other: they are stored once."""
    keyed = [((s.round, s.src, s.kind, *map(str, s.message.place)), s) for s in plan.sent]
    return sorted(keyed, key=lambda pair: pair[0])


def about(plan: Plan, logs: Sequence[RankLog], code: int) -> dict[str, Json]:
    """Return what happened, in plain values for the trace's provenance; ``missing`` and ``ended`` as `leakaudit.traces.gaps` reads them."""
    seconds, spent = sum(log.seconds for log in logs), sum(log.spent for log in logs)
    last = {
        rank: max((s.round for s in plan.sent if s.message.log.rank == rank), default=0)
        for rank in {log.rank for log in logs}
    }
    cut = {log.rank for log in logs if not log.closed}
    tap = {
        "processes": len(last),
        "exit": code,
        "share": round(spent / max(seconds, spent), 4) if spent else 0.0,
        "seconds": round(spent, 3),
        "left_out": dict(plan.left_out),
        "notes": list(plan.notes),
    }
    why = f"its process did not end in order; the program's exit code was {code}"
    gone = {s.src for s in plan.sent if s.message.log.rank in cut}
    return {
        "tap": tap,
        "missing": [
            {
                "src": m.src,
                "dst": m.dst,
                "kind": m.kind,
                "rounds": [m.first, m.last],
                "why": "closed" if m.src in gone else "",
            }
            for m in plan.missing
        ],
        "ended": [{"nodes": [rank], "round": last[rank], "why": why} for rank in sorted(cut)],
    }


def warnings(trace: Trace) -> list[str]:
    """Return what a user should hear of a trace that a tap made, a line each."""
    tap = trace.provenance.get("tap", {})
    left = [f"payloads not kept: {_listed(tap['left_out'])}"] if tap.get("left_out") else []
    return [*gaps.sentences(trace), *left, *tap.get("notes", [])]


def read_truth(path: Path, shape: Iterable[int], nodes: int) -> Truth:
    """Read the records of all nodes from an .npz file that the program wrote: x (s, *shape), y (s,), node (s,).

    Raises LeakauditError where an array is missing or of another shape.
    """
    try:
        with ZipFile(path), np.load(path, allow_pickle=False) as file:
            held: Mapping[str, np.ndarray] = {
                name: file[name] for name in ("x", "y", "node") if name in file.files
            }
    except Exception as error:  # a damaged archive raises anything
        raise LeakauditError(f"cannot read {path} as .npz: {error}") from None
    if missing := [name for name in ("x", "y", "node") if name not in held]:
        raise LeakauditError(
            f"{path} lacks {', '.join(missing)}; expected x (s, *shape), y (s,) and node (s,)"
        )
    x, y, node = held["x"], held["y"], held["node"]
    if (
        x.shape[1:] != tuple(shape)
        or not len(x) == len(y) == len(node)
        or node.ndim != 1
        or node.dtype.kind not in "iu"
    ):
        raise LeakauditError(
            f"{path}: expected x (s, {', '.join(map(str, shape))}), y (s,), node (s,), got {x.shape}, {y.shape}, {node.shape}"
        )
    if len(node) and not 0 <= node.min() <= node.max() < nodes:
        raise LeakauditError(
            f"{path}: expected nodes from 0 to {nodes - 1}, got {node.min()} to {node.max()}"
        )
    return x, y, node


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} left out by {why}" for why, n in counts.items())
