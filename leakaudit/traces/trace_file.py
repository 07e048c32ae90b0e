"""Traces and truths on disk: .pt files, or a folder of them; everything that is read is checked.

`leakaudit.traces._storage.tree` describes the format.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from leakaudit._util import files
from leakaudit._util.untrusted.archive import FileFault
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Trace, Truth
from leakaudit.traces._storage import shards, sidecar, tree, wellformed
from leakaudit.traces._storage.tree import TRACE, TRUTH, VERSION, head, version
from leakaudit.traces._storage.wellformed import CommittedTable

__all__ = [
    "TRACE",
    "VERSION",
    "another_run",
    "head",
    "load",
    "load_truth",
    "outline",
    "same_run",
    "truth_path",
    "version",
    "write_sidecar",
]


def load(path: str | os.PathLike[str], verify: bool | None = None) -> Trace:
    """Read a trace; payloads are memory-mapped, not read.

    Args:
        path: A .pt file or a folder.
        verify: Whether to compare the file with the sha256 next to it; None does so if there is one
            and the trace is smaller than 1 GiB.

    Raises:
        LeakauditError: It is not a valid trace of a version that this program can read.
    """
    path = Path(path)
    if path.is_dir():
        manifest = shards.read(path)
        shards.check(path, manifest, verify)
        found = _joined(path, manifest, {name: _decoded(path / name) for name in manifest.files})
    else:
        sidecar.check(path, verify)
        found = _decoded(path)
    _check_rounds(path, found, len(found))
    if not found.task.is_program:
        return found
    # The trace names its program by the name of a file beside it.
    beside = str(path.absolute().parent)
    return replace(found, task=replace(found.task, beside=beside))


def outline(path: str | os.PathLike[str]) -> tuple[Trace, list[CommittedTable]]:
    """Read what a trace contains, without its payloads and without torch.

    Its sha256 is not compared.
    """
    path = Path(path)
    if not path.is_dir():
        trace, table = tree.outline(path)
        tables = [table]
    else:
        manifest = shards.read(path)
        parts: dict[str, Trace] = {}
        tables = []
        for name in manifest.files:
            parts[name], table = tree.outline(path / name)
            tables.append(table)
        trace = _joined(path, manifest, parts)
    _check_rounds(path, trace, sum(map(len, tables)))
    return trace, tables


def _check_rounds(path: Path, trace: Trace, messages: int) -> None:
    try:
        wellformed.rounds(trace.rounds, messages)
    except FileFault as why:
        raise LeakauditError(f"{path} is rejected: {why}") from None


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


def belonging(path: Path) -> tuple[Path, ...]:
    """Return the files of a trace, which need not exist: itself, its truth, their checksums."""
    both = (path, truth_path(path))
    return (*both, *map(sidecar.beside, both))


def truth_path(path: Path) -> Path:
    """Return ``trace.truth.pt`` for ``trace.pt`` or a folder ``trace``."""
    if path.name in ("", ".."):
        path = files.resolved(path)
    return path.with_name(f"{path.name.removesuffix('.pt')}.truth.pt")


def write_sidecar(path: str | os.PathLike[str]) -> str:
    """Write the sha256 beside a trace or truth file, or into and beside a folder's manifest."""
    path = Path(path)
    return shards.seal(path) if path.is_dir() else sidecar.write(path)


def _decoded(path: Path) -> Trace:
    return tree.decode(tree.read(path, TRACE), str(path))


def _joined(folder: Path, manifest: shards.Manifest, parts: Mapping[str, Trace]) -> Trace:
    """Return the trace of a folder from its shards by name, with the messages of the first.

    Raises `LeakauditError` if they belong to different recordings.
    """
    first = parts[next(iter(manifest.files))]
    for name, part in parts.items():
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
        messages=tuple(table for part in parts.values() for table in part.messages),
        rounds=max(part.rounds for part in parts.values()),
        complete=manifest.complete and all(part.complete for part in parts.values()),
    )


def same_run(
    trace: Trace,
    truth: Truth,
    *,
    advice: str = "name the matching file with --truth, or use --truth none",
) -> bool:
    """Check that a truth belongs to a trace; `advice` says what to do if it does not.

    A user may choose the id of a recording, so runs with the same id are distinguished by the
    random number of each (`Trace.recording`), and by the task.
    """
    if trace.id != truth.id:
        raise LeakauditError(
            f"expected the truth of recording {trace.id!r}, got that of {truth.id!r}; {advice}"
        )
    known = None not in (trace.recording, truth.recording)
    if known and trace.recording != truth.recording:
        raise LeakauditError(f"{another_run(truth.id)}; {advice}")
    if trace.task != truth.task or bool((truth.node >= trace.graph.nodes).any()):
        other = "it has another task or more nodes"
        raise LeakauditError(f"{another_run(truth.id)}: {other}; {advice}")
    return known


def another_run(id: str) -> str:
    """Return a statement that two recordings have the same id."""
    return f"the truth has the expected id {id!r}, but belongs to another recording"
