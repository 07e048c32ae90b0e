"""Conversion of the logs of all processes to one trace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import groupby
from pathlib import Path

import msgspec
import numpy as np
import torch

from leakaudit._util.revision import revision
from leakaudit._util.untrusted import npz
from leakaudit.capture.tap.guessing import confirm, origins
from leakaudit.capture.tap.log.layers import module, shortened
from leakaudit.capture.tap.log.reading import RankLog, read_logs
from leakaudit.capture.tap.log.writing import UNRANKED
from leakaudit.capture.tap.messages import answers, states, wires
from leakaudit.capture.tap.messages.arranged import ArrangedLog, ProtocolMessage
from leakaudit.capture.tap.messages.description import MessageDescription
from leakaudit.capture.tap.messages.wires import CHOSEN
from leakaudit.core.errors import LeakauditError, NotUnderstood
from leakaudit.core.payload import StoredColumns
from leakaudit.core.progress import step
from leakaudit.core.trace import Json, Trace
from leakaudit.traces import framework_epsilon, gaps, trace_file
from leakaudit.traces.recorder import Recorder, RecorderOptions, Storage

Truth = tuple[np.ndarray, np.ndarray, np.ndarray]  # x (s, *shape), y (s,), node (s,)
# Names in the provenance of a trace that the tap writes.
PROVENANCE = frozenset(("tap", "missing", "ended", "command", "evidence", "program"))
IMPORTED = "imported"  # in the first line of a log: an import wrote it, not the program
ARRAYS = ("x", "y", "node")
MOST = 4  # runs of columns that become traces; of more, only the longest one: a choice
NAMELESS = re.compile(r"[^\w.-]+")  # characters of a layer's name that a file's name does not have


class _TapFacts(msgspec.Struct, frozen=True):
    processes: int  # number of tapped processes
    exit: int  # exit code of the program
    share: float  # fraction of the processes' time that the tap used
    seconds: float  # time that the tap used
    left_out: dict[str, int]  # reason -> number of messages without payload
    notes: tuple[str, ...]  # remarks for the reader of the trace


def planned(
    folder: Path, described: MessageDescription, *, declared: bool
) -> tuple[ArrangedLog, list[RankLog]]:
    """Arrange the messages of a log as described, with the evidence for the description.

    Also returns the logs to which they belong. A description that was `declared`, not inferred from
    this log, may contradict it, which is an error.
    """
    everything = states.only_trained(read_logs(folder), described.task.layout.names)
    plan = wires.plan(described, everything)
    logs = wires.latest(everything)
    wrong = confirm.contradictions(described, logs) if declared else []
    if wrong:
        raise LeakauditError(f"the description is wrong: {'; '.join(wrong)}")
    found = origins.origins(described, logs, plan.description.params, inferred=not declared)
    notes = (*plan.notes, *confirm.verified(described, logs), *origins.remark(found))
    return replace(plan, notes=notes, evidence=found), logs


def write(
    plan: ArrangedLog,
    logs: Sequence[RankLog],
    path: Path,
    code: int = 0,
    truth: Truth | None = None,
    max_bytes: float = 4e9,
    command: str = "",
    rounds: int | None = None,
) -> Trace:
    """Write the trace, and its truth if there is one; after an error, no files are left behind.

    rounds: how many were planned; None if that is not known.
    """
    # The trace is marked as incomplete if a process did not end normally, a round is incomplete, or
    # the disk failed while a log was written.
    description = plan.description
    if not plan.sent:
        reason = _listed(plan.left_out) or "the program ended too early"
        chosen = plan.left_out.keys() <= set(CHOSEN)
        kind = LeakauditError if chosen else NotUnderstood
        raise kind(f"no message payload was kept ({reason})")
    provenance = about(plan, logs, code)
    if command:
        provenance["command"] = command
    if plan.evidence:
        provenance["evidence"] = {
            one.subject: [one.origin.name, one.detail] for one in plan.evidence
        }
    spent = answers.spent(logs)
    if spent:
        provenance[framework_epsilon.KEY] = msgspec.to_builtins(spent)
    state = revision(Path())  # of the folder in which the program was started
    if state is not None:
        provenance["program"] = {"commit": state.commit, "changed": state.changed}
    complete = code == 0 and not plan.missing
    complete = complete and all(log.closed and not log.trouble for log in logs)
    dtype = _widest(plan.sent)
    groups = _grouped(plan.sent)
    public = {}
    if plan.start is not None:
        public["w0"] = plan.start.to(dtype)
    constants = description.constants
    # A protocol file states its own constants, and an undeclared protocol has none.
    if description.undeclared or hasattr(description.victim, "definition"):
        constants = dict(description.params)
    messages = sum(len(sent.dst) for sent in plan.sent)
    storage = Storage(path, messages=messages, rows=len(groups), max_bytes=max_bytes)
    columns = StoredColumns(description.task.layout.size, (plan.columns,))
    options = RecorderOptions(layers=columns, dtype=dtype, provenance=provenance)
    fresh = not path.exists()
    try:
        with Recorder(
            storage,
            protocol=description.protocol,
            task=description.task,
            graph=plan.graph,
            params=constants,
            rounds=rounds,
            public=public,
            options=options,
        ) as recorder:
            if truth is not None:
                _record_truth(recorder, truth)
            for group in groups:
                _record_group(recorder, group, plan, dtype)
                step("writing the trace", group[0].round, plan.rounds)
            recorder.close(complete=complete)
        return recorder.trace
    except BaseException:
        if fresh:
            _remove(path)
        raise


def _widest(sent: Iterable[ProtocolMessage]) -> torch.dtype:
    """Return the narrowest number format that holds all messages exactly."""
    # For messages in float16 and in bfloat16, this is float32: neither holds the other's numbers.
    return reduce(torch.promote_types, {one.message.dtype for one in sent})


def _grouped(sent: Iterable[ProtocolMessage]) -> list[list[ProtocolMessage]]:
    """Group messages of one sender, round and kind with equal bytes, which are stored once."""

    def key(one: ProtocolMessage) -> tuple[int, int, str, tuple[str, ...]]:
        return one.round, one.src, one.kind, tuple(map(str, one.message.place))

    return [list(group) for _, group in groupby(sorted(sent, key=key), key=key)]


def _record_truth(recorder: Recorder, truth: Truth) -> None:
    x, y, node = truth
    for owner in np.unique(node).tolist():
        mine = node == owner
        recorder.truth(owner, x[mine], y[mine], index=np.flatnonzero(mine))


def _record_group(
    recorder: Recorder, group: list[ProtocolMessage], plan: ArrangedLog, dtype: torch.dtype
) -> None:
    first = group[0]
    value = first.message.value.to(dtype)
    if first.scale != 1:
        value = value * first.scale
    receivers = [node for sent in group for node in sent.dst]
    recorder.send(first.round, first.src, receivers, first.kind, value)


def _remove(path: Path) -> None:
    for file in trace_file.belonging(path):
        file.unlink(missing_ok=True)


def about(plan: ArrangedLog, logs: Sequence[RankLog], code: int) -> dict[str, Json]:
    """Return a summary of the run, in the form that `leakaudit.traces.gaps` reads."""
    logs = [log for log in logs if log.rank != UNRANKED]
    seconds = sum(log.seconds for log in logs)
    spent = sum(log.spent for log in logs)
    share = 0.0
    if spent:
        share = round(spent / max(seconds, spent), 4)
    ranks = {log.rank for log in logs}
    last = dict.fromkeys(ranks, 0)
    for sent in plan.sent:
        rank = sent.message.log.rank
        last[rank] = max(last[rank], sent.round)
    tap = _TapFacts(
        processes=len(ranks),
        exit=code,
        share=share,
        seconds=round(spent, 3),
        left_out=dict(plan.left_out),
        notes=(*plan.notes, *_contained(plan)),
    )
    cut = {log.rank for log in logs if not log.closed}
    gone = {sent.src for sent in plan.sent if sent.message.log.rank in cut}
    missing: list[Json] = []
    for wire in plan.missing:
        missing.append({**wire, "why": "closed" if wire["src"] in gone else ""})
    why = f"its process did not end normally; the program's exit code was {code}"
    if any(log.about.get(IMPORTED) is True for log in logs):
        why = "the file of its messages ends within a message"
    ended: list[Json] = []
    for rank in sorted(cut):
        ended.append({"nodes": [rank], "round": last[rank], "why": why})
    return {"tap": msgspec.to_builtins(tap), "missing": missing, "ended": ended}


def _contained(plan: ArrangedLog) -> Iterator[str]:
    whole = plan.description.task.layout.size
    if plan.sent and plan.columns != (0, whole):
        yield f"the trace contains {shortened(plan.names(plan.columns))}"


def others(plan: ArrangedLog, path: Path) -> Iterator[tuple[ArrangedLog, Path]]:
    """Yield the further traces to write beside that with the longest run of columns."""
    # If the user chose layers that lie apart, such as the first and the last one, each run of
    # columns becomes a trace of its own, whose file is called after its first layer.
    if not plan.sent or not plan.chosen or len(plan.runs) > MOST:
        return
    for run in plan.runs:
        if run != plan.columns:
            layer = NAMELESS.sub("_", module(plan.names(run)[0]))
            yield replace(plan, run=run), path.with_name(f"{path.stem}-{layer}{path.suffix}")


def facts(trace: Trace) -> _TapFacts:
    """Return the facts about a tapped run in the provenance of its trace."""
    return msgspec.convert(trace.provenance["tap"], _TapFacts)


def warnings(trace: Trace) -> list[str]:
    """Return warnings for the user of a trace that a tap made."""
    tap = facts(trace)
    found = list(gaps.sentences(trace))
    if tap.left_out:
        found.append(f"payloads not kept: {_listed(tap.left_out)}")
    found.extend(tap.notes)
    return found


def read_truth(path: Path, shape: Iterable[int], nodes: int) -> Truth:
    """Read the records of all nodes from an .npz file: x (s, *shape), y (s,) and node (s,).

    The nodes may be left out if there is only one.
    """
    try:
        with npz.Npz(path) as file:
            held = {name: file[name] for name in ARRAYS if name in file.files}
    except (OSError, ValueError) as error:
        raise LeakauditError(f"cannot read {path} as .npz: {error}") from None
    if nodes == 1 and "y" in held:
        held.setdefault("node", np.zeros(held["y"].shape, dtype=np.int64))
    missing = [name for name in ARRAYS if name not in held]
    if missing:
        raise LeakauditError(
            f"{path} lacks {', '.join(missing)}; expected x (s, *shape), y (s,) and node (s,)"
        )
    x, y, node = (held[name] for name in ARRAYS)
    shape = tuple(shape)
    whole = node.ndim == 1 and node.dtype.kind in "iu"
    # Shapes are compared as slices, because an array of shape () has no length.
    equal = x.shape[:1] == y.shape[:1] == node.shape
    if x.shape[1:] != shape or not equal or not whole:
        expected = f"x (s, {', '.join(map(str, shape))}), y (s,), node (s,)"
        raise LeakauditError(
            f"{path}: expected {expected}, got {x.shape}, {y.shape}, {node.shape} {node.dtype}; "
            "save one label and one integer (its node) for each of the s records"
        )
    if len(node) and not 0 <= node.min() <= node.max() < nodes:
        raise LeakauditError(
            f"{path}: expected nodes from 0 to {nodes - 1}, got {node.min()} to {node.max()}"
        )
    return x, y, node


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} omitted because of {why}" for why, count in counts.items())
