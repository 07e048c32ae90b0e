"""The recorder of one process: what its nodes send goes over gloo and into the log of a tap, and what arrives is what they use."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from leakaudit.capture.gloo.board import WAITING, WORKING, Board
from leakaudit.capture.gloo.faults import Fault
from leakaudit.capture.gloo.inbox import Inbox
from leakaudit.capture.gloo.route import Route
from leakaudit.capture.gloo.setup import Setup
from leakaudit.capture.tap.log import Log
from leakaudit.errors import LeakauditError
from leakaudit.traces.arcs import Arcs

TOGETHER = 1000  # messages of one event in the log


class Post(Protocol):
    """How packets come and go: by gloo between processes, by hand between threads."""

    inbox: Inbox

    def post(self, peer: int, number: int, rows: Tensor) -> None:
        """Send rows (k, d) of exchange `number`; whoever is gone does not get them."""

    def flush(self) -> None:
        """Wait until everything is sent."""


class Silence(Exception):
    """A message did not arrive, and the protocol has nothing to put in its place."""


class NodeRecorder:
    """What a victim sees of a `Recorder`, where only some nodes live in this process."""

    partial, keep_curves = True, False

    def __init__(
        self, setup: Setup, rank: int, mail: Post, log: Log, board: Board, stop: Callable[[], None]
    ) -> None:
        """Begin before the first exchange; stop: ends this process without a word."""
        self._stop = stop
        self.setup, self.rank, self.mail, self.log, self.board = setup, rank, mail, log, board
        self.graph, self.public, self.columns, self.here = (
            setup.graph,
            setup.public,
            setup.columns,
            setup.here(rank),
        )
        self._own, self.reached, self._happened = torch.tensor(self.here), 0, set[Fault]()
        self._routes: dict[int, tuple[Arcs, Route]] = {}

    def exchange(
        self,
        round: int,
        kind: str,
        values: Tensor,
        arcs: Arcs,
        secure: bool = False,
        instead: Callable[[], Tensor] | None = None,
    ) -> Tensor:
        """Send the rows of values (rows, d) whose senders live here, and return them with those that arrived; others are NaN.

        A row that should have arrived and did not is taken from `instead`. Raises Silence where there is no such thing.
        """
        self.reached += 1
        route = self._route(arcs)
        self.board.tell(self.rank, WORKING)
        lost = self._faults(round, route, arcs)
        self._tell(round, kind, values, arcs, route.told[~torch.isin(route.told, lost)], secure)
        for peer, (which, rows) in route.out.items():
            if not bool(torch.isin(which, lost).any()):
                self.mail.post(peer, self.reached, values[rows].contiguous())
        held = values.clone()
        held[route.foreign] = torch.nan
        came = torch.zeros(len(values), dtype=torch.bool)
        for peer, (which, rows) in route.into.items():
            silent = functools.partial(self._silent, peer)
            found, why = self.mail.inbox.take(peer, self.reached, silent, self._waiting)
            if found is None:
                ends: dict[str, Any] = {
                    "src": arcs.src[which].tolist(),
                    "dst": arcs.dst[which].tolist(),
                }
                self.log.write("missed", None, peer, round=round, kind=kind, why=why, **ends)
            else:
                held[rows], came[rows] = found, True
        self.board.tell(self.rank, WORKING)
        missing = route.wanted[~came[route.wanted]]
        if len(missing) and instead is None:
            raise Silence(f"waited in vain for a message {kind!r} of round {round}")
        if len(missing) and instead is not None:
            held[missing] = instead()[missing]
        return held

    def state(self, name: str, round: int, value: Tensor) -> None:
        """Log the private vectors of the nodes of this process, where the run keeps states."""
        if self.setup.scenario.states:
            self.log.write("state", value[self._own], round=round, kind=name)

    def curve(self, name: str, round: int, value: float) -> None:
        """Keep nothing: a curve is about all nodes."""

    def end_round(self, round: int) -> None:
        """Say that a round is over, and stop where that is wanted."""
        self.log.write("round", None, round=round)
        self.board.tell(self.rank, WORKING, round)
        for fault in self.setup.options.faults:
            if fault.kind == "stop" and fault.node in self.here and fault.round == round:
                self._happens(fault)
                self.mail.flush()
                self._stop()

    def send(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse what does not go through `exchange`."""
        raise LeakauditError("this victim does not run as separate processes; use --engine inline")

    send_many = send

    def _route(self, arcs: Arcs) -> Route:
        known = self._routes.get(id(arcs))
        if known is None or known[0] is not arcs:
            if len(self._routes) > 64:
                self._routes.clear()
            known = self._routes[id(arcs)] = arcs, Route.of(arcs, self.setup.place, self.rank)
        return known[1]

    def _tell(
        self, round: int, kind: str, values: Tensor, arcs: Arcs, which: Tensor, secure: bool
    ) -> None:
        """Log what is sent; `at` says which payload each message carries."""
        for some in which.split(TOGETHER) if len(which) else ():
            used, at = arcs.row[some].unique(return_inverse=True)
            told: dict[str, Any] = {
                "src": arcs.src[some].tolist(),
                "dst": arcs.dst[some].tolist(),
                "at": at.tolist(),
                "secure": secure,
            }
            self.log.write(
                "send",
                values[used, slice(*self.columns)],
                None,
                self.reached,
                round=round,
                kind=kind,
                **told,
            )

    def _faults(self, round: int, route: Route, arcs: Arcs) -> Tensor:
        """Be late where that is wanted, and return the arcs whose messages are lost."""
        lost = [torch.empty(0, dtype=torch.int64)]
        for fault in self.setup.options.faults:
            if fault.round != round or fault.node not in self.here or not route.out:
                continue
            if fault.kind == "late" and self._happens(fault):
                time.sleep(fault.seconds)
            if fault.kind == "drop" and len(
                hit := ((arcs.src == fault.node) & (arcs.dst == fault.to)).nonzero().flatten()
            ):
                self._happens(fault)
                lost.append(hit)
        return torch.cat(lost)

    def _happens(self, fault: Fault) -> bool:
        """Log that a fault happens, and return whether it is the first time."""
        first = fault not in self._happened
        if first:
            self._happened.add(fault)
            self.log.write("fault", what=str(fault))
        return first

    def _silent(self, peer: int) -> bool:
        return self.board.silent(peer, self.setup.options.timeout)

    def _waiting(self) -> None:
        self.board.tell(self.rank, WAITING)
