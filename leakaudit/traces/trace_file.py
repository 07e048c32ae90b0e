"""Traces and truths on disk: .pt files, or a folder of them.

Everything that is read is checked for all properties on which the program relies. The format is
described in `leakaudit.traces._storage.tree`.
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


# What a recording can mean: every node has an edge, but for a few, and a channel that is recorded
# carries a message at least every thousand rounds, but for the first ones. Choices.
SOME_NODES, NODES = 100, 4
SOME_ROUNDS, ROUNDS = 1_000, 1_000


def load(path: str | os.PathLike[str], verify: bool | None = None) -> Trace:
    """Read a trace; payloads are memory-mapped, not read.

    Args:
        path: A .pt file or a folder.
        verify: Whether to compare the file with the sha256 next to it. None does so if there is one
            and the trace is smaller than 1 GiB.

    Raises:
        LeakauditError: One line, for a file that is not a valid trace of a version that this
            program can read.
    """
    path = Path(path)
    if path.is_dir():
        found = _load_folder(path, verify)
    else:
        sidecar.check(path, verify)
        found = tree.decode(tree.read(path, TRACE), str(path))
    _require_plausible(found, path)
    if not found.task.is_program:
        return found
    # The trace names its program by the name of a file beside it.
    beside = str(path.absolute().parent)
    return replace(found, task=replace(found.task, beside=beside))


def _require_plausible(trace: Trace, path: Path) -> None:
    """Reject numbers of nodes and rounds that no recording of this size has.

    Every analysis loops over them, and a file of a few kilobytes can state any number.
    """
    edges = len(trace.graph.edges)
    messages = len(trace)
    if trace.graph.nodes > SOME_NODES + NODES * edges:
        raise LeakauditError(
            f"{path} is rejected: it states {trace.graph.nodes} nodes, but only {edges} edges "
            "between them"
        )
    if trace.rounds > SOME_ROUNDS + ROUNDS * messages:
        raise LeakauditError(
            f"{path} is rejected: it states {trace.rounds} rounds, but contains only {messages} "
            "messages"
        )


def load_truth(
    path: str | os.PathLike[str], verify: bool | None = None, id: str | None = None
) -> Truth:
    """Read a truth file.

    Args:
        path: A .pt file.
        verify: As for `load`.
        id: Identifier of the trace to which it must belong; None for any.

    Raises:
        LeakauditError: As for `load`, or it is the truth of another recording.
    """
    path = Path(path)
    sidecar.check(path, verify)
    truth = tree.decode_truth(tree.read(path, TRUTH), str(path))
    if id is not None and truth.id != id:
        raise LeakauditError(
            f"{path} is the truth of another recording "
            f"(id {truth.id[:40]!r}, but the trace has {id[:40]!r}); name the matching file"
        )
    return truth


def truth_path(path: Path) -> Path:
    """Return the path of the truth of a trace.

    Args:
        path: ``trace.pt``, or a folder ``trace``; both give ``trace.truth.pt``.
    """
    if path.name in ("", ".."):
        path = path.resolve()
    return path.with_name(f"{path.name.removesuffix('.pt')}.truth.pt")


def save_truth(truth: Truth, path: Path) -> None:
    """Write a truth file atomically.

    Args:
        truth: The truth to write.
        path: The file; an existing one is replaced.
    """
    content = tree.truth_tree(truth)
    with replacing(path) as file:
        torch.save(content, file)


def write_sidecar(path: str | os.PathLike[str]) -> str:
    """Write the sha256 next to a trace or truth file; for a folder, into and next to its manifest.

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
        # Shards differ only in their messages and in the rounds that they reach.
        expected = replace(
            first, messages=(), public={}, rounds=part.rounds, complete=part.complete
        )
        if replace(part, messages=(), public={}) != expected:
            raise LeakauditError(
                f"{folder} contains shards of different recordings: {name} does not belong to the "
                "others; copy the folder again"
            )
    return replace(
        first,
        messages=tuple(table for part in parts for table in part.messages),
        rounds=max(part.rounds for part in parts),
        complete=manifest.complete and all(part.complete for part in parts),
    )


def same_run(trace: Trace, truth: Truth) -> bool:
    """Check that a truth belongs to a trace.

    A user may choose the id of a recording, so runs with the same id are distinguished by the
    random number of each (`Trace.recording`), and by the task that both files describe.

    Args:
        trace: The trace.
        truth: The candidate truth.

    Returns:
        Whether both contain this number. If not, only the id connects them.

    Raises:
        LeakauditError: The truth belongs to another recording.
    """
    name = "name the matching file with --truth, or use --truth none"
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
    """Return a statement that two recordings have the same id.

    Args:
        id: The id.
    """
    return f"the truth has the expected id {id!r}, but belongs to another recording"
