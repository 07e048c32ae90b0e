"""Arrange the messages of a protocol with a server.

The server is a rank to which the others send, or the sum that all ranks compute together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from leakaudit.capture.tap.arranged import ArrangedLog, Sent, common, round_of
from leakaudit.capture.tap.description import Description
from leakaudit.capture.tap.digits import shortest
from leakaudit.capture.tap.streams import POINT, LoggedMessage
from leakaudit.errors import LeakauditError
from leakaudit.trace import Graph

UP = ("ddp", "allreduce", "reduce", "gather", "allgather", "send", "recv")
DOWN = ("model", "broadcast", "scatter", "send", "recv")
# With plain SGD the miss is the rounding of float32 models, about 1e-7 |w| / |move|; with another
# optimiser it is in the tenths. The threshold lies in between; its exact value is a choice.
SGD = 1e-3  # miss of w - lr mean g, relative to the move; also of a described lr
EXACT = 1e-9  # relative distance within which lr is rounded even if the miss is smaller
NAME = 40  # characters of a client's name that are shown: a choice
LOOKED_AT = 3  # rounds in which the rule is tried: a choice


@dataclass(frozen=True)
class _Roles:
    """The assignment of ranks to nodes; the server is the last node.

    Attributes:
        server: rank of the server; None if it is not a rank.
        place: rank -> node, for the other ranks.
        names: rank -> what the program calls it, if it does not count its processes.
    """

    server: int | None
    place: Mapping[int, int]
    names: Mapping[int, str] = field(default_factory=dict)

    @property
    def hub(self) -> int:
        """Node of the server."""
        return len(self.place)

    @property
    def note(self) -> list[str]:
        """Remarks for the reader about the numbers of the nodes."""
        if self.server is None:
            return [
                f"node {self.hub} is not a process: it stands for the sum that all ranks compute; "
                "it receives each rank's contribution"
            ]
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
    description: Description,
    found: Sequence[LoggedMessage],
    ranks: int,
    partitions: Mapping[str, int] | None = None,
) -> ArrangedLog:
    """Arrange the messages of a protocol with a server.

    Args:
        description: the description of the program's messages.
        found: all messages of the log.
        ranks: number of ranks.
        partitions: what the program calls a client -> its number, if it is known.

    Raises:
        LeakauditError: the server in the description is not a rank, or none is given and several
            are possible.
    """
    roles = _roles(description, found, ranks, partitions or {})
    graph = Graph(roles.hub + 1, tuple((node, roles.hub) for node in range(roles.hub)))
    down, up = _directions(description, graph)
    sent: list[Sent] = []
    models: list[LoggedMessage] = []
    for m in found:
        if m.src != roles.server and m.op in UP and m.dst in (None, roles.server):
            sent.append(Sent(round_of(m, 1), roles.place[m.src], (roles.hub,), up, m))
        elif m.op in DOWN and roles.server in (m.src, None) and m.dst in (None, *roles.place):
            models.append(m)
    bare = ArrangedLog(description, graph, (), None, 0)
    asks = any(m.note("server") is not None for m in found)
    first = min((round_of(m, 1) for m in models), default=1)
    start = common(bare, [m for m in models if round_of(m, 1) == first])
    # Models that are sent only once are the common start, and the server sends nothing else.
    if asks or any(m.index for m in models):
        for m in models:
            to = tuple(range(roles.hub)) if m.dst is None else (roles.place[m.dst],)
            sent.append(Sent(round_of(m, 1), roles.hub, to, down, m))
    arranged = replace(
        bare,
        sent=tuple(sent),
        start=start,
        notes=tuple(roles.note),
        optional_senders=frozenset({roles.hub}),
        asks=asks,
    )
    if description.protocol == "fedsgd":
        return _with_step(arranged, down, up)
    if description.protocol == "fedavg":
        return _with_mean(arranged, down, up)
    return arranged


def _roles(
    description: Description,
    found: Sequence[LoggedMessage],
    ranks: int,
    partitions: Mapping[str, int],
) -> _Roles:
    """Return the roles from the description, or inferred from messages with one receiver."""
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
    others = [rank for rank in range(ranks) if rank != server]
    return _Roles(server, {rank: node for node, rank in enumerate(others)})


def _noted_roles(
    found: Sequence[LoggedMessage],
    described: int | None,
    noted: set[Any],
    partitions: Mapping[str, int],
) -> _Roles:
    """Return the roles in a program that knows its server; a client that was never asked has none.

    Clients are in the order of their partitions, or else of their ranks.
    """
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
        if isinstance(node, str) and client is not None:
            nodes[client] = node
    if all(nodes.get(rank) in partitions for rank in others):
        others.sort(key=lambda rank: partitions[nodes[rank]])
    place = {rank: node for node, rank in enumerate(others)}
    names: dict[int, str] = {}
    if set(nodes) >= set(others):
        names = {rank: f"client {nodes[rank][:NAME]}" for rank in others}
    return _Roles(server, place, names)


def _directions(description: Description, graph: Graph) -> tuple[str, str]:
    """Return the kinds of the server's messages and of the clients' messages."""
    down: list[str] = []
    up: list[str] = []
    for vector in description.victim.relations(graph, 2, {}).vectors:
        if vector.kind == "message" and vector.round:
            way = down if vector.owner == graph.nodes - 1 else up
            way.append(vector.name)
    return down[0], up[0]


def _with_step(plan: ArrangedLog, down: str, up: str) -> ArrangedLog:
    """Add the learning rate if the models move by w - lr mean g.

    Otherwise the plan marks the server's step as unknown, so that nothing is derived from it.
    """
    params = dict(plan.description.params)
    if "server" in params:
        return plan
    lr, miss = _step(plan, down, up)
    described = params.get("lr")
    if miss < SGD and (described is None or abs(described - lr) <= SGD * lr):
        params["lr"] = described or lr
        return replace(plan, description=replace(plan.description, params=params))
    params["server"] = "unknown"
    notes = plan.notes
    if miss != float("inf"):
        notes = (
            *notes,
            "the models do not move by w - lr mean g: the optimiser or lr is different",
        )
    return replace(plan, description=replace(plan.description, params=params), notes=notes)


def _with_mean(plan: ArrangedLog, down: str, up: str) -> ArrangedLog:
    """Mark the server as unknown unless its models are the means of what all clients sent."""
    params = dict(plan.description.params)
    if "server" in params:
        return plan
    miss = _mean_miss(plan, down, up)
    if miss < SGD:
        params["server"] = "mean"
        return replace(plan, description=replace(plan.description, params=params))
    params["server"] = "unknown"
    note = (
        "the server's models are not the plain means of what all clients sent (another strategy, "
        "weights, or a part of the clients), so nothing is derived from its step"
    )
    if miss == float("inf"):
        note = "no round shows how the server combines models, so nothing is derived from its step"
    description = replace(plan.description, params=params)
    return replace(plan, description=description, notes=(*plan.notes, note))


def _mean_miss(plan: ArrangedLog, down: str, up: str) -> float:
    """Return the miss of the mean of all clients' models, relative to the server's move.

    It is infinite if no round shows it, and the worst of several rounds.
    """
    models = {s.round: s.message for s in plan.sent if s.kind == down and s.message.kept}
    answers = Counter(s.round for s in plan.sent if s.kind == up)
    clients = plan.graph.nodes - 1
    if any(count != clients and t + 1 in models for t, count in answers.items()):
        return 1.0  # the server asked a part of the clients
    whole = _whole_rounds(plan, up, models)[:LOOKED_AT]
    worst = 0.0
    for t, arrived in whole:
        before = models[t].value(plan.slices).double()
        after = models[t + 1].value(plan.slices).double()
        mean = torch.stack(list(arrived.values())).mean(0)
        moved = float((after - before).norm().clamp_min(1e-300))
        worst = max(worst, float((after - mean).norm()) / moved)
    return worst if whole else float("inf")


def _step(plan: ArrangedLog, down: str, up: str) -> tuple[float, float]:
    """Return lr in few digits, and the relative miss of w - lr mean g.

    The lr minimises the squared miss over several rounds. The miss is infinite if the messages do
    not contain both models and all gradients of a round.
    """
    models = {s.round: s.message for s in plan.sent if s.kind == down and s.message.kept}
    moves: list[Tensor] = []
    means: list[Tensor] = []
    for t, gradients in _whole_rounds(plan, up, models)[:LOOKED_AT]:
        before = models[t].value(plan.slices).double()
        after = models[t + 1].value(plan.slices).double()
        moves.append(before - after)
        means.append(torch.stack(list(gradients.values())).mean(0))
    if not moves:
        return 0.0, float("inf")
    moved = torch.cat(moves)
    mean = torch.cat(means)
    lr = float(moved @ mean / (mean @ mean).clamp_min(1e-300))
    miss = float((moved - lr * mean).norm() / moved.norm().clamp_min(1e-300))
    return shortest(lr, max(miss, EXACT)), miss


def _whole_rounds(
    plan: ArrangedLog, up: str, models: Mapping[int, Any]
) -> list[tuple[int, dict[int, Tensor]]]:
    """Return the first rounds in which all nodes' gradients were kept, with these, by node."""
    gradients: dict[int, dict[int, Tensor]] = defaultdict(dict)
    for s in plan.sent:
        if s.kind != up or not s.message.kept:
            continue
        if s.round not in models or s.round + 1 not in models:
            continue
        if s.round <= LOOKED_AT + min(models):
            value = s.message.value(plan.slices).double()
            gradients[s.round][s.src] = value * plan.description.scale
    nodes = plan.graph.nodes - 1
    return [(t, held) for t, held in sorted(gradients.items()) if len(held) == nodes]
