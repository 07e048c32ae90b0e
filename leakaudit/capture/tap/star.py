"""Arrange the messages of a protocol with a server: a rank that gets what the others send, or the sum that all ranks compute together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from leakaudit.capture.tap.arranged import Plan, Sent, common, round_of
from leakaudit.capture.tap.description import Description
from leakaudit.capture.tap.streams import POINT, Message
from leakaudit.errors import LeakauditError
from leakaudit.trace import Graph

UP = ("ddp", "allreduce", "reduce", "gather", "allgather", "send", "recv")
DOWN = ("model", "broadcast", "scatter", "send", "recv")
SGD, LOOKED_AT = 1e-3, 3  # miss of w - lr mean g, relative to the move; rounds that are looked at


@dataclass(frozen=True)
class _Roles:
    """Which rank is the server, None where none is; place: rank -> node of the others; the server is the last node."""

    server: int | None
    place: Mapping[int, int]

    @property
    def hub(self) -> int:
        return len(self.place)

    @property
    def note(self) -> list[str]:
        """What a reader must know of the nodes' names."""
        if self.server is None:
            return [
                f"node {self.hub} is no process: it stands for the sum that all ranks compute; what a rank contributes is heard at it"
            ]
        if self.server == self.hub:
            return []
        return [
            f"node {self.hub} is rank {self.server}, the server; the other nodes are ranks {', '.join(map(str, self.place))}"
        ]


def star(description: Description, found: Sequence[Message], ranks: int) -> Plan:
    """Arrange messages; raises LeakauditError where the server that is named is none of the ranks."""
    roles = _roles(description, found, ranks)
    graph = Graph(roles.hub + 1, tuple((n, roles.hub) for n in range(roles.hub)))
    down, up = _directions(description, graph)
    sent, models = list[Sent](), list[Message]()
    for m in found:
        if m.src != roles.server and m.op in UP and m.dst in (None, roles.server):
            sent.append(Sent(round_of(m, 1), roles.place[m.src], (roles.hub,), up, m))
        elif m.op in DOWN and (m.src == roles.server or roles.server is None):
            models.append(m)
    bare = Plan(description, graph, (), None, 0)
    start = common(bare, [m for m in models if m.index == 0])
    for m in models if any(m.index for m in models) else ():
        to = tuple(range(roles.hub)) if m.dst is None else (roles.place[m.dst],)
        sent.append(Sent(round_of(m, 1), roles.hub, to, down, m))
    arranged = replace(
        bare, sent=tuple(sent), start=start, notes=tuple(roles.note), quiet=frozenset({roles.hub})
    )
    return _with_step(arranged, down, up) if description.protocol == "fedsgd" else arranged


def _roles(description: Description, found: Sequence[Message], ranks: int) -> _Roles:
    server, point = description.server, [m for m in found if m.op in POINT and m.dst is not None]
    if server is None and point:
        best = Counter(m.dst for m in point).most_common(1)[0][0]
        server = best if all(best in (m.src, m.dst) for m in point) else None
        if server is None:
            raise LeakauditError(
                f"{description.protocol} has a server, and ranks send to several others; name its rank: [messages] server = 0"
            )
    if server is not None and not 0 <= server < ranks:
        raise LeakauditError(
            f"messages.server: there is no rank {server}, the program had ranks 0 to {ranks - 1}"
        )
    return _Roles(server, {r: n for n, r in enumerate(r for r in range(ranks) if r != server)})


def _directions(description: Description, graph: Graph) -> tuple[str, str]:
    """Return the kinds that travel down from the server and up to it."""
    ways = defaultdict[bool, list[str]](list)
    for v in description.victim.relations(graph, 2, {}).vectors:
        if v.kind == "message" and v.round:
            ways[v.owner == graph.nodes - 1].append(v.name)
    return ways[True][0], ways[False][0]


def _with_step(plan: Plan, down: str, up: str) -> Plan:
    """Check that the models move by w - lr mean g, or say that how they move is not known, so that nothing is derived from it."""
    params, hub = dict(plan.description.params), plan.graph.nodes - 1
    if "server" in params:
        return plan
    lr, miss = _step(plan, down, up, hub)
    said = params.get("lr")
    if miss < SGD and (said is None or abs(said - lr) <= 1e-3 * lr):
        params["lr"] = said or lr
        return replace(plan, description=replace(plan.description, params=params))
    note = (
        []
        if miss == float("inf")
        else ["the models do not move by w - lr mean g: another optimiser, or another lr"]
    )
    params["server"] = "unknown"
    return replace(
        plan, description=replace(plan.description, params=params), notes=(*plan.notes, *note)
    )


def _step(plan: Plan, down: str, up: str, hub: int) -> tuple[float, float]:
    """Return lr in few digits, and the relative miss of w - lr mean g; infinite where the messages do not show both."""
    models = {s.round: s.message for s in plan.sent if s.kind == down and s.message.kept}
    sums: dict[int, dict[int, Tensor]] = defaultdict(dict)
    shown: list[tuple[Any, Any]] = []
    for s in plan.sent:
        if (
            s.kind == up
            and s.message.kept
            and s.round in models
            and s.round + 1 in models
            and s.round <= LOOKED_AT + min(models)
        ):
            sums[s.round][s.src] = s.message.value(plan.slices).double() * plan.description.scale
    for t, parts in islice(((t, p) for t, p in sorted(sums.items()) if len(p) == hub), LOOKED_AT):
        moved = models[t].value(plan.slices).double() - models[t + 1].value(plan.slices).double()
        shown.append((moved, torch.stack(list(parts.values())).mean(0)))
    if not shown:
        return 0.0, float("inf")
    moved, mean = (torch.cat(column) for column in zip(*shown, strict=True))
    lr = float(moved @ mean / (mean @ mean).clamp_min(1e-300))
    miss = float((moved - lr * mean).norm() / moved.norm().clamp_min(1e-300))
    return next(
        v
        for n in range(1, 17)
        if abs((v := float(f"{lr:.{n}g}")) - lr) <= max(miss, 1e-9) * abs(lr) or n == 16
    ), miss
