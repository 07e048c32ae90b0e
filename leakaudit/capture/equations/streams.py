"""What every node of a trace sends, as sequences of vectors, and the terms of an equation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph, Trace

Who: TypeAlias = Literal["own", "near", "server", "clients"]
PUBLIC = "w0"  # the public vector that is the initial model of every node

COMPUTED = 1e-14  # error of a singular value in double precision: a choice, 45 units of rounding


@dataclass(frozen=True)
class Term:
    """Earlier messages that an equation may contain."""

    kind: str
    lag: int  # number of rounds by which they are older
    who: Who  # their senders: the node itself, its neighbours, the server or all clients


@dataclass(frozen=True)
class SenderStreams:
    """The messages of a trace, by sender."""

    graph: Graph
    # distance from 1 to the next number in the number format of the messages, or relative error of
    # computations in double precision if that is larger
    eps: float
    rounds: int
    # (kind, node) -> round -> vector (d,), as float64
    sent: dict[tuple[str, int], dict[int, Tensor]]
    server: int | None  # the node that serves all others; None if there is none
    start: Tensor | None  # (d,) the public initial model; None if the trace has none

    @classmethod
    def of(cls, trace: Trace) -> SenderStreams:
        """Return the messages of a trace whose nodes send the same to all receivers."""
        sent: dict[tuple[str, int], dict[int, Tensor]] = {}
        rows: dict[tuple[str, int, int], tuple[int, int]] = {}
        for number, table in enumerate(trace.messages):
            columns = (table.round, table.src, table.kind, table.row)
            for t, src, k, row in zip(*(one.tolist() for one in columns), strict=True):
                kind = table.kinds[k]
                known = rows.setdefault((kind, src, t), (number, row))
                value = table.payload[row]
                if known != (number, row):
                    first = trace.messages[known[0]].payload[known[1]]
                    if not torch.equal(first, value):
                        raise LeakauditError(
                            f"node {src} sends different messages {kind!r} to different nodes in "
                            f"round {t}; equations are fitted to messages that a node sends alike"
                        )
                    continue
                sent.setdefault((kind, src), {})[t] = value.double()
        start = trace.public.get(PUBLIC)
        return cls(
            graph=trace.graph,
            eps=max(COMPUTED, float(torch.finfo(trace.dtype).eps)),
            rounds=trace.rounds,
            sent=sent,
            server=_server(trace.graph, set(sent)),
            start=None if start is None else start.double(),
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        """All kinds of messages, in alphabetical order."""
        return tuple(sorted({kind for kind, _ in self.sent}))

    def senders(self, kind: str) -> tuple[int, ...]:
        """Return the nodes that send messages of a kind."""
        return tuple(sorted(node for name, node in self.sent if name == kind))

    def value(self, kind: str, node: int, t: int) -> Tensor | None:
        """Return a message, or the initial model before the first one."""
        history = self.sent.get((kind, node), {})
        if t in history:
            return history[t]
        if t == 0:
            return self.start
        return None

    def nodes_of(self, term: Term, node: int) -> tuple[int, ...]:
        """Return the senders of a term in the equation of a node."""
        if term.who == "own":
            return (node,)
        if term.who == "near":
            return self.graph.neighbours[node]
        if self.server is None:
            return ()
        if term.who == "server":
            return (self.server,)
        return tuple(i for i in range(self.graph.nodes) if i != self.server)


def _server(graph: Graph, sent: set[tuple[str, int]]) -> int | None:
    """Return the last node if no other sends its kinds and it is connected to all others."""
    last = graph.nodes - 1
    own = {kind for kind, node in sent if node == last}
    others = {kind for kind, node in sent if node != last}
    star = len(graph.edges) == last and graph.degree(last) == last
    if star and last > 0 and own and others and not own & others:
        return last
    return None
