"""Messages in terms of a protocol: nodes, rounds, kinds, senders and receivers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakaudit.capture.tap.description import Description
from leakaudit.capture.tap.streams import LoggedMessage
from leakaudit.trace import Graph


@dataclass(frozen=True)
class Sent:
    """One message in terms of the protocol.

    Attributes:
        round: the round in which it was sent.
        src: node that sent it.
        dst: all nodes that receive it.
        kind: its name in the protocol.
        message: the message in the log.
    """

    round: int
    src: int
    dst: tuple[int, ...]
    kind: str
    message: LoggedMessage


@dataclass(frozen=True)
class Missing:
    """Messages of a channel that were not sent in some rounds.

    Attributes:
        src: node that should have sent them.
        dst: node that should have received them.
        kind: their name in the protocol.
        first: the first of the rounds.
        last: the last of the rounds.
    """

    src: int
    dst: int
    kind: str
    first: int
    last: int


@dataclass(frozen=True)
class ArrangedLog:
    """The contents of a log, ready to be written as a trace.

    Attributes:
        description: the description of the program's messages.
        graph: the graph of the nodes that exchange messages.
        sent: all messages.
        start: the common initial model (d,); None if it was not observed.
        rounds: number of the last round.
        missing: messages that were never sent in the rounds up to `rounds`.
        left_out: reason -> number of messages without payload.
        notes: remarks for the reader of the trace.
        optional_senders: nodes that need not send.
        asks: whether the server asks some of the clients in each round; only they answer.
    """

    description: Description
    graph: Graph
    sent: tuple[Sent, ...]
    start: Tensor | None
    rounds: int
    missing: tuple[Missing, ...] = ()
    left_out: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    optional_senders: frozenset[int] = frozenset()
    asks: bool = False

    @property
    def slices(self) -> list[slice]:
        """The position of each parameter of a message in the model's vector."""
        layout = self.description.task.layout
        return [layout.slices[name] for name in self.description.order or layout.names]


def receivers(message: LoggedMessage, nodes: int) -> tuple[int, ...]:
    """Return the nodes that receive a message.

    Args:
        message: a message with nodes as ranks.
        nodes: number of nodes.
    """
    if message.dst is not None:
        return (message.dst,)
    return tuple(j for j in range(nodes) if j != message.src)


def round_of(message: LoggedMessage, start: int) -> int:
    """Return the round of a message: as noted by the program, or from its position on the channel.

    Args:
        message: a message of the log.
        start: round of the first message of a channel.
    """
    noted = message.note("round")
    if type(noted) is int and 0 <= noted < 1 << 31:
        return noted
    return message.index + start


def common(plan: ArrangedLog, starts: Sequence[LoggedMessage]) -> Tensor | None:
    """Return the initial model (d,) common to all nodes.

    Args:
        plan: the plan, with the positions of the parameters.
        starts: the messages with the initial models.

    Returns:
        The model; None if the models differ, or if no payload was kept.
    """
    values = (message.value(plan.slices) for message in starts if message.kept)
    first = next(values, None)
    if first is None or not all(torch.equal(first, value) for value in values):
        return None
    return first
