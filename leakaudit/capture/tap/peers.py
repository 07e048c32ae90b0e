"""Arrange the messages of a protocol of equals: ranks are nodes, wires are edges."""

from __future__ import annotations

from dataclasses import replace

from leakaudit.capture.tap.arranged import Plan, Sent, common, receivers, round_of
from leakaudit.capture.tap.description import Description
from leakaudit.capture.tap.streams import Message
from leakaudit.errors import LeakauditError
from leakaudit.trace import Graph


def peers(description: Description, found: list[Message], nodes: int) -> Plan:
    """Arrange a protocol of equals: ranks are nodes, wires are edges."""
    sent, starts, notes = list[Sent](), list[Message](), list[str]()
    edges = {
        (min(i, j), max(i, j))
        for m in found
        for i in (m.src,)
        for j in receivers(m, nodes)
        if i != j
    }
    graph = Graph(nodes, tuple(sorted(edges)))
    kinds = _kinds(description, graph)
    for m in found:
        at = round_of(m, description.start)
        if at == 0:
            starts.append(m)
        else:
            sent.append(Sent(at, m.src, receivers(m, nodes), _kind(description, m, kinds), m))
    bare = Plan(description, graph, tuple(sent), None, 0, notes=())
    start = common(bare, starts)
    if starts and start is None and any(m.kept for m in starts):
        notes.append(
            "the first models differ from rank to rank: each counts as an update of round 1, whose gradients stay unknown"
        )
        sent = [replace(s, round=s.round + 1) for s in sent]
        sent += [
            Sent(1, m.src, receivers(m, nodes), _kind(description, m, kinds), m) for m in starts
        ]
    ways = {(s.src, j) for s in sent for j in s.dst}
    if lone := sorted(w for w in ways if (w[1], w[0]) not in ways):
        notes.append(
            f"wire {lone[0][0]} -> {lone[0][1]} was used in one direction only; {description.protocol} sends both ways"
        )
    return replace(bare, sent=tuple(sent), start=start, notes=tuple(notes))


def _kinds(description: Description, graph: Graph) -> list[str]:
    """Return the kinds of messages that the protocol sends in its rounds."""
    try:
        declared = description.victim.relations(graph, 2, {}).vectors
    except (LeakauditError, KeyError, IndexError) as error:
        raise LeakauditError(
            f"protocol {description.protocol} cannot be declared on these {graph.nodes} nodes: {error}"
        ) from None
    return sorted({v.name for v in declared if v.kind == "message" and v.round and not v.secure})


def _kind(description: Description, message: Message, kinds: list[str]) -> str:
    said = message.note("kind")
    if isinstance(said, str) and said in kinds:
        return said
    if message.tag in description.kinds:
        return description.kinds[message.tag]
    if len(kinds) != 1:
        wanted = (
            f"say which tag is which under [messages.kinds]: 0 = {kinds[0]!r}"
            if kinds
            else "it sends nothing"
        )
        raise LeakauditError(
            f"{description.protocol} sends {len(kinds)} kinds of messages ({', '.join(kinds)}); {wanted}"
        )
    return kinds[0]
