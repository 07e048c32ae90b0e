"""The rounds of a server that does not say which round it is in, and the ranks of its clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from leakaudit.capture.tap.exchanges.arrays import SERVER

Client = int | str  # what the program calls a client


@dataclass
class Conversation:
    """The rounds and ranks of a server's messages."""

    # what the program calls a client -> its partition; empty outside a simulation
    partitions: dict[Client, int] = field(default_factory=dict)
    # what the program calls a client -> rank, for clients without a known partition
    ranks: dict[Client, int] = field(default_factory=dict)
    round: int = 0
    answered: bool = True  # whether a reply has arrived in this round
    # clients that were asked to train in this round
    asked: set[Client] = field(default_factory=set)

    def rank(self, node: Client, known: Iterable[Client] = ()) -> int:
        """Return the rank of a client: by its partition, else in the order of the names."""
        if node in self.partitions:
            return SERVER + 1 + self.partitions[node]
        if node not in self.ranks:
            for other in sorted({node, *known}, key=_order):
                self.ranks.setdefault(other, SERVER + 1 + len(self.ranks))
        return self.ranks[node]

    def begin(self, node: Client, noted: int | None) -> int:
        """Return the round of a training instruction.

        If no round is noted, one begins when a client is asked after an answer, or a second time.

        Args:
            noted: the round in the instruction; None if it says none.
        """
        if noted is None:
            begins = self.answered or node in self.asked
            noted = self.round + 1 if begins else self.round
        if noted != self.round:
            self.asked.clear()
        self.round = noted
        self.answered = False
        self.asked.add(node)
        return self.round


def _order(node: Client) -> tuple[int, str]:
    """Return a key that puts 2 before 10, and site-2 before site-10."""
    text = str(node)
    return len(text), text
