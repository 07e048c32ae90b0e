"""Messages in terms of a protocol: nodes, rounds, kinds, senders and receivers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakaudit.capture.tap.log.layers import NOTE
from leakaudit.capture.tap.messages.description import MessageDescription
from leakaudit.capture.tap.messages.layouts import ParameterPlace
from leakaudit.capture.tap.messages.streams import LoggedMessage
from leakaudit.core.errors import LeakauditError
from leakaudit.core.evidence import Evidence
from leakaudit.core.trace import Graph


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
class MissingMessages:
    """Messages of a channel that were not sent in some rounds."""

    src: int  # node that should have sent them
    dst: int  # node that should have received them
    kind: str  # their name in the protocol
    first: int
    last: int


@dataclass(frozen=True)
class ArrangedLog:
    """The contents of a log, ready to be written as a trace."""

    description: MessageDescription  # the description of the program's messages
    graph: Graph  # the graph of the nodes that exchange messages
    sent: tuple[ProtocolMessage, ...]
    start: Tensor | None  # the common initial model (d,); None if it was not observed
    rounds: int  # number of the last round
    missing: tuple[
        MissingMessages, ...
    ] = ()  # messages that were never sent in the rounds up to `rounds`
    # reason -> number of messages without payload
    left_out: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # remarks for the reader of the trace
    optional_senders: frozenset[int] = frozenset()  # nodes that need not send
    # whether the server asks some of the clients in each round; only they answer
    asks: bool = False
    evidence: tuple[Evidence, ...] = ()  # where the payload and the constants come from
    # the columns for the trace; None for the longest run that all messages contain
    run: tuple[int, int] | None = None

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
        """The columns for the trace."""
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
        """Return the names of the parameters in a run of columns.

        Args:
            columns: its first column, and the first one after it.
        """
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
    if type(noted) is int and 0 <= noted < 1 << 31:
        return noted
    return message.index + start


def common(plan: ArrangedLog, starts: Sequence[LoggedMessage]) -> Tensor | None:
    """Return the initial model (d,) common to all nodes.

    Returns:
        The model; None if the models differ or are incomplete, or if no payload was kept.
    """
    if any(message.covers for message in starts):
        return None
    values = (message.value(plan.slices) for message in starts if message.kept)
    first = next(values, None)
    if first is None or not all(torch.equal(first, value) for value in values):
        return None
    return first
