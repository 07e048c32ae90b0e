"""Messages in terms of a protocol: nodes, rounds, kinds, senders and receivers."""

# Without a server, ranks become nodes and channels edges. A server is a rank to which the others
# send, or the sum that all ranks compute together.

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from leakaudit.capture.tap.log.layers import NOTE
from leakaudit.capture.tap.messages.description import MessageDescription
from leakaudit.capture.tap.messages.layouts import ParameterPlace
from leakaudit.capture.tap.messages.streams import MODELS, POINT, LoggedMessage
from leakaudit.core.errors import LeakauditError
from leakaudit.core.evidence import Evidence
from leakaudit.core.trace import Graph, Json

UP = (
    "ddp",
    "fsdp",
    "opacus",
    "allreduce",
    "reduce_scatter",
    "reduce",
    "gather",
    "allgather",
    "send",
    "recv",
)
DOWN = (*MODELS, "broadcast", "scatter", "send", "recv")
NAME = 40  # characters of the name of a client or a node that are shown: a choice


@dataclass(frozen=True)
class ProtocolMessage:
    """One message in terms of the protocol."""

    round: int
    src: int  # node that sent it
    dst: tuple[int, ...]  # all nodes that receive it
    kind: str  # its name in the protocol
    message: LoggedMessage
    scale: float = 1.0  # the recorded value times this is the protocol's value


@dataclass(frozen=True)
class ArrangedLog:
    """The contents of a log, ready to be written as a trace."""

    description: MessageDescription
    graph: Graph  # of the nodes that exchange messages
    sent: tuple[ProtocolMessage, ...]
    start: Tensor | None  # the common initial model (d,); None if it was not observed
    rounds: int = 0  # number of the last round
    # what was never sent in the rounds up to `rounds`, in the form that `traces.gaps` reads
    missing: tuple[dict[str, Json], ...] = ()
    left_out: dict[str, int] = field(default_factory=dict)  # reason -> messages without payload
    notes: tuple[str, ...] = ()  # remarks for the reader of the trace
    optional_senders: frozenset[int] = frozenset()  # nodes that need not send
    # whether the server asks some of the clients in each round; only they answer
    asks: bool = False
    evidence: tuple[Evidence, ...] = ()  # where the payload and the constants come from
    run: tuple[int, int] | None = None  # `columns`, if chosen

    @property
    def covers(self) -> tuple[int, ...]:
        """Places, in a message, of the parameters that all messages contain."""
        everything = range(len(self.slices))
        covered = set(everything)
        for sent in self.sent:
            if sent.message.kept:
                covered &= set(sent.message.covers or everything)
        return tuple(sorted(covered))

    @property
    def columns(self) -> tuple[int, int]:
        """The columns for the trace: by default, the longest run that all messages contain."""
        if self.run is not None:
            return self.run
        return max(self.runs, key=lambda run: run[1] - run[0])

    @property
    def runs(self) -> list[tuple[int, int]]:
        """All runs of columns without a gap that all messages contain, in order."""
        runs: list[tuple[int, int]] = []
        parts = [self.slices[place] for place in self.covers]
        for part in sorted(parts, key=lambda part: part.start):
            if runs and runs[-1][1] == part.start:
                runs[-1] = (runs[-1][0], part.stop)
            else:
                runs.append((part.start, part.stop))
        if not runs:
            raise LeakauditError("the messages have no parameter in common")
        return runs

    def names(self, columns: tuple[int, int]) -> list[str]:
        """Return the names of the parameters in columns from the first to before the second."""
        layout = self.description.task.layout
        start, stop = columns
        return [name for name in layout.names if start <= layout.slices[name].start < stop]

    @property
    def chosen(self) -> bool:
        """Whether the user chose the parameters that were recorded."""
        return any(sent.message.note(NOTE) for sent in self.sent)

    @property
    def slices(self) -> list[ParameterPlace]:
        """The place of each parameter of a message in the model's vector."""
        return self.description.places


