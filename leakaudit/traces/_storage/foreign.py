"""Traces as .npz and .safetensors files, for exchange with other programs.

Both contain the arrays ``round``, ``src``, ``dst`` (m,) and ``payload`` (rows, columns); optional
arrays are ``kind`` (m,), numbers that index ``kinds`` of the description, or text in .npz;
``secure`` (m,); ``row`` (m,), if a payload is sent to several nodes; and ``public.<name>``. The
description is JSON text: an array ``meta`` in .npz, the entry ``meta`` of a .safetensors file's
metadata.

    {"protocol": "dpsgd", "params": {"alpha": 0.1}, "task": {"model": "mlp", …},
     "graph": {"nodes": 3, "edges": [[0, 1], [1, 2]]},
     "layout": {"names": […], "shapes": [[…], …]}, "columns": [start, stop], "kinds": ["w"]}

params, layout, columns and kinds are optional. Defaults: none, that of the task, all of them, and
one kind named "message".
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leakaudit._util.files import replacing
from leakaudit._util.uncollected import read_json
from leakaudit._util.untrusted import npz, safetensors
from leakaudit.core import mapping
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Json, TaskSpec, Trace
from leakaudit.tasks.task import Task
from leakaudit.traces._storage import tree
from leakaudit.traces._storage.arrays import integers, tensor
from leakaudit.traces._storage.sizes import human
from leakaudit.traces._storage.wellformed import DEEPEST, INDEX, INT32

Arrays = Mapping[str, Any]
_PUBLIC = "public."
_MINIMUM = ("round", "src", "dst", "payload")
_KNOWN = (*INDEX, "secure", "payload", "meta")
# Protection against archives that unpack to much more than their size: a file may unpack to 200
# times its size, or to 64 MiB regardless of its size. Both are choices; float payloads hardly
# compress at all.
_UNPACKED = 200
_HARMLESS = 64 << 20


def read_npz(path: Path, max_bytes: float) -> Trace:
    """Read a trace from an .npz file, compressed or not; nothing is unpickled."""
    try:
        with npz.Npz(path, math.inf) as file:
            _check_unpacked(path, file.size, max_bytes)
            named = [name for name in file.files if name in _KNOWN or name.startswith(_PUBLIC)]
            arrays: dict[str, Any] = {name: file[name] for name in named}
        meta = str(arrays.pop("meta").item()) if "meta" in arrays else ""
    except LeakauditError:
        raise
    except Exception as error:  # a damaged archive raises anything
        raise LeakauditError(f"cannot read {path} as .npz: {_first_line(error)}") from None
    return _trace(arrays, meta, path)


def _check_unpacked(path: Path, size: int, max_bytes: float) -> None:
    if size > max_bytes:
        raise LeakauditError(
            f"{path} unpacks to {human(size)}, but max_bytes allows {human(max_bytes)}"
        )
    if size > max(_HARMLESS, _UNPACKED * path.stat().st_size):
        raise LeakauditError(
            f"{path} is rejected: it unpacks to more than {_UNPACKED} times its size"
        )


def read_safetensors(path: Path, max_bytes: float) -> Trace:
    """Read a trace from a .safetensors file."""
    package = safetensors.package()
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise LeakauditError(
                f"{path} contains {human(size)}, but max_bytes allows {human(max_bytes)}"
            )
        with package.safe_open(path, framework="pt") as file:
            names = list(file.keys())  # the only way to list the names
            arrays = {name: file.get_tensor(name) for name in names}
            meta = (file.metadata() or {}).get("meta", "")
    except LeakauditError:
        raise
    except Exception as error:  # a damaged file raises anything
        raise LeakauditError(f"cannot read {path} as .safetensors: {_first_line(error)}") from None
    return _trace(arrays, meta, path)


def write_npz(trace: Trace, path: Path) -> None:
    """Write a trace as an .npz file, uncompressed."""
    if trace.dtype == torch.bfloat16:
        raise LeakauditError(".npz does not support bfloat16; write .safetensors")
    arrays, meta = _arrays(trace)
    named: dict[str, Any] = {"meta": np.array(meta)}
    for name, value in arrays.items():
        if value.dtype == torch.bfloat16:
            raise LeakauditError(f".npz does not support bfloat16 ({name}); write .safetensors")
        named[name] = value.numpy()
    with replacing(path) as file:
        np.savez(file, **named)
        mapping.verify()


def write_safetensors(trace: Trace, path: Path) -> None:
    """Write a trace as a .safetensors file."""
    package = safetensors.package()
    arrays, meta = _arrays(trace)
    with replacing(path) as file:
        package.torch.save_file(arrays, file.name, metadata={"meta": meta})
        mapping.verify()


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _arrays(trace: Trace) -> tuple[dict[str, Tensor], str]:
    names = {kind: k for k, kind in enumerate(trace.kinds())}
    parts: dict[str, list[Tensor]] = {name: [] for name in (*INDEX, "secure", "payload")}
    rows = 0  # of the preceding tables
    for m in trace.messages:
        # Every table has its own numbers of kinds and rows; here they are renumbered over all
        # tables.
        number = torch.tensor([names[kind] for kind in m.kinds], dtype=torch.int32)
        parts["round"].append(m.round)
        parts["src"].append(m.src)
        parts["dst"].append(m.dst)
        parts["kind"].append(number[m.kind.long()])
        parts["row"].append(m.row + rows)
        parts["secure"].append(m.secure)
        parts["payload"].append(m.rows)
        rows += len(m.payload)
    arrays = {}
    for name, part in parts.items():
        arrays[name] = part[0].contiguous() if len(part) == 1 else torch.cat(part)
    for name, value in trace.public.items():
        # A copy: safetensors rejects tensors that share their memory.
        arrays[_PUBLIC + name] = value.clone(memory_format=torch.contiguous_format)
    about = read_json(tree.head(trace)["meta"])
    about["graph"] = {"nodes": about.pop("nodes"), "edges": trace.graph.edges}
    about |= {"kinds": list(names), "rounds": trace.rounds, "complete": trace.complete}
    return arrays, json.dumps(about)


def _trace(arrays: Arrays, meta: str, path: Path) -> Trace:
    """Convert arrays into the form of a trace file, and let its reader check them."""
    if missing := [name for name in _MINIMUM if name not in arrays]:
        raise LeakauditError(
            f"{path} lacks {', '.join(missing)}; "
            "a trace requires the arrays round, src, dst (m,) and payload (rows, columns)"
        )
    about, edges, rounds = _description(meta, path)
    names, table = _table(arrays, about.pop("kinds", None), path)
    count = table["round"].numel()
    if not 0 <= rounds < INT32:
        raise LeakauditError(f"{path}: expected rounds from 0 to {INT32 - 1}, got {rounds!r:.60}")
    for name, column in table.items():
        if column.shape != (count,):
            raise LeakauditError(
                f"{path}: round has {count} entries, but {name} has {_extent(column)}; "
                "all must have one entry per message"
            )
    payload = tensor(arrays["payload"], "payload").contiguous()
    complete = about.pop("complete", True) is True
    rows = payload.shape[0] if payload.dim() else 0
    try:
        encoded = "".join(f"{name}\n" for name in names).encode()
    except UnicodeEncodeError:
        raise LeakauditError(
            f"{path}: a kind has half of a surrogate pair, which is not a character"
        ) from None
    text = bytearray(encoded + b"\0")
    messages = {
        **table,
        "payload": payload,
        "written": torch.tensor([rows, count, rounds, int(complete)]),
        "kinds": torch.frombuffer(text, dtype=torch.uint8),
    }
    public = {}
    for name, value in arrays.items():
        if name.startswith(_PUBLIC):
            public[name.removeprefix(_PUBLIC)] = tensor(value, name)
    content = {
        "meta": json.dumps(about),
        "topology": edges,
        "public": public,
        "messages": messages,
    }
    return tree.decode(content, str(path))


def _extent(column: Tensor) -> str:
    if column.dim() == 1:
        return str(len(column))
    return f"the shape {tuple(column.shape)}"


def _table(arrays: Arrays, kinds: Json, path: Path) -> tuple[list[str], dict[str, Tensor]]:
    table = {name: _column(arrays, name, path) for name in ("round", "src", "dst")}
    count = len(table["round"])
    names, table["kind"] = _kinds(arrays, kinds, count, path)
    if "row" in arrays:
        table["row"] = _column(arrays, "row", path)
    else:
        table["row"] = torch.arange(count, dtype=torch.int32)
    if "secure" in arrays:
        table["secure"] = tensor(arrays["secure"], "secure").bool()
    else:
        table["secure"] = torch.zeros(count, dtype=torch.bool)
    return names, table


def _column(arrays: Arrays, name: str, path: Path) -> Tensor:
    return torch.from_numpy(integers(arrays[name], f"{path}: {name}", 1 << 31).astype(np.int32))


def _kinds(arrays: Arrays, names: Json, count: int, path: Path) -> tuple[list[str], Tensor]:
    if "kind" not in arrays:
        only = "message"
        if isinstance(names, list) and names:
            only = str(names[0])
        return [only], torch.zeros(count, dtype=torch.int32)
    column = arrays["kind"]
    if isinstance(column, np.ndarray) and column.dtype.kind == "U":
        found, kind = np.unique(column, return_inverse=True)
        return found.tolist(), torch.from_numpy(kind.reshape(-1).astype(np.int32))
    if not isinstance(names, list):
        raise LeakauditError(
            f'{path}: its kinds are numbers; add their names to the description: "kinds": ["w", …]'
        )
    return [str(n) for n in names], _column(arrays, "kind", path)


# Exceptions raised while reading a description in which a part is missing or of another type.
# RuntimeError comes from torch, OverflowError from a number that its type cannot hold.
_UNSOUND = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    RuntimeError,
    OverflowError,
    RecursionError,
)


def _description(meta: str, path: Path) -> tuple[dict[str, Json], Tensor, int]:
    """Return the description with defaults, the edges (e, 2) and the rounds."""
    try:
        about = {
            "params": {},
            "id": secrets.token_hex(16),
            "provenance": {"converted_from": path.name},
            **read_json(meta, DEEPEST),
        }
        task = TaskSpec.from_json(about["task"])
        graph = about.pop("graph")
        about["nodes"] = graph["nodes"]
        edges = torch.tensor(graph["edges"], dtype=torch.int32).reshape(-1, 2)
        if about.get("layout") is None:
            layout = Task.build(task).layout
            about["layout"] = {"names": layout.names, "shapes": layout.shapes}
        if "columns" not in about:
            about["columns"] = [0, sum(math.prod(shape) for shape in about["layout"]["shapes"])]
        rounds = int(about.pop("rounds", 0))
    except _UNSOUND:
        form = '{"protocol": …, "task": {…}, "graph": {"nodes": n, "edges": [[i, j], …]}}'
        raise LeakauditError(
            f"{path} lacks a valid description; expected JSON text 'meta' such as {form}"
        ) from None
    return about, edges, rounds
