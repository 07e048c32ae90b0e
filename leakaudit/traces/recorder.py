"""Recording of a trace during a training run, and of its truth next to it."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from leakaudit._util import earlier_names, files
from leakaudit._util.files import replacing
from leakaudit._util.untrusted.safe_reader import STORAGES
from leakaudit.core import mapping, registry
from leakaudit.core.errors import LeakauditError
from leakaudit.core.payload import StoredColumns
from leakaudit.core.trace import CONSTANTS, RECORDING, Graph, Json, Layout, TaskSpec, Trace, Truth
from leakaudit.core.version import VERSION
from leakaudit.tasks import build_task
from leakaudit.tasks.task import Task
from leakaudit.traces import callers, layers, trace_file
from leakaudit.traces._storage.arrays import integers, tensor
from leakaudit.traces._storage.sizes import estimate, human, plan_size, refuse_above
from leakaudit.traces._storage.table import TableFormat
from leakaudit.traces._storage.truth_file import TruthFile
from leakaudit.traces._storage.wellformed import FLOATS
from leakaudit.traces.arcs import Arcs
from leakaudit.traces.vocabulary import Vocabulary, finite
from leakaudit.traces.writer import Integers, RecordingWriter

__all__ = ["Recorder", "RecorderOptions", "Storage", "estimate", "human", "plan_size"]

EACH = "_each"  # ends the name of a curve with a value for each node
LAST_ROUND = (1 << 31) - 1  # what the int32 column of rounds can hold


@dataclass(frozen=True)
class Storage:
    """Where a recording is stored, and how large it may become.

    Attributes:
        path: A .pt file. A folder (if it exists, or if the text ends with "/") receives shards.
            None records in memory.
        truth: Whether, or where, to write the truth, if any; by default next to the trace.
        messages: Expected number of messages; None if unknown.
        rows: Expected number of payloads, smaller than that of messages if there are broadcasts.
        max_bytes: Maximum size of the recording.
        shard_bytes: Size of a shard of a folder.
        hash: Whether to write a sha256 next to each file; None does so up to 4 GiB.
    """

    path: str | os.PathLike[str] | None
    truth: bool | str | os.PathLike[str] = True
    messages: int | None = None
    rows: int | None = None
    max_bytes: float = 4e9
    shard_bytes: int = 1 << 30
    hash: bool | None = None


@dataclass(frozen=True)
class RecorderOptions:
    """What is recorded of a run.

    Attributes:
        layers: What is recorded of each message: ``all``, ``first``, ``last``, names of parameters
            or modules, and ``sketch`` (docs/traces.md); or a `StoredColumns`.
        layout: Layout of the flat model vector; by default that of the task.
        dtype: Number format of the payloads.
        secure_kinds: Kinds of messages that are sent encrypted.
        keep_states: Whether to keep the values passed to `Recorder.state`.
        keep_curves: Whether to keep the values passed to `Recorder.curve`.
        id: Identifier of the recording, equal in trace and truth; random if None.
        provenance: Plain values that describe the run, for the trace.
        private: Plain values for the provenance of the truth only.
        check: Whether to compare names, channels and numbers with what the protocol and the task
            declare; False copies a recording unchanged.
    """

    layers: str | Sequence[str] | StoredColumns = "all"
    layout: Layout | None = None
    dtype: torch.dtype = torch.float32
    secure_kinds: Sequence[str] = ()
    keep_states: bool = False
    keep_curves: bool = False
    id: str | None = None
    provenance: Mapping[str, Json] | None = None
    private: Mapping[str, Json] | None = None
    check: bool = True


class Recorder:
    """Records messages into a trace, round by round.

    A run that is killed or ends with an exception leaves a trace up to its last complete round,
    marked as incomplete. A file at `path` is replaced when the first message is recorded.

    Args:
        path: A .pt file, a folder for shards, or None to record in memory; a `Storage` also says
            how large the recording may become.
        protocol: A registered victim, with `params` as its constants; the path of a protocol file
            (``.toml``), whose text the trace then carries; or ``own:NAME`` without a declaration.
        task: The learning task.
        graph: Defines who can send to whom.
        params: Constants of the protocol.
        rounds: Expected number of rounds; None if unknown.
        public: Tensors that are known to everybody, by name.
        options: What is recorded of each message and of the nodes; all messages by default.

    Attributes:
        partial: Whether some nodes run in other processes.
        kept: What is recorded of each message.
        columns: Its columns; of several spans, the first.

    Raises:
        LeakauditError: Before anything is created: the arguments do not fit together, the path
            cannot be written, or the recording would exceed its maximum size.
    """

    partial = False

    @earlier_names.keywords("Recorder")
    def __init__(
        self,
        path: str | os.PathLike[str] | Storage | None,
        *,
        protocol: str,
        task: TaskSpec | Task,
        graph: Graph,
        params: Mapping[str, Json] | None = None,
        rounds: int | None = None,
        public: Mapping[str, Any] | None = None,
        options: RecorderOptions | None = None,
    ) -> None:
        storage = path if isinstance(path, Storage) else Storage(path)
        options = options or RecorderOptions()
        # What the recorder needs to accept or reject a message.
        self.path = None if storage.path is None else _followed(Path(storage.path))
        self.graph = graph
        self.dtype = options.dtype
        self.id = options.id or secrets.token_hex(16)
        self.rounds = rounds
        self.task, self.layout = _described(task, options.layout)
        if self.task.is_program:
            self.task = _with_sha256(self.task)
        self.kept = _kept(task, self.layout, options.layers)
        self.columns = self.kept.columns
        self.keep_curves = options.keep_curves
        self._keep_states = options.keep_states
        self._secure_kinds = frozenset(options.secure_kinds)
        self._kinds: set[str] = set()
        self._round = 0
        self._closed = False

        # Reject what cannot be recorded, before anything is created.
        _check(self.dtype, self.kept, storage, rounds)
        self._refuse_larger(storage)
        constants = {f"{CONSTANTS}{name}": one for name, one in self.task.constants.items()}
        self.public = {
            name: _storable(tensor(value, f"public {name}"), f"public {name}")
            for name, value in {**(public or {}), **constants}.items()
        }
        params = params or {}
        self._vocabulary: Vocabulary | None = None
        if options.check:
            self._vocabulary = Vocabulary(protocol, params, graph, rounds, self.public)
            protocol = self._vocabulary.protocol

        # A copy of a trace without a number of its own receives none, because its truth has none.
        said = _provenance(options.provenance, rounds, options.check)
        if self._vocabulary is not None:
            said |= self._vocabulary.provenance
        own = dict(options.private or {})
        if options.check or storage.truth is not False:
            own[RECORDING] = said.setdefault(RECORDING, secrets.token_hex(16))

        if self.task.is_program and self.path is not None:
            _copy_program(self.task, self.path)

        # From here on, the writer owns all files.
        described = Trace(
            protocol=protocol,
            params=params,
            task=self.task,
            graph=graph,
            layout=self.layout,
            columns=self.columns,
            rounds=0,
            messages=(),
            public=self.public,
            id=self.id,
            provenance=said,
            kept=None if self.kept.is_plain else self.kept,
        )
        format = TableFormat(trace_file.head(described), self.kept.width, self.dtype)
        self._truth = TruthFile(
            _truth_path(self.path, storage.truth),
            self.id,
            self.task,
            graph.nodes,
            limit=storage.max_bytes,
            provenance=own,
            check=options.check,
            samples=_samples(params),
        )
        self._writer = RecordingWriter(
            self.path,
            format,
            size=(storage.messages, _rows(storage)),
            limit=storage.max_bytes,
            shard_bytes=storage.shard_bytes if _is_folder(storage.path) else None,
            truth=self._truth,
            hash=storage.hash,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            with suppress(LeakauditError, OSError):  # the original error is more informative
                self._end(complete=False)

    def send(
        self,
        round: int,
        src: int,
        dst: int | Sequence[int],
        kind: str,
        value: Any,
        secure: bool = False,
    ) -> None:
        """Record one message, or a broadcast to several nodes, which is stored once.

        A higher round number commits the preceding rounds.

        Args:
            round: Round of the message, not lower than that of earlier ones.
            src: Its sender.
            dst: Its receiver, or receivers.
            kind: Name of its kind.
            value: (d,) the whole vector, or (c,) what is recorded of it: the columns, or the result
                of ``kept.cut``; from torch, numpy or anything with DLPack or ``__array__``.
            secure: Whether it is sent encrypted.

        Raises:
            LeakauditError: The protocol sends no such message, the round is lower than the last, or
                the vector has another length, NaN or infinity.
        """
        vector = self._vector(value)
        sender = integers(src, "src", self.graph.nodes)
        to = integers(dst, "dst", self.graph.nodes)
        if len(sender) != 1:
            raise LeakauditError(
                f"send: expected one src, got {len(sender)}; use send_many for several"
            )
        if not len(to):
            return
        if kind not in self._kinds:
            self._note(kind, sys._getframe(1))
        if self._vocabulary is not None:
            finite(vector.to(self.dtype), f"round {round}: message {kind!r} of node {sender[0]}")
        all_the_same = np.zeros(len(to), np.int64)
        self._append(round, sender, to, kind, secure, all_the_same)[0].copy_(vector)

    def send_many(
        self, round: int, src: Any, dst: Any, kind: str, secure: bool = False, row: Any = None
    ) -> Tensor:
        """Record several messages of one kind.

        Args:
            round: Round of the messages, not lower than that of earlier ones.
            src: (k,) senders.
            dst: (k,) receivers.
            kind: Name of their kind.
            secure: Whether they are sent encrypted.
            row: (k,) index of the payload of each message, if some are sent to several nodes.

        Returns:
            (max(row) + 1, c) the payloads, to be filled before the round ends, as by ``kept.cut``.

        Raises:
            LeakauditError: As for `send`, or src, dst and row differ in length.
        """
        senders = integers(src, "src", self.graph.nodes)
        to = integers(dst, "dst", self.graph.nodes)
        if row is None:
            rows: Integers = np.arange(len(senders))
        else:
            rows = integers(row, "row", max(1, len(senders)))
        if kind not in self._kinds:
            self._note(kind, sys._getframe(1))
        if not len(senders) == len(to) == len(rows):
            raise LeakauditError(
                "send_many: expected src, dst and row of equal length, "
                f"got {len(senders)}, {len(to)} and {len(rows)}"
            )
        return self._append(round, senders, to, kind, secure, rows)

    def exchange(
        self,
        round: int,
        kind: str,
        values: Tensor,
        arcs: Arcs,
        secure: bool = False,
        instead: Callable[[], Tensor] | None = None,
    ) -> Tensor:
        """Record an exchange of messages and return what the receivers obtain.

        All nodes run in this process, so they obtain the values themselves. An engine with several
        processes returns what arrived (docs/engines.md).

        Args:
            round: Round of the messages.
            kind: Name of their kind.
            values: (rows, d) the payloads.
            arcs: Who sends which of them to whom.
            secure: Whether they are sent encrypted.
            instead: Returns replacements for rows that did not arrive; not needed here.
        """
        src, dst, row, used = arcs.recorded
        if len(src):
            out = self.send_many(round, src, dst, kind, secure=secure, row=row)
            self.kept.cut(values, out, None if len(used) == len(values) else used)
        return values

    def end_round(self, round: int) -> None:
        """Commit: from now on, the messages up to this round are part of the trace."""
        self._enter_round(round)
        self._writer.commit(round)

    def truth(self, node: int, x: Any, y: Any, index: Any = None) -> None:
        """Store samples of a node: inputs (b, *shape), labels (b,), rows in the data set (b,)."""
        self._truth.add(node, x, y, index)

    def pool(self, x: Any) -> None:
        """Store other records (p, *shape) of the data set, as candidates for identification."""
        self._truth.pool(x)

    def state(self, name: str, round: int, value: Any) -> None:
        """Store private vectors at the end of a round, if the recorder keeps states."""
        if self._keep_states:
            self._truth.state(name, round, value)

    def curve(self, name: str, round: int, value: float | Tensor) -> None:
        """Store a number of a round, such as the loss, if the recorder keeps curves.

        Args:
            value: The number; or those of each node (N,), a curve ``NAME_each`` beside the number.
        """
        if not self.keep_curves:
            return
        if isinstance(value, Tensor) and value.dim():
            self._truth.state(f"{name}{EACH}", round, value.double())
        else:
            self._truth.state(name, round, torch.tensor(float(value), dtype=torch.float64))

    def close(self, complete: bool = True) -> None:
        """End the recording with the current round; complete=False marks it as incomplete.

        Raises:
            LeakauditError: The disk fails, or a file that was read was truncated meanwhile; the
                recording then stays incomplete.
        """
        mapping.verify()
        if self._writer.pending:
            self.end_round(self._round)
        self._end(complete)

    @property
    def trace(self) -> Trace:
        """The recorded trace; available after `close`."""
        if not self._closed:
            raise LeakauditError("the recording is still open; close it first")
        return self._writer.trace()

    @property
    def truth_record(self) -> Truth:
        """The truth that was provided."""
        return self._truth.build()

    def _refuse_larger(self, storage: Storage) -> None:
        """Raise if a recording of as many messages as are expected exceeds its maximum size."""
        if storage.messages is not None:
            planned = estimate(
                storage.messages,
                self.kept.width,
                self.dtype,
                graph=self.graph,
                layout=self.layout,
                rounds=self.rounds,
                rows=_rows(storage),
                max_bytes=storage.max_bytes,
            )
            refuse_above(storage.max_bytes, planned)

    def _note(self, kind: str, caller: FrameType) -> None:
        """Note where the first message of a kind is sent, if the program may be known."""
        self._kinds.add(kind)
        place = callers.of_frame(caller) if self._vocabulary is not None else None
        if place is not None:
            self._truth.sent(kind, place)

    def _vector(self, value: Any) -> Tensor:
        """Return the recorded columns of a vector, which may be complete or already cut."""
        vector = tensor(value, "value")
        lengths = (self.kept.width, self.layout.size)
        if vector.dim() != 1 or len(vector) not in lengths or vector.is_complex():
            expected = " or ".join(str(n) for n in dict.fromkeys(lengths))
            raise LeakauditError(
                f"value: expected a vector of {expected} real numbers, "
                f"got {vector.dtype} of shape {tuple(vector.shape)}"
            )
        if len(vector) != self.layout.size:
            return vector
        if self.kept.is_plain:
            return self.kept.project(vector[None])[0]
        return self.kept.cut(vector[None])[0]

    def _append(
        self, round: int, src: Integers, dst: Integers, kind: str, secure: bool, row: Integers
    ) -> Tensor:
        self._enter_round(round)
        if self._vocabulary is not None:
            self._vocabulary.check(round, src, dst, kind)
        closed = secure or kind in self._secure_kinds
        return self._writer.append(round, src, dst, kind, row, closed)

    def _enter_round(self, round: int) -> None:
        """Check the round number, and commit the previous round."""
        if self._closed:
            raise LeakauditError("the recording is closed")
        last = LAST_ROUND if self.rounds is None else self.rounds
        if not hasattr(round, "__index__") or not 0 <= round <= last:
            raise LeakauditError(f"round {round}: expected a whole number from 0 to {last}")
        if round < self._round:
            raise LeakauditError(
                f"round {round} comes after round {self._round}; send messages in order of rounds "
                "(asynchronous runs: number the ticks)"
            )
        if round > self._round and self._writer.pending:
            self._writer.commit(self._round)
        self._round = int(round)

    def _end(self, complete: bool) -> None:
        """Finish all files; an incomplete recording without messages leaves none."""
        if self._closed or not (complete or self._writer.started):
            self._closed = True
            return
        self._writer.begin()
        self._closed = True
        if not complete:
            self._writer.finish(None)
        elif self.rounds is not None and self._round >= self.rounds - 1:
            # A loop may count its rounds from 0 or from 1, so the last is `rounds - 1` or `rounds`.
            self._writer.finish(self.rounds)
        else:
            self._writer.finish(self._round)


def _described(task: TaskSpec | Task, layout: Layout | None) -> tuple[TaskSpec, Layout]:
    if not isinstance(task, TaskSpec):
        return task.spec, layout or task.layout
    if layout is None:
        layout = Task.build(task).layout
    return task, layout


def _with_sha256(task: TaskSpec) -> TaskSpec:
    source = build_task.program_file(task)
    args = {**task.args, "sha256": build_task.digest(source)}
    return replace(task, model=source.name, beside=str(source.absolute().parent), args=args)


def _copy_program(task: TaskSpec, path: Path) -> None:
    source = build_task.program_file(task)
    copy = path.absolute().parent / source.name
    if not copy.exists():
        with replacing(copy) as file:
            file.write(source.read_bytes())
    elif build_task.digest(copy) != task.args["sha256"]:
        raise LeakauditError(
            f"{copy} is another program than {source}; rename one of them, "
            "or record into another folder"
        )


def _storable(value: Tensor, what: str) -> Tensor:
    """Return a tensor as a trace file can hold it, which has no complex numbers, nor uint64."""
    names = [numbers.name for numbers in STORAGES.values()]
    if value.dtype not in [getattr(torch, name) for name in names]:
        raise LeakauditError(
            f"{what}: a trace does not store {value.dtype}; convert it to {', '.join(names)}"
        )
    return value.cpu().contiguous()


def _followed(path: Path) -> Path:
    """Return the target of a symbolic link, so that the recording does not replace the link."""
    return files.resolved(path) if path.is_symlink() else path


def _is_folder(path: str | os.PathLike[str] | None) -> bool:
    return path is not None and (os.fspath(path).endswith("/") or Path(path).is_dir())


def _rows(storage: Storage) -> int | None:
    return storage.messages if storage.rows is None else storage.rows


def _kept(
    task: TaskSpec | Task, layout: Layout, chosen: str | Sequence[str] | StoredColumns
) -> StoredColumns:
    if chosen == layers.ALL:
        return StoredColumns(layout.size, ((0, layout.size),))
    if isinstance(chosen, StoredColumns):
        if chosen.size != layout.size:
            raise LeakauditError(
                f"layers: expected vectors of {layout.size} numbers, got {chosen.size}"
            )
        return chosen
    if isinstance(task, Task):
        return layers.kept(chosen, layout, task.first_linear, task.last_linear)
    return layers.kept(chosen, layout)


def _check(dtype: torch.dtype, kept: StoredColumns, storage: Storage, rounds: int | None) -> None:
    if str(dtype).removeprefix("torch.") not in FLOATS:
        raise LeakauditError(f"dtype: expected {', '.join(FLOATS)}, got {dtype}")
    if kept.seed is not None and dtype.itemsize < torch.float32.itemsize:
        raise LeakauditError(
            f"layers: a sketch of messages in {str(dtype).removeprefix('torch.')} verifies "
            "nothing, because their rounding is too coarse; record without it"
        )
    sizes = {"rounds": rounds, "messages": storage.messages, "rows": storage.rows}
    for name, size in sizes.items():
        if size is not None and size < 0:
            raise LeakauditError(f"{name}: expected a number >= 0, got {size}")


def _provenance(
    given: Mapping[str, Json] | None, rounds: int | None, check: bool
) -> dict[str, Json]:
    """Return the provenance of the trace.

    A gate relies on `created`, `checked`, `planned` and the recording's number, so a recorder that
    checks writes them itself.
    """
    created = datetime.now(UTC).isoformat(timespec="seconds")
    made = {"leakaudit": VERSION, "torch": torch.__version__, "created": created}
    said = dict(given or {})
    if check:
        said.pop("planned", None)
        said.pop(RECORDING, None)
        said.pop(registry.TEXT, None)
        said |= {"created": created, "checked": True}
        if rounds is not None:
            said["planned"] = rounds
    return {**made, **said}


def _samples(params: Mapping[str, Json]) -> int:
    samples = params.get("samples")
    return samples if isinstance(samples, int) else 0


def _truth_path(path: Path | None, truth: bool | str | os.PathLike[str]) -> Path | None:
    if not isinstance(truth, bool):
        return Path(truth)
    if truth and path is not None:
        return trace_file.truth_path(path)
    return None
