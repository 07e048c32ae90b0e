"""Conversion of a trace or a truth to the nested dictionary that its file contains, and back.

A trace file, as `torch.load` shows it:

    format "leakaudit.trace", version 1, or 2 if `meta` has an entry `kept`
    meta (JSON text): protocol, params, task, nodes, layout {names, shapes}, columns, id,
        provenance; kept {spans, sketch {seed, rows, width} or null} if not only one span is stored
    topology (edges, 2) int32; public {name: tensor}
    messages {written (4,) int64: rows, messages, last round, closed;
              kinds (4096,) uint8: names, each on a line;
              round, src, dst, kind, row (capacity,) int32; secure (capacity,) bool;
              payload (capacity, columns)}

`written` is set after the data that it counts, so that a recording that was killed ends with its
last complete round. Unknown keys are ignored; a change that older programs would misinterpret
increments the version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakaudit._util.untrusted import safe_reader
from leakaudit._util.untrusted.archive import FileFault
from leakaudit.core import mapping
from leakaudit.core.errors import LeakauditError
from leakaudit.core.sketch import ROWS, WIDTH
from leakaudit.core.trace import Messages, Trace, Truth
from leakaudit.traces._storage import wellformed
from leakaudit.traces._storage.wellformed import INDEX, CommittedTable

if TYPE_CHECKING:
    import torch

TRACE = "leakaudit.trace"
TRUTH = "leakaudit.truth"
VERSION = 1
KEPT = 2  # version of a trace with spans or a sketch, which a program of version 1 cannot read
NEWEST = {TRACE: KEPT, TRUTH: VERSION}
_WORDS = {TRACE: "a trace", TRUTH: "a truth file"}
_FOREIGN = "not a file of leakaudit"


def read(path: Path, kind: str) -> dict[str, Any]:
    """Read a file and check its format and version."""
    return _checked(safe_reader.read(path), path, kind)


def outline(path: Path) -> tuple[Trace, CommittedTable]:
    """Read a trace without its messages, and the messages without payloads, all without torch."""
    return _outlined(_checked(safe_reader.outline(path), path, TRACE), str(path))


def _checked(tree: dict[str, Any], path: Path, kind: str) -> dict[str, Any]:
    found = tree.get("format")
    if found != kind:
        what = _FOREIGN
        if isinstance(found, str):
            what = _WORDS.get(found, _FOREIGN)
        raise LeakauditError(f"{path} is {what}; expected {_WORDS[kind]}")
    version = tree.get("version")
    if type(version) is not int or not VERSION <= version <= NEWEST[kind]:
        raise LeakauditError(
            f"{path} has format version {ascii(version)[:20]}, "
            f"but this program reads version {NEWEST[kind]}; update leakaudit"
        )
    return tree


def to_json(value: object) -> str:
    """Return a value as JSON text."""
    try:
        return json.dumps(value, default=lambda scalar: scalar.item(), allow_nan=False)
    except (TypeError, ValueError, AttributeError, RuntimeError, RecursionError) as error:
        raise LeakauditError(
            f"a trace is described by numbers, text, and lists and dictionaries of them: {error}"
        ) from None


def head(trace: Trace) -> dict[str, Any]:
    """Return the contents of a trace file before the messages."""
    import torch

    about: dict[str, object] = {
        "protocol": trace.protocol,
        "params": trace.params,
        "task": trace.task.to_json(),
        "nodes": trace.graph.nodes,
        "layout": {"names": trace.layout.names, "shapes": trace.layout.shapes},
        "columns": trace.columns,
        "id": trace.id,
        "provenance": trace.provenance,
    }
    if trace.kept is not None:
        sketch = None
        if trace.kept.seed is not None:
            sketch = {"seed": trace.kept.seed, "rows": ROWS, "width": WIDTH}
        about["kept"] = {"spans": trace.kept.spans, "sketch": sketch}
    edges = torch.tensor(trace.graph.edges, dtype=torch.int32).reshape(-1, 2)
    tree = {
        "format": TRACE,
        "version": version(trace),
        "meta": to_json(about),
        "topology": edges,
        "public": dict(trace.public),
    }
    try:
        wellformed.without_messages(tree)
        wellformed.tensors(tree, "public")
    except FileFault as why:
        raise LeakauditError(f"this cannot be recorded: {why}") from None
    return tree


def version(trace: Trace) -> int:
    """Return the version of the format of a trace's file."""
    return VERSION if trace.kept is None else KEPT


def decode(tree: Mapping[str, Any], where: str) -> Trace:
    """Convert the contents of a trace file into a `Trace`."""
    trace, found = _outlined(tree, where)
    table = tree["messages"]
    count = len(found)
    stored = table["payload"][: found.rows]
    mapping.use(stored)  # it comes last in the file
    messages = Messages(
        **{name: table[name][:count] for name in INDEX},
        secure=table["secure"][:count],
        payload=stored if trace.kept is None else stored[:, : trace.columns[1] - trace.columns[0]],
        kinds=found.kinds,
        stored=None if trace.kept is None else stored,
    )
    return replace(trace, messages=(messages,))


def _outlined(tree: Mapping[str, Any], where: str) -> tuple[Trace, CommittedTable]:
    """Check the contents of a trace file; its public tensors remain as they are in it."""
    try:
        trace = wellformed.without_messages(tree)
        table = tree.get("messages")
        if not isinstance(table, dict):
            table = {}
        found = wellformed.messages(table, trace.graph.nodes, trace.recorded.width)
        public = wellformed.tensors(tree, "public")
    except FileFault as why:
        raise LeakauditError(f"{where} is rejected: {why}") from None
    return replace(trace, rounds=found.last, complete=found.closed, public=public), found


def truth_tree(truth: Truth) -> dict[str, Any]:
    """Return the contents of a truth file.

    Tensors are copied, because `torch.save` writes the whole storage of a view.
    """
    own = {
        "x": truth.x,
        "y": truth.y,
        "node": truth.node,
        "index": truth.index,
        "pool": truth.pool,
    }
    about = {"id": truth.id, "task": truth.task.to_json(), "provenance": dict(truth.provenance)}
    return {
        "format": TRUTH,
        "version": VERSION,
        "meta": to_json(about),
        **_copied(own),
        "states": _copied(truth.states),
    }


def _copied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}


def decode_truth(tree: Mapping[str, Any], where: str) -> Truth:
    """Convert the contents of a truth file into a `Truth`."""
    try:
        truth = wellformed.truth(tree)
    except FileFault as why:
        raise LeakauditError(f"{where} is rejected: {why}") from None
    mapping.use(truth.x, truth.y, truth.node, truth.index, truth.pool, *truth.states.values())
    return truth
