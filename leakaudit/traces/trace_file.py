"""Traces and truths on disk: .pt files, or a folder of them.

What is read is checked against all that the program relies on. The format stands in
`leakaudit.traces._storage.tree`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch

from leakaudit._util.files import replacing
from leakaudit.errors import LeakauditError
from leakaudit.trace import Trace, Truth
from leakaudit.traces._storage import shards, sidecar, tree
from leakaudit.traces._storage.tree import TRACE, TRUTH, VERSION, head

__all__ = [
    "TRACE",
    "VERSION",
    "another_run",
    "head",
    "load",
    "load_truth",
    "same_run",
    "save_truth",
    "truth_path",
    "write_sidecar",
]


def load(path: str | os.PathLike[str], verify: bool | None = None) -> Trace:
    """Read a trace; payloads are mapped, not read.

    Args:
        path: A .pt file or a folder.
        verify: Whether to compare with the sha256 beside it. None does if there is one and the
            trace is below 1 GiB.

    Raises:
        LeakauditError: In one line, for a file that is not a valid trace of a version that this
            program reads.
    """
    path = Path(path)
    if path.is_dir():
        return _load_folder(path, verify)
    sidecar.check(path, verify)
    return tree.decode(tree.read(path, TRACE), str(path))


def load_truth(
    path: str | os.PathLike[str], verify: bool | None = None, id: str | None = None
) -> Truth:
    """Read a truth file.

    Args:
        path: A .pt file.
        verify: As for `load`.
        id: Of the trace that it must belong to; None for any.

    Raises:
        LeakauditError: As `load` does, or it is the truth of another recording.
    """
    path = Path(path)
    sidecar.check(path, verify)
    truth = tree.decode_truth(tree.read(path, TRUTH), str(path))
    if id is not None and truth.id != id:
        raise LeakauditError(
            f"{path} is the truth of another recording "
            f"(id {truth.id[:40]!r}, the trace has {id[:40]!r}); give its own"
        )
    return truth


def truth_path(path: Path) -> Path:
    """Return where the truth of a trace stands.

    Args:
        path: ``trace.pt``, or a folder ``trace``; both give ``trace.truth.pt``.
    """
    if path.name in ("", ".."):
        path = path.resolve()
    return path.with_name(f"{path.name.removesuffix('.pt')}.truth.pt")


def save_truth(truth: Truth, path: Path) -> None:
    """Write a truth file, whole or not at all.

    Args:
        truth: What is written.
        path: The file; an older one is replaced.
    """
    content = tree.truth_tree(truth)
    with replacing(path) as file:
        torch.save(content, file)


def write_sidecar(path: str | os.PathLike[str]) -> str:
    """Write the sha256 beside a trace or truth file, or of a folder into and beside its manifest.

    Args:
        path: The file or folder.

    Returns:
        The sha256.
    """
    path = Path(path)
    return shards.seal(path) if path.is_dir() else sidecar.write(path)


def _load_folder(folder: Path, verify: bool | None) -> Trace:
    manifest = shards.read(folder)
    shards.check(folder, manifest, verify)
    parts = []
    for name in manifest.files:
        file = folder / name
        parts.append(tree.decode(tree.read(file, TRACE), str(file)))
    first = parts[0]
    for name, part in zip(manifest.files, parts, strict=True):
        # Shards differ in their messages, and in how far they go; all else is of the recording.
        expected = replace(
            first, messages=(), public={}, rounds=part.rounds, complete=part.complete
        )
        if replace(part, messages=(), public={}) != expected:
            raise LeakauditError(
                f"{folder} mixes recordings: {name} does not belong to the others; "
                "copy the folder again"
            )
    return replace(
        first,
        messages=tuple(table for part in parts for table in part.messages),
        rounds=max(part.rounds for part in parts),
        complete=manifest.complete and all(part.complete for part in parts),
    )


def same_run(trace: Trace, truth: Truth) -> bool:
    """Check that a truth belongs to a trace.

    A user may choose the id of a recording, so runs that share one are told apart by the number
    that is drawn for each (`Trace.recording`), and by what both files say of the task.

    Args:
        trace: The trace.
        truth: What may be its truth.

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
    """Say that two recordings share an id.

    Args:
        id: The id.
    """
    return f"the truth has the id {id!r} that was expected, but belongs to another recording"
