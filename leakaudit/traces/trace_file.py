"""Traces and truths on disk: .pt files, or a folder of them; what is read is checked against all that the program relies on.

Version 1 of a trace file, as `torch.load` shows it:

    format "leakaudit.trace", version 1
    meta (JSON text): protocol, params, task, nodes, layout {names, shapes}, columns, id, provenance
    topology (edges, 2) int32; public {name: tensor}
    messages {written (4,) int64: rows, messages, last round, closed; kinds (4096,) uint8: names, one a line;
              round, src, dst, kind, row (capacity,) int32; secure (capacity,) bool; payload (capacity, columns)}

`written` is set after what it counts, so that a recording that was killed ends with its last whole round.
Unknown keys are ignored; a change that older programs would misread raises the version.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from leakaudit._util.files import replacing
from leakaudit.errors import LeakauditError
from leakaudit.trace import Json, Trace, Truth
from leakaudit.traces._storage import safe_reader, shards, sidecar, wellformed
from leakaudit.traces._storage.wellformed import Bad

VERSION = 1
TRACE, TRUTH = "leakaudit.trace", "leakaudit.truth"
_WORDS = {TRACE: "a trace", TRUTH: "a truth file"}


def load(path: str | os.PathLike[str], verify: bool | None = None) -> Trace:
    """Read a trace, a .pt file or a folder; payloads are mapped, not read.

    verify: compare with the sha256 beside it: None where there is one and the trace is below 1 GiB, True always, False never.
    Raises LeakauditError, in one line, for anything that is not a sound trace of a version that this program reads.
    """
    path = Path(path)
    if path.is_dir():
        return _load_folder(path, verify)
    sidecar.check(path, verify)
    return decode(_tree(path, TRACE), str(path))


def load_truth(
    path: str | os.PathLike[str], verify: bool | None = None, id: str | None = None
) -> Truth:
    """Read a truth file; id: that of the trace it must belong to. Raises as `load` does."""
    path = Path(path)
    sidecar.check(path, verify)
    truth = _decode_truth(_tree(path, TRUTH), str(path))
    if id is not None and truth.id != id:
        raise LeakauditError(
            f"{path} is the truth of another recording (id {truth.id[:40]!r}, the trace has {id[:40]!r}); give its own"
        )
    return truth


def truth_path(path: Path) -> Path:
    """Return where the truth of a trace stands: ``trace.truth.pt`` for ``trace.pt`` and for a folder ``trace``."""
    path = path if path.name not in ("", "..") else path.resolve()
    return path.with_name(f"{path.name.removesuffix('.pt')}.truth.pt")


def save_truth(truth: Truth, path: Path) -> None:
    """Write a truth file, whole or not at all."""
    named = {
        "x": truth.x,
        "y": truth.y,
        "node": truth.node,
        "index": truth.index,
        "pool": truth.pool,
    }
    own = {
        name: t.detach().cpu().contiguous().clone() for name, t in named.items()
    }  # a view would take its whole storage along
    states = {name: t.detach().cpu().contiguous().clone() for name, t in truth.states.items()}
    text = to_json(
        {"id": truth.id, "task": truth.task.to_json(), "provenance": dict(truth.provenance)}
    )
    with replacing(path) as file:
        torch.save(
            {"format": TRUTH, "version": VERSION, "meta": text, **own, "states": states}, file
        )


def write_sidecar(path: str | os.PathLike[str]) -> str:
    """Write the sha256 beside a trace or truth file, or of a folder into and beside its manifest; returns it."""
    path = Path(path)
    return shards.seal(path) if path.is_dir() else sidecar.write(path)


def to_json(value: Json) -> str:
    """Return JSON text; scalars of numpy and torch become numbers. Raises LeakauditError for what JSON cannot hold."""
    try:
        return json.dumps(value, default=lambda scalar: scalar.item(), allow_nan=False)
    except (TypeError, ValueError, AttributeError, RuntimeError, RecursionError) as error:
        raise LeakauditError(
            f"a trace is described in numbers, text, lists and dictionaries of them: {error}"
        ) from None


def head(trace: Trace) -> dict[str, Any]:
    """Return what stands in a trace file before the messages; raises LeakauditError for what could not be read again."""
    about = {
        "protocol": trace.protocol,
        "params": trace.params,
        "task": trace.task.to_json(),
        "nodes": trace.graph.nodes,
        "layout": {"names": trace.layout.names, "shapes": trace.layout.shapes},
        "columns": trace.columns,
        "id": trace.id,
        "provenance": trace.provenance,
    }
    edges = torch.tensor(trace.graph.edges, dtype=torch.int32).reshape(-1, 2)
    tree = {
        "format": TRACE,
        "version": VERSION,
        "meta": to_json(about),
        "topology": edges,
        "public": dict(trace.public),
    }
    try:
        _described(tree)
    except Bad as why:
        raise LeakauditError(f"this cannot be recorded: {why}") from None
    return tree


def _tree(path: Path, kind: str) -> dict[str, Any]:
    """Read a file and check what it says it is."""
    tree = safe_reader.read(path)
    found, version = tree.get("format"), tree.get("version")
    if found != kind:
        what = (
            _WORDS.get(found, "no file of leakaudit")
            if isinstance(found, str)
            else "no file of leakaudit"
        )
        raise LeakauditError(f"{path} is {what}, {_WORDS[kind]} is expected here")
    if type(version) is not int or version != VERSION:
        raise LeakauditError(
            f"{path} has format version {ascii(version)[:20]}, this program reads version {VERSION}; update leakaudit"
        )
    return tree


def decode(tree: Mapping[str, Any], where: str) -> Trace:
    """Turn what stands in a trace file into a `Trace`; rows and messages that were never committed are left out.

    Raises LeakauditError, naming `where`, for anything out of range.
    """
    try:
        trace, table = _described(tree), tree.get("messages")
        width = trace.columns[1] - trace.columns[0]
        messages, rounds, closed = wellformed.messages(
            table if isinstance(table, dict) else {}, trace.graph.nodes, width
        )
        return replace(trace, messages=(messages,), rounds=rounds, complete=closed)
    except Bad as why:
        raise LeakauditError(f"{where} is refused: {why}") from None


def _described(tree: Mapping[str, Any]) -> Trace:
    """Return the trace without its messages."""
    about = wellformed.meta(tree, "trace")
    layout = wellformed.layout(about["layout"])
    return Trace(
        protocol=about["protocol"],
        params=about["params"],
        task=wellformed.spec(about["task"]),
        graph=wellformed.graph(
            about["nodes"], wellformed.tensor(tree, "topology", (torch.int32, torch.int64), 2)
        ),
        layout=layout,
        columns=wellformed.columns(about["columns"], layout.size),
        rounds=0,
        messages=(),
        public=wellformed.tensors(tree, "public"),
        id=about["id"],
        provenance=about["provenance"],
    )


def _decode_truth(tree: Mapping[str, Any], where: str) -> Truth:
    numbers = (*wellformed.FLOATS, torch.int64)
    try:
        about = wellformed.meta(tree, "truth")
        truth = Truth(
            id=about["id"],
            task=wellformed.spec(about["task"]),
            x=wellformed.tensor(tree, "x", wellformed.FLOATS),
            y=wellformed.tensor(tree, "y", numbers),
            node=wellformed.tensor(tree, "node", (torch.int64,), 1),
            index=wellformed.tensor(tree, "index", (torch.int64,), 1),
            pool=wellformed.tensor(tree, "pool", wellformed.FLOATS),
            states=wellformed.tensors(tree, "states"),
            provenance=about.get("provenance", {}),
        )
        records = {t.shape[:1] for t in (truth.x, truth.y, truth.node, truth.index)}
        if len(records) != 1 or not all(
            t.shape[1:] == truth.task.shape for t in (truth.x, truth.pool)
        ):
            came = f"x {tuple(truth.x.shape)}, y {tuple(truth.y.shape)}, pool {tuple(truth.pool.shape)}"
            wellformed.bad(f"its records do not agree: {came}, inputs of shape {truth.task.shape}")
    except Bad as why:
        raise LeakauditError(f"{where} is refused: {why}") from None
    return truth


def _load_folder(folder: Path, verify: bool | None) -> Trace:
    manifest = shards.read(folder)
    shards.check(folder, manifest, verify)
    parts = [decode(_tree(folder / name, TRACE), str(folder / name)) for name in manifest.files]
    first = parts[0]
    for name, part in zip(manifest.files, parts, strict=True):
        if replace(part, messages=(), public={}) != replace(
            first, messages=(), public={}, rounds=part.rounds, complete=part.complete
        ):
            raise LeakauditError(
                f"{folder} mixes recordings: {name} does not belong to the others; copy the folder again"
            )
    return replace(
        first,
        messages=tuple(table for part in parts for table in part.messages),
        rounds=max(part.rounds for part in parts),
        complete=manifest.complete and all(part.complete for part in parts),
    )


def same_run(trace: Trace, truth: Truth) -> bool:
    """Check that a truth belongs to a trace.

    A user may choose the id of a recording, so runs that share one are told apart by the number that
    is drawn for each (`Trace.recording`), and by what both files say of the task.

    Returns:
        Whether both hold that number. If not, only the id ties them to each other.

    Raises:
        LeakauditError: The truth belongs to another recording.
    """
    name = "name the right file with --truth, or --truth none"
    if trace.id != truth.id:
        raise LeakauditError(
            f"expected the truth of recording {trace.id!r}, got that of {truth.id!r}; {name}"
        )
    known = None not in (trace.recording, truth.recording)
    if known and trace.recording != truth.recording:
        raise LeakauditError(f"{another_run(truth.id)}; {name}")
    if trace.task != truth.task or bool((truth.node >= trace.graph.nodes).any()):
        raise LeakauditError(f"{another_run(truth.id)}: it has another task or more nodes; {name}")
    return known


def another_run(id: str) -> str:
    """Say that two recordings share an id."""
    return f"the truth has the id {id!r} that was expected, but belongs to another recording"
