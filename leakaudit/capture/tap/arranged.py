"""Messages as a protocol names them: nodes, rounds, kinds, who sends what to whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakaudit.capture.tap.description import Description
from leakaudit.capture.tap.streams import Message
from leakaudit.trace import Graph


@dataclass(frozen=True)
class Sent:
    """One message as the protocol names it; dst: all who get it."""

    round: int
    src: int
    dst: tuple[int, ...]
    kind: str
    message: Message


@dataclass(frozen=True)
class Missing:
    """Messages of a wire that were not sent in the rounds first to last."""

    src: int
    dst: int
    kind: str
    first: int
    last: int


@dataclass(frozen=True)
class Plan:
    """What a log holds, ready to be written as a trace.

    start: the common initial model, None where it was not seen. missing: what was never sent in the rounds up to `rounds`.
    left_out: reason -> messages without payload. notes: what a reader of the trace should know. quiet: nodes that need not send.
    """

    description: Description
    graph: Graph
    sent: tuple[Sent, ...]
    start: Tensor | None
    rounds: int
    missing: tuple[Missing, ...] = ()
    left_out: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    quiet: frozenset[int] = frozenset()

    @property
    def slices(self) -> list[slice]:
        """Where each parameter of a message lies in the model's vector."""
        layout = self.description.task.layout
        return [layout.slices[n] for n in self.description.order or layout.names]


def receivers(message: Message, nodes: int) -> tuple[int, ...]:
    """Return who gets a message."""
    return (
        tuple(j for j in range(nodes) if j != message.src)
        if message.dst is None
        else (message.dst,)
    )


def round_of(message: Message, start: int) -> int:
    """Return its round: what the program said, else its place on the wire, counted from `start`."""
    said = message.note("round")
    return said if type(said) is int and 0 <= said < 1 << 31 else message.index + start


def common(plan: Plan, starts: Sequence[Message]) -> Tensor | None:
    """Return the model with which all began, None where they did not, or where it was not kept."""
    values = (m.value(plan.slices) for m in starts if m.kept)
    first = next(values, None)
    return first if first is not None and all(torch.equal(first, v) for v in values) else None