def receivers(message: LoggedMessage, nodes: int) -> tuple[int, ...]:
    """Return the nodes that receive a message."""
    if message.dst is not None:
        return (message.dst,)
    ranks = message.group or range(nodes)
    return tuple(j for j in ranks if j != message.src)


def round_of(message: LoggedMessage, start: int) -> int:
    """Return a message's round: as the program noted it, or by its position on the channel."""
    noted = message.note("round")
    known = noted is not None and 0 <= noted < 1 << 31
    return int(noted) if known else message.index + start


def common(starts: Sequence[LoggedMessage]) -> Tensor | None:
    """Return the initial model (d,); None if the nodes' models differ, or are not complete."""
    if any(message.covers for message in starts):
        return None
    values = (message.value for message in starts if message.kept)
    first = next(values, None)
    if first is None or not all(torch.equal(first, value) for value in values):
        return None
    return first


def peers(description: MessageDescription, found: list[LoggedMessage], nodes: int) -> ArrangedLog:
    """Arrange the messages of a protocol without a server."""
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
    start = common(starts)
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
    ways = {(s.src, dst) for s in sent for dst in s.dst}
    one_way = sorted((i, j) for i, j in ways if (j, i) not in ways)
    if one_way:
        src, dst = one_way[0]
        notes.append(
            f"channel {src} -> {dst} was used in one direction only; "
            f"{description.protocol} sends in both"
        )
    return ArrangedLog(description, graph, tuple(sent), start, notes=tuple(notes))


def _graph(found: Iterable[LoggedMessage], nodes: int) -> Graph:
    edges: set[tuple[int, int]] = set()
    for message in found:
        i = message.src
        edges |= {(min(i, j), max(i, j)) for j in receivers(message, nodes) if i != j}
    return Graph(nodes, tuple(sorted(edges)))


def _kinds(description: MessageDescription, graph: Graph) -> list[str]:
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
    if noted is not None and (noted in kinds or description.undeclared):
        return str(noted)
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


@dataclass(frozen=True)
class _Roles:
    """The assignment of ranks to nodes; the server is the last node."""

    server: int | None  # rank of the server; None if it is not a rank
    place: Mapping[int, int]  # rank -> node, for the other ranks
    # rank -> what the program calls it, if it does not count its processes
    names: Mapping[int, str] = field(default_factory=dict)

    @property
    def hub(self) -> int:
        return len(self.place)

    @property
    def notes(self) -> list[str]:
        if self.server is None:
            notes = [
                f"node {self.hub} is not a process: it stands for the sum that all ranks compute; "
                "it receives each rank's contribution"
            ]
            if any(rank != node for rank, node in self.place.items()):
                notes.append(f"the other nodes are ranks {', '.join(map(str, self.place))}")
            return notes
        if self.server == self.hub:
            return []
        if self.names:
            listed = ", ".join(f"{self.place[r]} is {self.names[r]}" for r in self.place)
            return [f"node {self.hub} is the server; of the clients, node {listed}"]
        others = ", ".join(map(str, self.place))
        return [
            f"node {self.hub} is rank {self.server}, the server; the other nodes are ranks {others}"
        ]


