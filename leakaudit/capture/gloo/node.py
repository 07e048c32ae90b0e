"""The nodes of one process of a run: their data, and the recorder that sends their messages.

The inputs of other nodes, and all that is computed from them, are NaN.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, cast

import torch
from torch import Tensor

from leakaudit.capture.gloo.board import DONE, WAITING, WORKING, ProcessBoard
from leakaudit.capture.gloo.faults import Fault
from leakaudit.capture.gloo.inbox import Inbox
from leakaudit.capture.gloo.setup import Setup
from leakaudit.capture.tap.log.writing import Log
from leakaudit.core.errors import LeakauditError
from leakaudit.tasks.task import Problem, Task
from leakaudit.traces.arcs import Arcs
from leakaudit.traces.recorder import Recorder

TOGETHER = 1000  # messages per event in the log: a choice that keeps lines short


class _Transport(Protocol):
    """The transport of packets: gloo between processes, direct delivery between threads."""

    inbox: Inbox  # packets received from the others

    def post(self, peer: int, number: int, rows: Tensor) -> None:
        """Send rows (k, d); they are dropped if the peer has ended."""

    def flush(self) -> None:
        """Wait until everything has been sent."""


@dataclass(frozen=True, eq=False)
class _LocalTask(Task):
    """A task that computes gradients only for nodes with inputs in this process; others are NaN."""

    def gradients(
        self,
        thetas: Tensor,
        x: Tensor,
        y: Tensor,
        chunk: int | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        here = x.reshape(len(x), -1)[:, 0].isfinite()
        if bool(here.all()):
            return super().gradients(thetas, x, y, chunk, out)
        if out is None:
            out = torch.empty_like(thetas, memory_format=torch.contiguous_format)
        out[~here] = torch.nan
        if bool(here.any()):
            out[here] = super().gradients(thetas[here], x[here], y[here], chunk)
        return out


def _problem(task: Task, nodes: int, here: Sequence[int], x: Tensor, y: Tensor) -> Problem:
    """Return the problem of all nodes, with inputs (k, b, *shape) and labels (k, b) of some."""
    rows = torch.tensor(here)
    all_x = x.new_full((nodes, *x.shape[1:]), torch.nan)
    all_y = y.new_zeros((nodes, *y.shape[1:]))
    all_x[rows] = x
    all_y[rows] = y
    mask = torch.zeros(nodes, dtype=torch.bool)
    mask[rows] = True
    return Problem(task, all_x, all_y, mask)


def task_of(setup: Setup) -> Task:
    """Build the task of a run."""
    dtype = getattr(torch, setup.scenario.dtype)
    task = _LocalTask.build(setup.spec, dtype=dtype, trusted=setup.trusted)
    return task.summed(setup.scenario.summed)


def serve(
    setup: Setup, rank: int, task: Task, mail: _Transport, log: Log, stop: Callable[[], None]
) -> int:
    """Run the victim for the nodes of one process that is connected to the others.

    Returns the number of exchanges in which it has taken part.
    """
    board = ProcessBoard(setup.folder / "board", setup.options.procs)
    board.tell(rank, WORKING)
    victim, _ = setup.scenario.parts()
    x, y = setup.data(rank)
    problem = _problem(task, setup.graph.nodes, setup.here(rank), x, y)
    recorder = _NodeRecorder(setup, rank, mail, log, board, stop)
    try:
        victim.run(
            problem,
            setup.graph,
            setup.scenario.rounds,
            cast(Recorder, recorder),
            setup.generator(),
            setup.wires,
        )
    except _MessageTimeout as why:
        log.write("silence", None, why=str(why))
    board.tell(rank, DONE)
    return recorder.reached


# By the other process: the arcs, and their rows, each row once.
Parts = dict[int, tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class _Route:
    out: Parts  # arcs and rows that it sends, by the other process
    into: Parts  # arcs and rows that it receives, by the other process
    foreign: Tensor  # rows that are sent only on arcs which start in other processes
    wanted: Tensor  # those of them that end in this process
    told: Tensor  # arcs that start in this process and are recorded

    @classmethod
    def of(cls, arcs: Arcs, place: Sequence[int], rank: int) -> _Route:
        where = torch.tensor(place)
        start = where[arcs.src]
        end = where[arcs.dst]
        from_here = start == rank
        to_here = end == rank
        own = arcs.row[from_here]
        foreign = arcs.row[~from_here].unique()
        foreign = foreign[~torch.isin(foreign, own)]
        out = {}
        for peer in end[from_here & ~to_here].unique().tolist():
            out[peer] = _part(arcs, from_here & (end == peer))
        into = {}
        for peer in start[~from_here & to_here].unique().tolist():
            into[peer] = _part(arcs, (start == peer) & to_here)
        wanted = foreign[torch.isin(foreign, arcs.row[to_here])]
        told = (from_here & arcs.kept).nonzero().flatten()
        return cls(out, into, foreign, wanted, told)


def _part(arcs: Arcs, which: Tensor) -> tuple[Tensor, Tensor]:
    return which.nonzero().flatten(), arcs.row[which].unique()


class _MessageTimeout(Exception):
    """A message did not arrive, and the protocol has no substitute for it."""


class _NodeRecorder:
    """The `Recorder` of a victim of which only some nodes run in this process.

    Attributes:
        reached: Number of exchanges in which this process has taken part.
    """

    partial = True
    keep_curves = False

    def __init__(
        self,
        setup: Setup,
        rank: int,
        mail: _Transport,
        log: Log,
        board: ProcessBoard,
        stop: Callable[[], None],
    ) -> None:
        self.setup = setup
        self.rank = rank
        self.mail = mail
        self.log = log
        self.board = board
        self.graph = setup.graph
        self.public = setup.public
        self.kept = setup.kept
        self.columns = setup.kept.columns
        self.here = setup.here(rank)
        self.reached = 0
        self._stop = stop
        self._own = torch.tensor(self.here)
        self._happened = set[Fault]()

    def exchange(
        self,
        round: int,
        kind: str,
        values: Tensor,
        arcs: Arcs,
        secure: bool = False,
        instead: Callable[[], Tensor] | None = None,
    ) -> Tensor:
        """Send the rows of this process's nodes, and return them with the received rows.

        Args:
            values: (rows, d) The payloads; rows of other processes are ignored, and return as NaN.
            instead: Returns (rows, d), to replace rows that did not arrive.
        """
        self.reached += 1
        route = _Route.of(arcs, self.setup.place, self.rank)
        self.board.tell(self.rank, WORKING)
        lost = self._faults(round, route, arcs)
        sent = route.told[~torch.isin(route.told, lost)]
        self._tell(round, kind, values, arcs, sent, secure)
        for peer, (which, rows) in route.out.items():
            if not bool(torch.isin(which, lost).any()):
                self.mail.post(peer, self.reached, values[rows].contiguous())
        received = values.clone()
        received[route.foreign] = torch.nan
        came = torch.zeros(len(values), dtype=torch.bool)
        for peer, (which, rows) in route.into.items():
            silent = functools.partial(self._silent, peer)
            found, why = self.mail.inbox.take(peer, self.reached, silent, self._waiting)
            if found is not None:
                received[rows] = found
                came[rows] = True
                continue
            self.log.write(
                "missed",
                None,
                peer,
                round=round,
                kind=kind,
                why=why,
                src=arcs.src[which].tolist(),
                dst=arcs.dst[which].tolist(),
            )
        self.board.tell(self.rank, WORKING)
        missing = route.wanted[~came[route.wanted]]
        if len(missing):
            if instead is None:
                raise _MessageTimeout(f"message {kind!r} of round {round} did not arrive")
            received[missing] = instead()[missing]
        return received

    def state(self, name: str, round: int, value: Tensor) -> None:
        if self.setup.scenario.states:
            self.log.write("state", value[self._own], round=round, kind=name)

    def curve(self, name: str, round: int, value: float | Tensor) -> None:
        """Record nothing: a curve needs all nodes."""

    def end_round(self, round: int) -> None:
        """Record that a round is complete, and stop if a fault requires it."""
        self.log.write("round", None, round=round)
        self.board.tell(self.rank, WORKING, round)
        for fault in self.setup.options.faults:
            if fault.kind == "stop" and fault.node in self.here and fault.round == round:
                self._happens(fault)
                self.mail.flush()
                self._stop()

    def send(self, *_: Any, **__: Any) -> NoReturn:
        """Reject messages that do not go through `exchange`."""
        raise LeakauditError("this victim does not run as separate processes; use --engine inline")

    send_many = send

    def _tell(
        self, round: int, kind: str, values: Tensor, arcs: Arcs, which: Tensor, secure: bool
    ) -> None:
        if not len(which):
            return
        for some in which.split(TOGETHER):
            used, at = arcs.row[some].unique(return_inverse=True)
            self.log.write(
                "send",
                self.kept.cut(values, rows=used),
                None,
                self.reached,
                round=round,
                kind=kind,
                src=arcs.src[some].tolist(),
                dst=arcs.dst[some].tolist(),
                at=at.tolist(),
                secure=secure,
            )

    def _faults(self, round: int, route: _Route, arcs: Arcs) -> Tensor:
        """Wait if a fault requires it, and return the arcs with lost messages."""
        lost = [torch.empty(0, dtype=torch.int64)]
        for fault in self.setup.options.faults:
            if fault.round != round or fault.node not in self.here or not route.out:
                continue
            if fault.kind == "late" and self._happens(fault):
                time.sleep(fault.seconds)
            if fault.kind == "drop":
                hit = ((arcs.src == fault.node) & (arcs.dst == fault.to)).nonzero().flatten()
                if len(hit):
                    self._happens(fault)
                    lost.append(hit)
        return torch.cat(lost)

    def _happens(self, fault: Fault) -> bool:
        if fault in self._happened:
            return False
        self._happened.add(fault)
        self.log.write("fault", what=str(fault))
        return True

    def _silent(self, peer: int) -> bool:
        return self.board.silent(peer, self.setup.options.timeout)

    def _waiting(self) -> None:
        self.board.tell(self.rank, WAITING)
