"""Arrange the messages of a protocol with a server.

The server is a rank to which the others send, or the sum that all ranks compute together.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from leakaudit.capture.fitting import stepping
from leakaudit.capture.tap.messages import left_out
from leakaudit.capture.tap.messages.arranged import ArrangedLog, ProtocolMessage, common, round_of
from leakaudit.capture.tap.messages.description import MessageDescription
from leakaudit.capture.tap.messages.streams import POINT, LoggedMessage
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph

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
DOWN = ("model", "broadcast", "scatter", "send", "recv")
EQUAL = 1e-3  # relative difference of a described constant from the one found: a choice
# The mean of float32 models misses by their rounding, about 1e-7 |w| / |move|; another strategy
# misses by a tenth and more. The threshold lies in between; its exact value is a choice.
MEAN = 1e-3
MOST_ROUNDS = 500  # rounds over which an optimiser is verified: a choice that bounds the memory
OTHERS = {  # whether the sketch of the parameters that were left out shows the same step -> remark
    True: ", of the recorded parameters and by their sketch of the others",
    False: " of the recorded parameters (the others follow another step, as their sketch shows)",
    None: " of the recorded parameters",
}
NAME = 40  # characters of a client's name that are shown: a choice


@dataclass(frozen=True)
class _Roles:
    """The assignment of ranks to nodes; the server is the last node."""

    server: int | None  # rank of the server; None if it is not a rank
    place: Mapping[int, int]  # rank -> node, for the other ranks
    # rank -> what the program calls it, if it does not count its processes
    names: Mapping[int, str] = field(default_factory=dict)

    @property
    def hub(self) -> int:
        """Node of the server."""
        return len(self.place)

    @property
    def notes(self) -> list[str]:
        """Remarks for the reader about the numbers of the nodes."""
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
    partitions: Mapping[str, int] | None = None,
) -> ArrangedLog:
    """Arrange the messages of a protocol with a server."""
    roles = _roles(description, found, ranks, partitions or {})
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
    bare = ArrangedLog(description, graph, (), None, 0)
    asks = any(m.note("server") is not None for m in found)
    first = min((round_of(m, 1) for m in models), default=1)
    start = common(bare, [m for m in models if round_of(m, 1) == first])
    # Models that are sent only once are the common start, and the server sends nothing else.
    if asks or any(m.index for m in models):
        for m in models:
            to = tuple(range(roles.hub)) if m.dst is None else (roles.place[m.dst],)
            sent.append(ProtocolMessage(round_of(m, 1), roles.hub, to, down, m))
    arranged = replace(
        bare,
        sent=tuple(sent),
        start=start,
        notes=tuple(roles.notes),
        optional_senders=frozenset({roles.hub}),
        asks=asks,
    )
    if description.protocol == "fedsgd":
        return _with_step(arranged, down, up)
    if description.protocol == "fedavg":
        return _with_mean(arranged, down, up)
    return arranged


def _roles(
    description: MessageDescription,
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


def _directions(description: MessageDescription, graph: Graph) -> tuple[str, str]:
    """Return the kinds of the server's messages and of the clients' messages."""
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


def _with_step(plan: ArrangedLog, down: str, up: str) -> ArrangedLog:
    """Add the server's optimiser if one explains how the models move.

    Otherwise the plan marks the server's step as unknown, so that nothing is derived from it.
    """
    params = dict(plan.description.params)
    if "server" in params:
        return plan
    of_models, of_gradients = _rounds(plan, down, up)
    models, gradients = _series(plan, down, up)
    if not gradients:
        return _unknown(plan)
    moves = [before.double() - after.double() for before, after in itertools.pairwise(models)]
    rounding = torch.finfo(models[0].dtype).eps
    formats = [s.message.dtype for s in plan.sent if s.kind == up and s.message.kept]
    coarsest = max(torch.finfo(dtype).eps for dtype in set(formats))
    observed = stepping.observed(models[:-1], moves, gradients, rounding, coarsest)
    found = stepping.identify(observed)
    if found is None:
        why = "none of those that leakaudit tests predicts the models"
        few = stepping.untested(observed)
        if few:
            why = f"{why}, but {few}"
        if len(gradients) < stepping.LEAST:
            why = few
        elif not bool(observed.moves.any()):
            why = "the models do not move"
        elif max(rounding, coarsest) > stepping.COARSE:
            why = "the messages are rounded too coarsely"
        elif observed.floor > stepping.COARSE:
            why = "the models move too little for their number format"
        elif min(s.round for s in plan.sent) > 1:
            why = f"{why}; momentum that began before the first recorded round is not tested"
        return _unknown(plan, f"the server's optimiser is not known: {why}")
    of_whom = ""
    if any(message.covers for message in of_models):
        if found.rate is None or found.scaling != stepping.StepScaling():
            # Gradients are clipped by their whole norm, which a part does not show.
            return _unknown(
                plan,
                "the server's optimiser is not known: with only some of the parameters, clipping "
                "and a changing step size look alike",
            )
        same = None
        if not plan.description.scales:
            scale = plan.description.scale
            same = left_out.follow(found, of_models, of_gradients, plan.slices, scale)
        of_whom = OTHERS[same]
    if found.rate is not None and len(gradients) == stepping.MOST:
        models, gradients = _series(plan, down, up, MOST_ROUNDS)
        moves = [before.double() - after.double() for before, after in itertools.pairwise(models)]
        whole = stepping.observed(models[:-1], moves, gradients, rounding, coarsest, MOST_ROUNDS)
        wrong = found.first_miss_of(whole)
        if wrong is not None:
            after = min(s.round for s in plan.sent if s.kind == down) + wrong
            return _unknown(
                plan,
                f"the server's optimiser is not known: {found.text} explains the first rounds, but "
                f"not the step of round {after}: its constants change",
            )
    plan = _noted(
        plan,
        f"the server's optimiser{of_whom}: {found.text}; it predicts models that it was not "
        f"fitted to, with a relative miss of {found.miss:.0e}",
    )
    constants = _constants(found)
    if constants is None:
        return _unknown(plan)
    if _contradicts(params, constants):
        return _unknown(plan, "the description states another optimiser or lr")
    return _with_params(plan, {**constants, **params})


def _with_mean(plan: ArrangedLog, down: str, up: str) -> ArrangedLog:
    """Mark the server as unknown unless its models are the means of what all clients sent."""
    params = plan.description.params
    if "server" in params:
        return plan
    miss = _mean_miss(plan, down, up)
    if miss is None:
        why = "no round shows how the server combines models"
    elif miss < MEAN:
        return _with_params(plan, {**params, "server": "mean"})
    else:
        why = (
            "the server's models are not the plain means of what all clients sent (another "
            "strategy, weights, or a part of the clients)"
        )
    return _unknown(plan, f"{why}, so nothing is derived from its step")


def _mean_miss(plan: ArrangedLog, down: str, up: str) -> float | None:
    """Return the miss of the mean of all clients' models, relative to the server's move.

    It is the worst of several rounds; None if no round shows it.
    """
    models = {s.round: s.message for s in plan.sent if s.kind == down and s.message.kept}
    answers = Counter(s.round for s in plan.sent if s.kind == up)
    clients = plan.graph.nodes - 1
    if any(count != clients and t + 1 in models for t, count in answers.items()):
        return 1.0  # the server asked a part of the clients
    values, means = _series(plan, down, up)
    misses: list[float] = []
    for (before, after), mean in zip(itertools.pairwise(values), means, strict=True):
        moved = (after.double() - before.double()).norm().clamp_min(1e-300)
        misses.append(float((after.double() - mean).norm() / moved))
    return max(misses, default=None)


def _unknown(plan: ArrangedLog, note: str = "") -> ArrangedLog:
    """Return a plan from whose models nothing is derived about the server's step."""
    marked = _with_params(plan, {**plan.description.params, "server": "unknown"})
    return _noted(marked, note) if note else marked


