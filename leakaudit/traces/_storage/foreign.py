"""Traces as .npz and .safetensors files, for programs that do not speak ours.

Both hold the arrays ``round``, ``src``, ``dst`` (m,) and ``payload`` (rows, columns); optional are ``kind`` (m,), numbers that
index ``kinds`` of the description, or text in .npz; ``secure`` (m,); ``row`` (m,), where a payload goes to several nodes; and
``public.<name>``. The description is JSON text: an array ``meta`` in .npz, the entry ``meta`` of a .safetensors file's metadata.

    {"protocol": "dpsgd", "params": {"alpha": 0.1}, "task": {"model": "mlp", …}, "graph": {"nodes": 3, "edges": [[0, 1], [1, 2]]},
     "layout": {"names": […], "shapes": [[…], …]}, "columns": [start, stop], "kinds": ["w"]}

params, layout, columns and kinds may be left out: none, the task's own, all of them, and one kind called "message".
"""

from __future__ import annotations

import json
import math
import secrets
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leakaudit._util.files import replacing
from leakaudit.errors import LeakauditError
from leakaudit.trace import Json, TaskSpec, Trace
from leakaudit.traces import trace_file
from leakaudit.traces._storage.arrays import integers, tensor
from leakaudit.traces._storage.sizes import human
from leakaudit.traces._storage.wellformed import INDEX

Arrays = Mapping[str, Any]
_MINIMUM = ("round", "src", "dst", "payload")
_UNPACKED = 200  # times its size that an entry may unpack to


