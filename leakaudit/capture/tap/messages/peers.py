"""Arrange the messages of a protocol without a server: ranks become nodes, channels edges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from leakaudit.capture.tap.messages.arranged import (
    ArrangedLog,
    ProtocolMessage,
    common,
    receivers,
    round_of,
)
from leakaudit.capture.tap.messages.description import MessageDescription
from leakaudit.capture.tap.messages.streams import LoggedMessage
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph


def peers(description: MessageDescription, found: list[LoggedMessage], nodes: int) -> ArrangedLog:
    """Arrange the messages of a protocol without a server.

    Raises:
        LeakauditError: the protocol cannot run on these nodes, or its kinds of messages cannot be
            distinguished.
    """
    graph = _graph(found, nodes)
    kinds = _kinds(description, graph)

    def sent_in(round_: int, message: LoggedMessage) -> ProtocolMessage:
        kind = _kind(description, message, kinds)
        to = receivers(message, nodes)
        return ProtocolMessage(round_, message.src, to, kind, message, description.scale)

    sent: list[ProtocolMessage] = []
    starts: list[LoggedMessage] = []
    for message in found:
        at = round_of(message, description.start)
        if at == 0:
            starts.append(message)
        else:
            sent.append(sent_in(at, message))
    bare = ArrangedLog(description, graph, tuple(sent), None, 0)
    start = common(bare, starts)
    if start is not None:
        start = start * description.scale
    notes: list[str] = []
    if start is None and any(message.kept for message in starts):
        notes.append(
            "the ranks' first models differ: each counts as an update of round 1, with an "
            "unknown gradient"
        )
        sent = [replace(s, round=s.round + 1) for s in sent]
        sent += [sent_in(1, message) for message in starts]
    one_way = _one_way(sent)
    if one_way:
        src, dst = one_way[0]
        notes.append(
            f"channel {src} -> {dst} was used in one direction only; "
            f"{description.protocol} sends in both"
        )
    return replace(bare, sent=tuple(sent), start=start, notes=tuple(notes))


def _graph(found: Iterable[LoggedMessage], nodes: int) -> Graph:
    """Return the graph of the ranks that exchange messages."""
    edges: set[tuple[int, int]] = set()
    for message in found:
        i = message.src
        edges |= {(min(i, j), max(i, j)) for j in receivers(message, nodes) if i != j}
    return Graph(nodes, tuple(sorted(edges)))


def _one_way(sent: Iterable[ProtocolMessage]) -> list[tuple[int, int]]:
    """Return the edges with messages in one direction only."""
    ways = {(s.src, dst) for s in sent for dst in s.dst}
    return sorted((i, j) for i, j in ways if (j, i) not in ways)


def _kinds(description: MessageDescription, graph: Graph) -> list[str]:
    """Return the kinds of messages that the protocol sends in its rounds."""
    try:
        declared = description.victim.relations(graph, 2, {}).vectors
    except (LeakauditError, KeyError, IndexError) as error:
        raise LeakauditError(
            f"protocol {description.protocol} cannot be declared on these {graph.nodes} nodes: "
            f"{error}"
        ) from None
    return sorted({v.name for v in declared if v.kind == "message" and v.round and not v.secure})


def _kind(description: MessageDescription, message: LoggedMessage, kinds: list[str]) -> str:
    """Return the kind of a message: as noted by the program, from its tag, or the only kind."""
    noted = message.note("kind")
    if isinstance(noted, str) and (noted in kinds or description.undeclared):
        return noted
    if message.tag in description.kinds:
        return description.kinds[message.tag]
    if len(kinds) == 1:
        return kinds[0]
    wanted = "it sends nothing"
    if kinds:
        wanted = f"assign the tags under [messages.kinds]: 0 = {kinds[0]!r}"
    raise LeakauditError(
        f"{description.protocol} sends {len(kinds)} kinds of messages ({', '.join(kinds)}); "
        f"{wanted}"
    )
