"""Victims: protocols that can be run, and that declare their relations and claims."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Generator, Tensor

from leakaudit.core.claim import Claim as Claim  # plug-ins import both from here
from leakaudit.core.errors import check_methods
from leakaudit.core.trace import Graph, Setting

if TYPE_CHECKING:
    from leakaudit.core.adversary import View
    from leakaudit.protocols.dual_constants import ComputedConstants
    from leakaudit.tasks.task import Problem, Task
    from leakaudit.theory.relations import Relations, Turns
    from leakaudit.traces.recorder import Recorder

# Number of rounds that are declared to count the messages of a protocol with uniform rounds. The
# second and the third are compared: the initial phase of a protocol ends before the second (NIDS,
# for example, sends nothing in round 1 and sends in every later round).
FEW = 3


class Victim(ABC):
    """Base class of victims; a subclass is a frozen dataclass of the protocol's constants.

    It must define `run` and `relations`. Everything else has a default.

    Attributes:
        paper: The protocol's source.
        sends: Its kinds of messages, each with its content in a few words.
        leaks_what: What leaks, in a few words, for tables.
        claims_what: What the paper claims, in a few words, for tables; `claims` has the numbers.
        centralised: Whether the protocol runs on a star with the server as the last node, which
            has no data.
        separable: Whether nodes can run in separate processes, because `Recorder.exchange` returns
            everything that a node uses from other nodes.
        regular: Whether every round from the third on sends as many messages as the round before,
            even if its coefficients differ. A `stationary` protocol counts as regular.
        noise_constant: Name of the constant that scales all its noise, if it has one of this name:
            an ``epsilon`` of a scenario sets it.
        noiseless: The constants without noise, if that is not `noise_constant` = 0.
    """

    paper: ClassVar[str] = "unpublished"
    sends: ClassVar[Mapping[str, str]] = {}
    leaks_what: ClassVar[str] = "what its relations determine"
    claims_what: ClassVar[str] = "nothing"
    centralised: ClassVar[bool] = False
    separable: ClassVar[bool] = False
    regular: ClassVar[bool] = False
    noise_constant: ClassVar[str] = "sigma"
    noiseless: ClassVar[Mapping[str, Setting]] = {}

    def __new__(cls, *_: object, **__: object) -> Self:
        """Reject a class that does not define all abstract methods."""
        check_methods(cls, "victim", "run and relations")
        return super().__new__(cls)

    @classmethod
    def computed(cls, view: View, unknown: frozenset[str]) -> ComputedConstants | None:
        """Compute constants that an adversary does not know from the messages that it observes.

        Args:
            view: What the adversary observes, and which constants it knows.
            unknown: Names of those that it does not know.

        Returns:
            Their values, and what is not determined with the reason. None, the default, if no
            formula for the protocol's constants is known.
        """
        return None

    @property
    def stationary(self) -> bool:
        """Whether every round, after the first few, has the same relations.

        A few rounds of `relations` then represent all rounds. They must: if a value is handed on
        for many rounds before it is used, nothing in the first rounds shows it.
        """
        return False

    @property
    def silent(self) -> bool:
        """Whether its constants are `noiseless`."""
        off = self.noiseless.items()
        return bool(off) and all(getattr(self, name) == value for name, value in off)

    @property
    def l1_weight(self) -> float:
        """Weight of the l1 norm in the objective, 0 for none."""
        return float(getattr(self, "l1", 0.0))

    def turns(self, rounds: int) -> Turns | None:
        """Return which gradients of a node one record can enter.

        Args:
            rounds: Length of the run.

        Returns:
            One block for each pass over the node's records. A block contains, for each position in
            the pass, the gradients that the record at this position enters, counted from 0 in the
            order in which `relations` declares the gradients of the node. The order counts as
            public. None if a record enters all gradients, or if this is unknown.
        """
        return None

    def fits(self, task: Task, graph: Graph, samples: int) -> None:  # noqa: B027, it is optional
        """Check that the constants suit the scenario; nothing has been drawn yet.

        Args:
            task: The model and its loss.
            graph: The network.
            samples: Number of records per node.

        Raises:
            LeakauditError: They do not.
        """

    def messages(self, graph: Graph, rounds: int, wires: Iterable[tuple[int, int]]) -> int:
        """Count the messages of a recording, to size its file before the run.

        The default counts the messages that `relations` declares. Override it only if the number
        depends on a schedule: the file is sized before the schedule is drawn, so return the largest
        possible number. Unused space is released.

        Args:
            graph: The network.
            rounds: Length of the run.
            wires: Undirected edges (i, j), i < j, that are recorded in both directions.

        Returns:
            The number of messages on these edges.
        """
        recorded = {arc for i, j in wires for arc in ((i, j), (j, i))}
        if not recorded:
            return 0
        declared = rounds
        if self.regular or self.stationary:
            declared = min(rounds, FEW)
        counts = self._declared_messages(graph, declared, recorded)
        if declared < rounds and counts[-1] != counts[-2]:  # the initial phase is longer
            declared = rounds
            counts = self._declared_messages(graph, rounds, recorded)
        return sum(counts) + (rounds - declared) * counts[-1]

    def _declared_messages(
        self, graph: Graph, rounds: int, recorded: Collection[tuple[int, int]]
    ) -> list[int]:
        """Return the number of declared messages on recorded channels, for rounds 0 to `rounds`."""
        # Neither the model nor the schedule has been drawn. Their values do not matter: at most the
        # length of w0 is used, for the scale of some noise.
        public = {"w0": torch.zeros(1), **self.schedule(graph, rounds, Generator().manual_seed(0))}
        counts = [0] * (rounds + 1)
        for vector in self.relations(graph, rounds, public).vectors:
            if vector.kind != "message":
                continue
            if vector.dst is None:  # on a public board, once for all readers
                counts[vector.round] += 1
                continue
            for receiver in vector.dst:
                counts[vector.round] += (vector.owner, receiver) in recorded
        return counts

    def schedule(self, graph: Graph, rounds: int, generator: Generator) -> Mapping[str, Tensor]:
        """Draw the public schedule of the run, for example which node is active when.

        Args:
            graph: The network.
            rounds: Length of the run.
            generator: Source of randomness.

        Returns:
            Tensors by name; `run` and `relations` receive them with the public tensors.
        """
        return {}

    def began(self, task: Task) -> Mapping[str, Tensor]:
        """Return public tensors at the start, by name, that depend on the model but not on w0."""
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
        """Train, and record the messages on some channels.

        Private vectors are passed to `recorder.state` under the names that `relations` gives them,
        (N, d) per round, so that the declaration can be checked on a run.

        Args:
            problem: The task and the data of every node.
            graph: The network.
            rounds: Length of the run.
            recorder: Receives the messages and states.
            generator: Source of randomness, on the CPU.
            wires: Undirected edges (i, j), i < j, that are recorded.
        """

    @abstractmethod
    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the protocol; messages have the round, ends and kind of the recorded ones.

        Args:
            graph: The network.
            rounds: Length of the run.
            public: Public tensors of the trace; only a schedule and the length of ``w0`` are used.

        Returns:
            The relations between all vectors of the run.
        """

    def claims(
        self, graph: Graph, rounds: int, public: Mapping[str, Tensor] | None = None
    ) -> tuple[Claim, ...]:
        """Return what the paper claims about this protocol with these constants.

        Args:
            graph: The network.
            rounds: Length of the run.
            public: Public tensors of the trace, if a claim depends on its schedule; None stands
                for the schedule with the weakest claim.

        Returns:
            The claims; none by default.
        """
        return ()