def read_npz(path: Path, max_bytes: float) -> Trace:
    """Read a trace from an .npz file, compressed or not; nothing is unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            size = sum(entry.file_size for entry in entries)
            if size > max_bytes:
                raise LeakauditError(
                    f"{path} unpacks to {human(size)}; max_bytes allows {human(max_bytes)}"
                )
            if any(e.file_size > max(64 << 20, _UNPACKED * e.compress_size) for e in entries):
                raise LeakauditError(
                    f"{path} is refused: it unpacks to more than {_UNPACKED} times its size"
                )
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        meta = str(arrays.pop("meta").item()) if "meta" in arrays else ""
    except LeakauditError:
        raise
    except Exception as error:  # a damaged archive raises anything
        raise LeakauditError(f"cannot read {path} as .npz: {_first_line(error)}") from None
    return _trace(arrays, meta, path)


def read_safetensors(path: Path, max_bytes: float) -> Trace:
    """Read a trace from a .safetensors file; raises LeakauditError where the package is not installed."""
    package = _safetensors()
    try:
        if (size := path.stat().st_size) > max_bytes:
            raise LeakauditError(f"{path} holds {human(size)}; max_bytes allows {human(max_bytes)}")
        with package.safe_open(path, framework="pt") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dictionary)
            meta = (file.metadata() or {}).get("meta", "")
    except (OSError, package.SafetensorError) as error:
        raise LeakauditError(f"cannot read {path} as .safetensors: {_first_line(error)}") from None
    return _trace(arrays, meta, path)


def write_npz(trace: Trace, path: Path) -> None:
    """Write a trace as an .npz file, uncompressed; raises LeakauditError for bfloat16, which numpy does not have."""
    if trace.dtype == torch.bfloat16:
        raise LeakauditError(".npz cannot hold bfloat16; write .safetensors")
    arrays, meta = _arrays(trace)
    named: dict[str, Any] = {
        "meta": np.array(meta),
        **{name: value.numpy() for name, value in arrays.items()},
    }
    with replacing(path) as file:
        np.savez(file, **named)


def write_safetensors(trace: Trace, path: Path) -> None:
    """Write a trace as a .safetensors file; raises LeakauditError where the package is not installed."""
    package, (arrays, meta) = _safetensors(), _arrays(trace)
    with replacing(path) as file:
        package.torch.save_file(arrays, file.name, metadata={"meta": meta})


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise LeakauditError(
            ".safetensors needs another package: install leakaudit[safetensors]"
        ) from None
    return safetensors


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _arrays(trace: Trace) -> tuple[dict[str, Tensor], str]:
    """Return one array a column for all tables, and the description."""
    names = {kind: k for k, kind in enumerate(trace.kinds())}
    parts: dict[str, list[Tensor]] = {name: [] for name in (*INDEX, "secure", "payload")}
    before = 0
    for m in trace.messages:
        own = torch.tensor([names[kind] for kind in m.kinds], dtype=torch.int32)
        columns = (m.round, m.src, m.dst, own[m.kind.long()], m.row + before, m.secure, m.payload)
        for part, column in zip(parts.values(), columns, strict=True):
            part.append(column)
        before += len(m.payload)
    arrays = {
        name: part[0].contiguous() if len(part) == 1 else torch.cat(part)
        for name, part in parts.items()
    }
    head = trace_file.head(trace)
    about = json.loads(head["meta"])
    about["graph"] = {"nodes": about.pop("nodes"), "edges": trace.graph.edges}
    about |= {"kinds": list(names), "rounds": trace.rounds, "complete": trace.complete}
    return arrays | {
        f"public.{name}": value.contiguous() for name, value in trace.public.items()
    }, json.dumps(about)


def _trace(arrays: Arrays, meta: str, path: Path) -> Trace:
    """Put arrays into the form of a trace file, whose reader then checks them."""
    if missing := [name for name in _MINIMUM if name not in arrays]:
        raise LeakauditError(
            f"{path} lacks {', '.join(missing)}; a trace needs the arrays round, src, dst (m,) and payload (rows, columns)"
        )
    about = _description(meta, path)
    table = {name: _column(arrays, name, path) for name in ("round", "src", "dst")}
    count = len(table["round"])
    names, table["kind"] = _kinds(arrays, about.pop("kinds", None), count, path)
    table["row"] = (
        _column(arrays, "row", path) if "row" in arrays else torch.arange(count, dtype=torch.int32)
    )
    table["secure"] = (
        tensor(arrays["secure"], "secure").bool()
        if "secure" in arrays
        else torch.zeros(count, dtype=torch.bool)
    )
    if uneven := [
        f"{name} {len(column)}" for name, column in table.items() if len(column) != count
    ]:
        raise LeakauditError(
            f"{path}: round has {count} entries, but {uneven[0]}; every message needs one of each"
        )
    payload = tensor(arrays["payload"], "payload").contiguous()
    rounds, complete = about.pop("rounds", 0), about.pop("complete", True)
    written = torch.tensor(
        [payload.shape[0] if payload.dim() else 0, count, int(rounds), int(complete is True)]
    )
    text = bytearray("".join(f"{name}\n" for name in names).encode() + b"\0")
    messages = {
        **table,
        "payload": payload,
        "written": written,
        "kinds": torch.frombuffer(text, dtype=torch.uint8),
    }
    public = {
        name.removeprefix("public."): tensor(value, name)
        for name, value in arrays.items()
        if name.startswith("public.")
    }
    edges = about.pop("edges")
    return trace_file.decode(
        {"meta": json.dumps(about), "topology": edges, "public": public, "messages": messages},
        str(path),
    )


def _column(arrays: Arrays, name: str, path: Path) -> Tensor:
    return torch.from_numpy(integers(arrays[name], f"{path}: {name}", 1 << 31).astype(np.int32))


def _kinds(arrays: Arrays, names: Json, count: int, path: Path) -> tuple[list[str], Tensor]:
    """Return the names of kinds, and each message's."""
    if "kind" not in arrays:
        return [str(n) for n in names or ["message"]][:1], torch.zeros(count, dtype=torch.int32)
    if isinstance(arrays["kind"], np.ndarray) and arrays["kind"].dtype.kind == "U":
        found, kind = np.unique(arrays["kind"], return_inverse=True)
        return found.tolist(), torch.from_numpy(kind.reshape(-1).astype(np.int32))
    if not isinstance(names, list):
        raise LeakauditError(
            f'{path}: its kinds are numbers; name them in the description: "kinds": ["w", …]'
        )
    return [str(n) for n in names], _column(arrays, "kind", path)


def _description(meta: str, path: Path) -> dict[str, Json]:
    """Return the description, with what was left out filled in."""
    try:
        about = {
            "params": {},
            "id": secrets.token_hex(16),
            "provenance": {"converted_from": path.name},
            **json.loads(meta),
        }
        task, graph = TaskSpec.from_json(about["task"]), about.pop("graph")
        about["nodes"], about["edges"] = (
            graph["nodes"],
            torch.tensor(graph["edges"], dtype=torch.int32).reshape(-1, 2),
        )
        about.setdefault("layout", None)
        if about["layout"] is None:
            from leakaudit.tasks.task import Task

            layout = Task.build(task).layout
            about["layout"] = {"names": layout.names, "shapes": layout.shapes}
        about.setdefault(
            "columns", [0, sum(math.prod(shape) for shape in about["layout"]["shapes"])]
        )
        int(about.get("rounds", 0))
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RuntimeError,
        OverflowError,
        RecursionError,
    ):
        form = '{"protocol": …, "task": {…}, "graph": {"nodes": n, "edges": [[i, j], …]}}'
        raise LeakauditError(
            f"{path} lacks a sound description; expected JSON text 'meta' like {form}"
        ) from None
    return about
