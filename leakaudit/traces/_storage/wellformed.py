"""What every part of a trace or truth file must be, so that nothing behind the reader needs to ask again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from leakaudit._util.schema import ANY, Pattern, departure
from leakaudit.trace import Graph, Json, Layout, Messages, TaskSpec

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INDEX = ("round", "src", "dst", "kind", "row")
KINDS = 4096  # bytes for the names of kinds
MAX_NODES, MAX_EDGES, MAX_SIZE = 1_000_000, 1_000_000, 1 << 40
_NAME = Pattern("a short printable name", r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,200}")
_TASK = {
    "model": _NAME, "args?": {str: ANY}, "loss?": _NAME, "shape?": [int], "classes?": int, "mean?": [float], "std?": [float],
    "levels?": int, "data?": str, "labels?": [str],
}  # fmt: skip
_LAYOUT = {"names": [_NAME], "shapes": [[int]]}
_META = {
    "trace": {
        "protocol": _NAME, "params": {str: ANY}, "task": _TASK, "nodes": int, "layout": _LAYOUT, "columns": [int], "id": str,
        "provenance": {str: ANY},
    },
    "truth": {"id": str, "task": _TASK, "provenance?": {str: ANY}},
}  # fmt: skip


class Bad(Exception):
    """What is out of order in a file, in words."""


def bad(why: str) -> NoReturn:
    """Raise `Bad`."""
    raise Bad(why)


def meta(tree: Mapping[str, Any], kind: str) -> dict[str, Json]:
    """Return the description, without what this version does not know."""
    text = tree.get("meta")
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        bad("its description 'meta' is no JSON text of a dictionary")
    known: dict[str, Json] = _known(value, _META[kind])
    if why := departure(known, _META[kind]):
        bad(f"in its description, {ascii(why)[1:-1]}")
    return known


def _known(value: Json, form: Any) -> Json:
    """Leave out entries that a later version of the same format added."""
    if not isinstance(form, dict) or str in form or not isinstance(value, dict):
        return value
    forms = {name.removesuffix("?"): part for name, part in form.items()}
    return {name: _known(part, forms[name]) for name, part in value.items() if name in forms}


def spec(value: Mapping[str, Json]) -> TaskSpec:
    """Return the task."""
    task = TaskSpec.from_json(value)
    small = 0 <= task.levels < 1 << 31 and 1 <= task.classes < 1 << 31
    if (
        not small
        or len(task.shape) > 8
        or any(n < 1 for n in task.shape)
        or math.prod(task.shape) > MAX_SIZE
    ):
        bad(
            f"its task has shape {task.shape}, {task.classes} classes and {task.levels} levels"[
                :200
            ]
        )
    return task


def layout(value: Mapping[str, Json]) -> Layout:
    """Return where each parameter lies."""
    names, shapes = tuple(value["names"]), tuple(map(tuple, value["shapes"]))
    odd = any(len(shape) > 8 or min(shape, default=1) < 0 for shape in shapes)
    if odd or len(names) != len(shapes) or len(set(names)) != len(names):
        bad("its layout needs one shape for every parameter name, each name once")
    found = Layout(names, shapes)
    if not 0 < found.size <= MAX_SIZE:
        bad(f"its layout describes a model of {str(found.size)[:40]} parameters")
    return found


def columns(value: list[int], size: int) -> tuple[int, int]:
    """Return which columns of the flat vector were recorded."""
    if len(value) != 2 or not 0 <= value[0] < value[1] <= size:
        bad(f"its columns {str(value)[:60]} do not lie in a model of {size} parameters")
    return value[0], value[1]


def graph(nodes: int, edges: Tensor) -> Graph:
    """Return the topology; edges (e, 2)."""
    if not 1 <= nodes <= MAX_NODES or edges.shape[1] != 2 or len(edges) > MAX_EDGES:
        bad(f"its topology has {str(nodes)[:40]} nodes and edges of shape {tuple(edges.shape)}")
    i, j = edges.long().T
    if bool(((i < 0) | (i >= j) | (j >= nodes)).any()) or len(torch.unique(i * nodes + j)) != len(
        edges
    ):
        bad(
            f"its topology names an edge twice, or one that is not (i, j) with 0 <= i < j < {nodes}"
        )
    return Graph(nodes, tuple((i, j) for i, j in edges.tolist()))


def tensor(
    tree: Mapping[str, Any], name: str, dtypes: tuple[torch.dtype, ...], dim: int | None = None
) -> Tensor:
    """Return one tensor of the tree."""
    value = tree.get(name)
    if (
        not isinstance(value, Tensor)
        or value.dtype not in dtypes
        or (dim is not None and value.dim() != dim)
    ):
        came = (
            f"{value.dtype} of shape {tuple(value.shape)}"
            if isinstance(value, Tensor)
            else "no tensor"
        )
        kinds = " or ".join(str(d).removeprefix("torch.") for d in dtypes)
        bad(
            f"{name!r} should be a tensor of {kinds}{'' if dim is None else f' with {dim} axes'}, it is {came}"
        )
    return value


def tensors(tree: Mapping[str, Any], name: str) -> dict[str, Tensor]:
    """Return a dictionary of tensors, empty where it is not there."""
    value = tree.get(name, {})
    if not isinstance(value, dict) or not all(
        isinstance(t, Tensor) and key.isprintable() for key, t in value.items()
    ):
        bad(f"{name!r} should be tensors by name")
    return value


def messages(table: Mapping[str, Any], nodes: int, width: int) -> tuple[Messages, int, bool]:
    """Return the messages that were committed, the last round, and whether the recording came to its end."""
    counters = (
        tensor(table, "written", (torch.int64,), 1).tolist()
        if "written" in table
        else bad("it holds no messages")
    )
    rows, count, last, closed = (
        counters[:4] if len(counters) in range(4, 65) else bad("its counters are incomplete")
    )
    index = {name: tensor(table, name, (torch.int32,), 1) for name in INDEX}
    secure, payload = tensor(table, "secure", (torch.bool,), 1), tensor(table, "payload", FLOATS, 2)
    if payload.shape[1] != width:
        bad(f"its payload has {payload.shape[1]} columns, its description says {width}")
    if (
        not 0 <= rows <= len(payload)
        or any(not 0 <= count <= len(c) for c in (*index.values(), secure))
        or not 0 <= last < 1 << 31
    ):
        bad(
            f"it announces {count} messages in {rows} rows up to round {last}, and does not hold them"
        )
    names = _kinds(tensor(table, "kinds", (torch.uint8,), 1))
    index = {name: column[:count] for name, column in index.items()}
    for name, stop in zip(INDEX, (1 << 31, nodes, nodes, len(names), rows), strict=True):
        low, high = (int(v) for v in index[name].aminmax()) if count else (0, -1)
        if low < 0 or high >= stop:
            bad(f"a message has {name} {low if low < 0 else high}, expected 0 to {stop - 1}")
    if count and int(secure[:count].view(torch.uint8).max()) > 1:
        bad("its column 'secure' holds neither true nor false")
    if count:
        last = max(
            last, int(index["round"].max())
        )  # killed between storing the messages' counter and the round's
    return (
        Messages(**index, secure=secure[:count], payload=payload[:rows], kinds=names),
        last,
        closed == 1,
    )


def _kinds(text: Tensor) -> tuple[str, ...]:
    if len(text) > 16 * KINDS:
        bad(f"the names of its kinds take {len(text)} bytes")
    try:
        names = bytes(text.numpy()).split(b"\0", 1)[0].decode().split("\n")[:-1]
    except UnicodeDecodeError:
        bad("the names of its kinds are no text")
    if not all(1 <= len(n) <= 200 and n.isprintable() for n in names) or len(set(names)) != len(
        names
    ):
        bad("the names of its kinds are not printable, or repeat")
    return tuple(names)
