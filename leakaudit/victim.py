"""What a victim is: a protocol that can be run on a problem, and that declares its relations and its paper's claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from torch import Generator, Tensor

from leakaudit.trace import Graph

if TYPE_CHECKING:
    from leakaudit.relations import Relations, Turns
    from leakaudit.tasks.task import Problem, Task
    from leakaudit.traces.recorder import Recorder


@dataclass(frozen=True)
class Claim:
    """What a paper promises of its protocol at these constants.

    source: paper and theorem. promise: one sentence. epsilon, delta: of differential privacy, None where it promises none.
    adjacency: what two neighbouring data sets differ in. std: the noise that the theorem asks for, per coordinate. rounds: up to
    which it holds. assumes: what the theorem takes for granted. sensitivity: how far one gradient of a node moves in Euclidean norm
    between neighbours, as the theorem assumes, None where it does not say. sampled: whether a record takes part in some gradients
    alone, drawn in secret. met: whether the noise of these constants is what it asks for. pair: (v, u) where it is about what node v
    sees of node u alone.
    """

    source: str
    promise: str
    epsilon: float | None = None
    delta: float | None = None
    adjacency: str = ""
    std: float | None = None
    rounds: int | None = None
    assumes: tuple[str, ...] = ()
    sensitivity: float | None = None
    sampled: bool = False
    met: bool = True
    pair: tuple[int, int] | None = None


class Victim(Protocol):
    """A frozen dataclass of the protocol's constants; subclass it.

    paper: its source. leaks_what, claims_what: a few words for tables; `claims` has the figures.
    centralised: runs on a star whose server is the last node, which holds no data. separable: whether nodes may live in processes of
    their own, because all that a node uses of others comes out of `Recorder.exchange`.
    """

    paper: ClassVar[str]
    leaks_what: ClassVar[str]
    claims_what: ClassVar[str] = "nothing"
    centralised: ClassVar[bool] = False
    separable: ClassVar[bool] = False

    @property
    def stationary(self) -> bool:
        """Whether every round, after the first few, has the same relations, so that a few rounds of `relations` stand for all."""
        return False

    def turns(self, rounds: int) -> Turns | None:
        """Return which gradients of a node one record can enter over so many rounds, None if it enters all, or if that is not known.

        One block for each pass over the node's records; in it, for each place in the order, the gradients (counted from 0, as
        `relations` declares the node's) that the record at this place enters. The order counts as known to everybody.
        """
        return None

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Raise LeakauditError where the constants do not fit the model, the graph or the records of a node; nothing is drawn yet."""

    def messages(self, graph: Graph, rounds: int, wires: Iterable[tuple[int, int]]) -> int:
        """Count the messages of a recording of these wires (undirected edges), to size the file before the run."""

    def schedule(self, graph: Graph, rounds: int, generator: Generator) -> Mapping[str, Tensor]:
        """Draw what everybody sees of the run's order, such as who is active when, for `run` and `relations` to find among public."""
        return {}

    def run(
        self,
        problem: Problem,
        graph: Graph,
        rounds: int,
        recorder: Recorder,
        generator: Generator,
        wires: Iterable[tuple[int, int]],
    ) -> None:
        """Train for `rounds` rounds and record what travels on `wires`.

        Private vectors are offered to `recorder.state` under the names that `relations` gives them, (N, d) a round, so that a
        declaration can be checked on a run.
        """

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the protocol: every message bears the round, ends and kind with which it is recorded.

        public: tensors of the trace; only a `schedule` is read from them.
        """

    def claims(
        self, graph: Graph, rounds: int, public: Mapping[str, Tensor] | None = None
    ) -> tuple[Claim, ...]:
        """Return what the paper promises of this protocol at these constants.

        public: tensors of the trace, where a promise depends on its schedule; without them it is the weakest of all schedules.
        """
        return ()
