"""What a victim is: a protocol that can be run, and that declares its relations and claims."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Generator, Tensor

from leakaudit.claim import Claim as Claim  # plug-ins import both from here
from leakaudit.errors import check_methods
from leakaudit.trace import Graph

if TYPE_CHECKING:
    from leakaudit.relations import Relations, Turns
    from leakaudit.tasks.task import Problem, Task
    from leakaudit.traces.recorder import Recorder

# Rounds that are declared to count the messages of a protocol whose rounds are alike. The second
# and the third are compared: the start of a protocol ends before the second (NIDS, for example, is
# silent in round 1 and sends in every later round).
FEW = 3


class Victim(ABC):
    """Base class of victims; a subclass is a frozen dataclass of the protocol's constants.

    It must define `run` and `relations`. Everything else has a default.

    Attributes:
        paper: The protocol's source.
        leaks_what: A few words on what leaks, for tables.
        claims_what: A few words on what the paper promises, for tables; `claims` has the figures.
        centralised: Whether the protocol runs on a star whose last node is the server, which holds
            no data.
        separable: Whether nodes may live in processes of their own, because `Recorder.exchange`
            returns all that a node uses of other nodes.
        regular: Whether every round from the third on sends as many messages as the round before,
            even if its coefficients differ. A `stationary` protocol counts as regular.
    """

    paper: ClassVar[str] = "unpublished"
    leaks_what: ClassVar[str] = "what its relations determine"
    claims_what: ClassVar[str] = "nothing"
    centralised: ClassVar[bool] = False
    separable: ClassVar[bool] = False
    regular: ClassVar[bool] = False

    def __new__(cls, *_: object, **__: object) -> Self:
        """Refuse a class that does not define all abstract methods."""
        check_methods(cls, "victim", "run and relations")
        return super().__new__(cls)

    @property
    def stationary(self) -> bool:
        """Whether every round, after the first few, has the same relations.

        A few rounds of `relations` then stand for all.
        """
        return False

    def turns(self, rounds: int) -> Turns | None:
        """Return which gradients of a node one record can enter.

        Args:
            rounds: Length of the run.

        Returns:
            One block for each pass over the node's records. A block holds, for each place in the
            pass, the gradients that the record at this place enters, counted from 0 in the order in
            which `relations` declares the node's. The order counts as known to everybody. None if a
            record enters all gradients, or if that is not known.
        """
        return None

    def fits(self, task: Task, graph: Graph, samples: int) -> None:  # noqa: B027, it is optional
        """Check that the constants fit the scenario; nothing has been drawn yet.

        Args:
            task: The model and its loss.
            graph: Who talks to whom.
            samples: Records of a node.

        Raises:
            LeakauditError: They do not fit.
        """

    def messages(self, graph: Graph, rounds: int, wires: Iterable[tuple[int, int]]) -> int:
        """Count the messages of a recording, to size its file before the run.

        The default counts what `relations` declares. Override it only if the number depends on a
        schedule: the file is sized before the schedule is drawn, so return the largest possible
        number then. What is not used is not kept.

        Args:
            graph: Who talks to whom.
            rounds: Length of the run.
            wires: Undirected edges (i, j) that are recorded, i < j, in both directions.

        Returns:
            The number of messages on these wires.
        """
        recorded = {arc for i, j in wires for arc in ((i, j), (j, i))}
        if not recorded:
            return 0
        declared = rounds
        if self.regular or self.stationary:
            declared = min(rounds, FEW)
        counts = self._declared_messages(graph, declared, recorded)
        if declared < rounds and counts[-1] != counts[-2]:  # the start takes longer than that
            declared = rounds
            counts = self._declared_messages(graph, rounds, recorded)
        return sum(counts) + (rounds - declared) * counts[-1]

    def _declared_messages(
        self, graph: Graph, rounds: int, recorded: Collection[tuple[int, int]]
    ) -> list[int]:
        """Return how many declared messages of rounds 0 to `rounds` travel along recorded arcs."""
        # Neither the model nor the schedule has been drawn. Their values do not matter: at most the
        # length of w0 is read, for the spread of some noise.
        public = {"w0": torch.zeros(1), **self.schedule(graph, rounds, Generator().manual_seed(0))}
        counts = [0] * (rounds + 1)
        for vector in self.relations(graph, rounds, public).vectors:
            if vector.kind != "message":
                continue
            if vector.dst is None:  # on a public board, once for everybody
                counts[vector.round] += 1
                continue
            for receiver in vector.dst:
                counts[vector.round] += (vector.owner, receiver) in recorded
        return counts

    def schedule(self, graph: Graph, rounds: int, generator: Generator) -> Mapping[str, Tensor]:
        """Draw what everybody sees of the run's order, such as which node is active when.

        Args:
            graph: Who talks to whom.
            rounds: Length of the run.
            generator: Source of randomness.

        Returns:
            Tensors by name, which `run` and `relations` find among the public ones.
        """
        return {}

    @abstractmethod
    def run(
        self,
        problem: Problem,
        graph: Graph,
        rounds: int,
        recorder: Recorder,
        generator: Generator,
        wires: Iterable[tuple[int, int]],
    ) -> None:
        """Train, and record what travels on some wires.

        Private vectors are offered to `recorder.state` under the names that `relations` gives them,
        (N, d) a round, so that a declaration can be checked on a run.

        Args:
            problem: The task and every node's data.
            graph: Who talks to whom.
            rounds: Length of the run.
            recorder: What the messages and states go to.
            generator: Source of randomness, on the CPU.
            wires: Undirected edges (i, j) that are recorded, i < j.
        """

    @abstractmethod
    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the protocol; a message has the round, ends and kind with which it is recorded.

        Args:
            graph: Who talks to whom.
            rounds: Length of the run.
            public: Public tensors of the trace; a schedule and the length of ``w0`` are read.

        Returns:
            The relations between all vectors of the run.
        """

    def claims(
        self, graph: Graph, rounds: int, public: Mapping[str, Tensor] | None = None
    ) -> tuple[Claim, ...]:
        """Return what the paper promises of this protocol at these constants.

        Args:
            graph: Who talks to whom.
            rounds: Length of the run.
            public: Public tensors of the trace, if a promise depends on its schedule; None stands
                for the schedule for which the promise is weakest.

        Returns:
            The promises; none by default.
        """
        return ()
