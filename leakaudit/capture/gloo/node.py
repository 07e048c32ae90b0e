"""The recorder of one process, which sends messages over gloo and writes them to a tap's log."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from leakaudit.capture.gloo.board import WAITING, WORKING, ProcessBoard
from leakaudit.capture.gloo.faults import Fault
from leakaudit.capture.gloo.inbox import Inbox
from leakaudit.capture.gloo.route import ExchangeRoute
from leakaudit.capture.gloo.setup import Setup
from leakaudit.capture.tap.log.writing import Log
from leakaudit.core.errors import LeakauditError
from leakaudit.traces.arcs import Arcs

TOGETHER = 1000  # messages per event in the log: a choice that keeps lines short
ROUTES = 64  # routes to remember: a choice; victims repeat a few exchanges


class Transport(Protocol):
    """The transport of packets: gloo between processes, direct delivery between threads."""

    inbox: Inbox  # packets received from the others

    def post(self, peer: int, number: int, rows: Tensor) -> None:
        """Send rows (k, d); they are dropped if the peer has ended."""

    def flush(self) -> None:
        """Wait until everything has been sent."""


class MessageTimeout(Exception):
    """A message did not arrive, and the protocol has no substitute for it."""


class NodeRecorder:
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
        mail: Transport,
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
        # By identity of the arcs; the route keeps a reference to them, so that the id stays valid.
        self._routes: dict[int, tuple[Arcs, ExchangeRoute]] = {}

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
        route = self._route(arcs)
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
                raise MessageTimeout(f"message {kind!r} of round {round} did not arrive")
            received[missing] = instead()[missing]
        return received

    def state(self, name: str, round: int, value: Tensor) -> None:
        """Log the private vectors (N, ...) of this process's nodes, if the run records states."""
        if self.setup.scenario.states:
            self.log.write("state", value[self._own], round=round, kind=name)

    def curve(self, name: str, round: int, value: float) -> None:
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

    def _route(self, arcs: Arcs) -> ExchangeRoute:
        known = self._routes.get(id(arcs))
        if known is None or known[0] is not arcs:
            if len(self._routes) > ROUTES:
                self._routes.clear()
            known = (arcs, ExchangeRoute.of(arcs, self.setup.place, self.rank))
            self._routes[id(arcs)] = known
        return known[1]

    def _tell(
        self, round: int, kind: str, values: Tensor, arcs: Arcs, which: Tensor, secure: bool
    ) -> None:
        """Log the messages; `at` gives the payload of each message."""
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

    def _faults(self, round: int, route: ExchangeRoute, arcs: Arcs) -> Tensor:
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
