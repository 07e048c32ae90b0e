"""What a victim is: a protocol that can be run on a problem, and that says what a view of it determines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Protocol

from torch import Generator

from leakaudit.adversary import View
from leakaudit.leak import GradientLeak
from leakaudit.trace import Graph

if TYPE_CHECKING:
    from leakaudit.recorder import Recorder
    from leakaudit.task import Problem


class Victim(Protocol):
    """A frozen dataclass of the protocol's constants.

    paper: its source. leaks_what: one sentence for tables. centralised: runs on a star whose server is
    the last node, which holds no data.
    """

    paper: ClassVar[str]
    leaks_what: ClassVar[str]
    centralised: ClassVar[bool]

    def messages(self, graph: Graph, rounds: int, wires: Iterable[tuple[int, int]]) -> int:
        """Count the messages of a recording of these wires (undirected edges), to size the file before the run."""

    def run(
        self, problem: Problem, graph: Graph, rounds: int, recorder: Recorder, generator: Generator, wires: Iterable[tuple[int, int]]
    ) -> None:
        """Train for `rounds` rounds and record what travels on `wires`."""

    def leaks(self, view: View, node: int, rounds: int) -> list[GradientLeak]:
        """Return what the view determines of one node's gradients, from at most `rounds` rounds.

        Raises NotDetermined, with the reason, where it determines nothing.
        """