def _noted(plan: ArrangedLog, note: str) -> ArrangedLog:
    return replace(plan, notes=(*plan.notes, note))


def _with_params(plan: ArrangedLog, params: Mapping[str, Any]) -> ArrangedLog:
    return replace(plan, description=replace(plan.description, params=params))


def _constants(found: stepping.Stepping | None) -> dict[str, Any] | None:
    """Return an optimiser as constants of FedSGD; None if these do not describe it."""
    if found is None or found.rate is None or found.scaling != stepping.StepScaling():
        return None
    constants: dict[str, Any] = {"lr": found.rate}
    optimiser = found.optimiser
    if not optimiser.is_linear:
        constants["server"] = optimiser.kind
    for name in ("momentum", "nesterov", "decay"):
        if getattr(optimiser, name):
            constants[name] = getattr(optimiser, name)
    return constants


def _contradicts(params: Mapping[str, Any], constants: Mapping[str, Any]) -> bool:
    """Return whether a description states other constants of the step than the messages show."""
    for name in ("lr", "momentum", "nesterov", "decay"):
        found = constants.get(name, 0)
        described = params.get(name, found)
        if abs(described - found) > EQUAL * abs(found):
            return True
    return False


def _series(
    plan: ArrangedLog, down: str, up: str, most: int = stepping.MOST
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the models (d,) of the first rounds, and the mean gradients (d,) between them.

    The rounds follow each other without a gap, and all nodes' gradients were kept.
    """
    models, gradients = _rounds(plan, down, up, most)
    means: list[Tensor] = []
    for of_round in gradients:
        held = [m.value(plan.slices).double() for m in of_round]
        scale = plan.description.scale_in(round_of(of_round[0], 1))
        means.append(torch.stack(held).mean(0) * scale)
    return [m.value(plan.slices) for m in models], means


def _rounds(
    plan: ArrangedLog, down: str, up: str, most: int = stepping.MOST
) -> tuple[list[LoggedMessage], list[list[LoggedMessage]]]:
    """Return the models of the first rounds, and all nodes' gradients between them."""
    models = {s.round: s.message for s in plan.sent if s.kind == down and s.message.kept}
    if not models:
        return [], []
    first = min(models)
    by_round: dict[int, dict[int, LoggedMessage]] = defaultdict(dict)
    for s in plan.sent:
        if s.kind == up and s.message.kept and s.round < first + most:
            by_round[s.round][s.src] = s.message
    found = [models[first]]
    gradients: list[list[LoggedMessage]] = []
    for t in range(first, first + most):
        if len(by_round[t]) < plan.graph.nodes - 1 or t + 1 not in models:
            break
        gradients.append(list(by_round[t].values()))
        found.append(models[t + 1])
    return found, gradients
