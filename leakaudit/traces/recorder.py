"""Write a trace while a training runs, and its truth beside it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

import leakaudit
from leakaudit._util.vocabulary import Vocabulary, finite
from leakaudit.errors import LeakauditError
from leakaudit.trace import RECORDING, Graph, Json, Layout, TaskSpec, Trace, Truth
from leakaudit.traces import trace_file
from leakaudit.traces._storage import sidecar
from leakaudit.traces._storage.arrays import integers, tensor
from leakaudit.traces._storage.recording_file import Reel
from leakaudit.traces._storage.sizes import estimate, human, plan_size, refuse_above
from leakaudit.traces._storage.truth_file import TruthKeeper
from leakaudit.traces._storage.wellformed import FLOATS

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task
    from leakaudit.traces.arcs import Arcs

__all__ = ["Recorder", "estimate", "human", "plan_size"]


class Recorder:
    """Records messages into a trace, round by round.

    A run that is killed leaves a trace up to its last whole round; one that ends with an exception does too, and
    both are marked as incomplete. What stood at `path` before is replaced with the first message.

    path: a .pt file; a folder, where it exists or the text ends with "/", takes shards; None records in memory.
    layout: of the flat model vector, the task's own by default. columns: (start, stop) of it that are recorded.
    rounds, messages, rows: what is known of the size (rows: payloads, fewer than messages where one goes to several).
    public: tensors that everybody has. secure_kinds: kinds of messages that travel encrypted.
    truth: whether, or where, the truth is written if any is given; beside the trace by default.
    private: plain values for the truth's provenance alone. keep_states, keep_curves: keep what `state`, `curve` is given.
    id: of the recording, equal in trace and truth; drawn if it is None. Runs that share an id are told apart by another number, which is
    always drawn.
    hash: write a sha256 beside each file, None does up to 4 GiB. check: whether names, wires and numbers are held against what the
    protocol and the task declare; False copies a recording as it is.
    protocol: a registered victim, whose constants are `params` and whose kinds of messages are sent, or ``own:NAME`` for a protocol
    that nobody has declared.
    Raises LeakauditError, before anything is created, where the arguments do not fit, a protocol or constant is not known, the path
    cannot be written or the recording would exceed max_bytes.
    """

    partial = False  # whether some nodes live in other processes

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        protocol: str,
        task: TaskSpec | Task,
        graph: Graph,
        params: Mapping[str, Json] | None = None,
        layout: Layout | None = None,
        rounds: int | None = None,
        messages: int | None = None,
        rows: int | None = None,
        dtype: torch.dtype = torch.float32,
        columns: tuple[int, int] | None = None,
        public: Mapping[str, Any] | None = None,
        secure_kinds: Sequence[str] = (),
        id: str | None = None,
        truth: bool | str | os.PathLike[str] = True,
        keep_states: bool = False,
        keep_curves: bool = False,
        max_bytes: float = 4e9,
        shard_bytes: int = 1 << 30,
        hash: bool | None = None,
        provenance: Mapping[str, Json] | None = None,
        private: Mapping[str, Json] | None = None,
        check: bool = True,
    ) -> None:
        self.path = None if path is None else _followed(Path(path))
        self.graph, self.dtype, self.id, self.rounds = (
            graph,
            dtype,
            id or secrets.token_hex(16),
            rounds,
        )
        self.task, self.layout = _described(task, layout)
        self.columns = columns or (0, self.layout.size)
        _check(
            dtype, self.columns, self.layout, {"rounds": rounds, "messages": messages, "rows": rows}
        )
        width = self.columns[1] - self.columns[0]
        rows = messages if rows is None else rows
        if messages is not None:
            known: dict[str, Any] = {
                "graph": graph,
                "layout": self.layout,
                "rounds": rounds,
                "rows": rows,
                "max_bytes": max_bytes,
            }
            refuse_above(max_bytes, estimate(messages, width, dtype, **known))
        self.public = {
            name: tensor(value, f"public {name}").cpu().contiguous()
            for name, value in (public or {}).items()
        }
        self._vocabulary = (
            Vocabulary(protocol, params or {}, graph, rounds, self.public) if check else None
        )
        created = {"created": datetime.now(UTC).isoformat(timespec="seconds")}
        made = {"leakaudit": leakaudit.__version__, "torch": torch.__version__, **created}
        said = dict(provenance or {})
        if check:  # what a gate relies on is the Recorder's own word; a copy keeps that of the recording it copies
            said.pop("planned", None)
            said.pop(RECORDING, None)
            said |= {**created, "checked": True, **({} if rounds is None else {"planned": rounds})}
        own = dict(private or {})
        if (
            check or truth is not False
        ):  # a copy of a trace that has no such number gets none, as its truth has none
            own[RECORDING] = said.setdefault(RECORDING, secrets.token_hex(16))
        about = (
            protocol,
            params or {},
            self.task,
            graph,
            self.layout,
            self.columns,
            0,
            (),
            self.public,
            self.id,
        )
        head = trace_file.head(Trace(*about, provenance={**made, **said}))
        folder = path is not None and (os.fspath(path).endswith("/") or Path(path).is_dir())
        self._reel = Reel(
            self.path,
            shard_bytes if folder else None,
            head,
            width,
            dtype,
            (messages, rows),
            max_bytes,
        )
        beside = (
            trace_file.truth_path(self.path) if truth is True and self.path is not None else None
        )
        self._truth_path = beside if isinstance(truth, bool) else Path(truth)
        samples = (params or {}).get("samples")
        self._keeper = TruthKeeper(
            self.task,
            graph.nodes,
            max_bytes,
            own,
            check,
            samples if isinstance(samples, int) else 0,
        )
        self.keep_curves = keep_curves
        self._keep_states, self._secure_kinds, self._hash = (
            keep_states,
            frozenset(secure_kinds),
            hash,
        )
        self._round, self._uncommitted, self._truth_written, self._closed = 0, False, False, False

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
            with suppress(LeakauditError, OSError):  # the error that is under way says more
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

        value: (c,) the recorded columns, or (d,) the whole vector; of torch, numpy or anything with DLPack or ``__array__``.
        A round number that grows commits the rounds before. Raises LeakauditError for a node or a wire that is not there, a kind that
        the protocol does not send, a round that lies before the last, a vector of another length, or one with NaN or infinity.
        """
        vector, sender, to = (
            self._vector(value),
            integers(src, "src", self.graph.nodes),
            integers(dst, "dst", self.graph.nodes),
        )
        if len(sender) != 1:
            raise LeakauditError(
                f"send: expected one src, got {len(sender)}; send_many takes several"
            )
        if not len(to):
            return
        if self._vocabulary is not None:
            finite(vector, f"round {round}: message {kind!r} of node {sender[0]}")
        self._append(round, sender, to, kind, secure, np.zeros(len(to), np.int64))[0].copy_(vector)

    def send_many(
        self, round: int, src: Any, dst: Any, kind: str, secure: bool = False, row: Any = None
    ) -> Tensor:
        """Record k messages src (k,) -> dst (k,) and return their payloads (k, c), to be written until the round ends.

        row: (k,) which of the payloads each message carries, 0 to max(row), where some are sent to several nodes.
        """
        src, dst = integers(src, "src", self.graph.nodes), integers(dst, "dst", self.graph.nodes)
        rows = np.arange(len(src)) if row is None else integers(row, "row", max(1, len(src)))
        if not len(src) == len(dst) == len(rows):
            raise LeakauditError(
                f"send_many: expected as many src as dst and row, got {len(src)}, {len(dst)} and {len(rows)}"
            )
        return self._append(round, src, dst, kind, secure, rows)

    def exchange(
        self,
        round: int,
        kind: str,
        values: Tensor,
        arcs: Arcs,
        secure: bool = False,
        instead: Callable[[], Tensor] | None = None,
    ) -> Tensor:
        """Let messages travel that carry rows of values (rows, d), and return what the receivers hold: here the values themselves.

        An engine of several processes fills in what arrived (docs/engines.md). instead: what stands for a row that did not arrive.
        """
        src, dst, row, used = arcs.recorded
        if len(src):
            columns = slice(*self.columns)
            sent = (
                values[:, columns]
                if len(used) == len(values)
                else values[used.to(values.device), columns]
            )
            self.send_many(round, src, dst, kind, secure=secure, row=row).copy_(sent)
        return values

    def end_round(self, round: int) -> None:
        """Commit: from here on the messages up to this round are in the trace, whatever happens to the program."""
        self._enter_round(round)
        self._reel.commit(round)
        self._uncommitted = False

    def truth(self, node: int, x: Any, y: Any, index: Any = None) -> None:
        """Keep a node's samples: x (b, *shape) or one (*shape), y (b,), index (b,) rows in the data set."""
        self._keeper.add(node, x, y, index)

    def pool(self, x: Any) -> None:
        """Keep the data set's other records (p, *shape), among which a true one must be told."""
        self._keeper.pool(x)

    def state(self, name: str, round: int, value: Any) -> None:
        """Keep private vectors of a round, e.g. (N, d), where the recorder was asked to keep states."""
        if self._keep_states:
            self._keeper.state(name, round, value)

    def curve(self, name: str, round: int, value: float) -> None:
        """Keep a number of a round, e.g. the loss, where the recorder was asked to keep curves."""
        if self.keep_curves:
            self._keeper.state(name, round, torch.tensor(value, dtype=torch.float64))

    def close(self, complete: bool = True) -> None:
        """End the recording with the round that is under way; complete=False marks it as cut short."""
        if self._uncommitted:
            self.end_round(self._round)
        self._end(complete)

    @property
    def trace(self) -> Trace:
        """What was recorded; after `close`."""
        if not self._closed:
            raise LeakauditError("the recording is still open; close it first")
        return self._reel.trace()

    @property
    def truth_record(self) -> Truth:
        """The truth that was given."""
        return self._keeper.build(self.id)

    def _vector(self, value: Any) -> Tensor:
        vector, (start, stop) = tensor(value, "value"), self.columns
        if (
            vector.dim() != 1
            or len(vector) not in (stop - start, self.layout.size)
            or vector.is_complex()
        ):
            expected = " or ".join(str(n) for n in dict.fromkeys((stop - start, self.layout.size)))
            raise LeakauditError(
                f"value: expected a vector of {expected} real numbers, got {vector.dtype} of shape {tuple(vector.shape)}"
            )
        return vector if len(vector) == stop - start else vector[start:stop]

    def _append(self, round: int, src: Any, dst: Any, kind: str, secure: bool, row: Any) -> Tensor:
        self._enter_round(round)
        if self._vocabulary is not None:
            self._vocabulary.check(round, src, dst, kind)
        self._start_truth()
        tape = self._reel.tape(round)
        count = int(row.max()) + 1 if len(row) else 0
        closed = secure or kind in self._secure_kinds
        payload = tape.append(len(dst), count, (round, src, dst, tape.kind(kind), row, closed))
        self._uncommitted = True
        return payload

    def _enter_round(self, round: int) -> None:
        """Check the round's number, and commit the one before."""
        if self._closed:
            raise LeakauditError("the recording is closed")
        last = (1 << 31) - 1 if self.rounds is None else self.rounds
        if not hasattr(round, "__index__") or not 0 <= round <= last:
            raise LeakauditError(f"round {round}: expected a whole number from 0 to {last}")
        if round < self._round:
            raise LeakauditError(
                f"round {round} comes after round {self._round}; send in order (an asynchronous run: number its ticks)"
            )
        if round > self._round and self._uncommitted:
            self._reel.commit(self._round)
            self._uncommitted = False
        self._round = int(round)

    def _start_truth(self) -> None:
        """Write the truth that is known when recording starts, so that a killed run has it."""
        if not self._reel.started:
            self._write_truth()

    def _write_truth(self) -> None:
        if self._truth_path is not None and self._keeper.changed:
            sidecar.beside(self._truth_path).unlink(missing_ok=True)
            trace_file.save_truth(self._keeper.build(self.id), self._truth_path)
            self._keeper.changed, self._truth_written = False, True

    def _end(self, complete: bool) -> None:
        if self._closed or not (complete or self._reel.started):
            self._closed = True
            return
        self._start_truth()
        self._closed = True
        reached = self.rounds is not None and self._round >= self.rounds - 1
        self._reel.finish(
            (self.rounds if reached and self.rounds is not None else self._round)
            if complete
            else None
        )
        self._reel.seal(self._hash)
        self._write_truth()
        if self._truth_path is not None and self._truth_written and self._hash is not False:
            sidecar.write(self._truth_path)


def _described(task: TaskSpec | Task, layout: Layout | None) -> tuple[TaskSpec, Layout]:
    if not isinstance(task, TaskSpec):
        return task.spec, layout or task.layout
    if layout is None:
        from leakaudit.tasks.task import Task

        layout = Task.build(task).layout
    return task, layout


def _followed(path: Path) -> Path:
    """Return the file that a link points to, so that recording does not replace the link."""
    return path.resolve() if path.is_symlink() else path


def _check(
    dtype: torch.dtype, columns: tuple[int, int], layout: Layout, sizes: Mapping[str, int | None]
) -> None:
    if dtype not in FLOATS:
        raise LeakauditError(
            f"dtype: expected {', '.join(str(d).removeprefix('torch.') for d in FLOATS)}, got {dtype}"
        )
    if len(columns) != 2 or not 0 <= columns[0] < columns[1] <= layout.size:
        raise LeakauditError(
            f"columns: expected (start, stop) within a model of {layout.size} parameters, got {columns}"
        )
    for name, size in sizes.items():
        if size is not None and size < 0:
            raise LeakauditError(f"{name}: expected a number from 0 on, got {size}")