def star(
    description: MessageDescription,
    found: Sequence[LoggedMessage],
    ranks: int,
    partitions: Mapping[str, int],
) -> ArrangedLog:
    """Arrange the messages of a protocol with a server, which is the last node."""
    roles = _roles(description, found, ranks, partitions)
    graph = Graph(roles.hub + 1, tuple((node, roles.hub) for node in range(roles.hub)))
    down, up = _directions(description, graph)
    sent: list[ProtocolMessage] = []
    models: list[LoggedMessage] = []
    for m in found:
        if m.src != roles.server and m.op in UP and m.dst in (None, roles.server):
            # Ranks divide what they contribute. The models that they start from are as they are.
            node = roles.place[m.src]
            scale = description.scale_in(round_of(m, 1))
            sent.append(ProtocolMessage(round_of(m, 1), node, (roles.hub,), up, m, scale))
        elif m.op in DOWN and roles.server in (m.src, None) and m.dst in (None, *roles.place):
            models.append(m)
    asks = any(m.note("server") is not None for m in found)
    first = min((round_of(m, 1) for m in models), default=1)
    start = common([m for m in models if round_of(m, 1) == first])
    # Models that are sent only once are the common start, and the server sends nothing else.
    if asks or any(m.index for m in models):
        for m in models:
            to = tuple(range(roles.hub)) if m.dst is None else (roles.place[m.dst],)
            sent.append(ProtocolMessage(round_of(m, 1), roles.hub, to, down, m))
    return ArrangedLog(
        description,
        graph,
        tuple(sent),
        start,
        notes=tuple(roles.notes),
        optional_senders=frozenset({roles.hub}),
        asks=asks,
    )


def _roles(
    description: MessageDescription,
    found: Sequence[LoggedMessage],
    ranks: int,
    partitions: Mapping[str, int],
) -> _Roles:
    server = description.server
    noted = {m.note("server") for m in found} - {None}
    if noted:
        return _noted_roles(found, server, noted, partitions)
    ends = [(m.src, m.dst) for m in found if m.op in POINT and m.dst is not None]
    if server is None and ends:
        server = Counter(dst for _, dst in ends).most_common(1)[0][0]
        if not all(server in pair for pair in ends):
            raise LeakauditError(
                f"{description.protocol} has a server, but ranks send to several others; "
                "specify the server's rank: [messages] server = 0"
            )
    if server is not None and not 0 <= server < ranks:
        raise LeakauditError(
            f"messages.server: rank {server} does not exist (the program has ranks 0-{ranks - 1})"
        )
    # Messages to all go to the ranks of their process group; other ranks do not take part.
    members: set[int] = set()
    for m in found:
        members |= set(m.group or range(ranks))
    others = [rank for rank in sorted(members) if rank != server]
    return _Roles(server, {rank: node for node, rank in enumerate(others)})


def _noted_roles(
    found: Sequence[LoggedMessage],
    described: int | None,
    noted: set[Any],
    partitions: Mapping[str, int],
) -> _Roles:
    """Return the roles in a program that knows its server, without clients never asked."""
    # Clients are in the order of their partitions, or else of their ranks.
    server = next(iter(noted))
    if described not in (None, server) or len(noted) != 1:
        raise LeakauditError(
            f"messages.server: rank {described} is described, but the log says {sorted(noted)}"
        )
    ranks = {m.src for m in found} | {m.dst for m in found if m.dst is not None}
    others = sorted(ranks - {server})
    nodes: dict[int, str] = {}
    for m in found:
        node = m.note("node")
        client = m.src if m.dst == server else m.dst
        if node is not None and client is not None:
            nodes[client] = node
    if all(nodes.get(rank) in partitions for rank in others):
        others.sort(key=lambda rank: partitions[nodes[rank]])
    place = {rank: node for node, rank in enumerate(others)}
    names: dict[int, str] = {}
    if set(nodes) >= set(others):
        names = {rank: f"client {nodes[rank][:NAME]}" for rank in others}
    return _Roles(server, place, names)


def _directions(description: MessageDescription, graph: Graph) -> tuple[str, str]:
    down: list[str] = []
    up: list[str] = []
    for vector in description.victim.relations(graph, 2, {}).vectors:
        if vector.kind == "message" and vector.round:
            way = down if vector.owner == graph.nodes - 1 else up
            way.append(vector.name)
    if not down or not up:
        raise LeakauditError(
            f"{description.protocol}: expected messages from the server to the clients and back, "
            "as in every protocol with a server"
        )
    return down[0], up[0]
