"""The victim that a protocol file describes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from torch import Generator, Tensor

from leakaudit.core import registry
from leakaudit.core.errors import LeakauditError
from leakaudit.core.trace import Graph
from leakaudit.protocols.equations.declare import FileRelations, declare
from leakaudit.protocols.equations.definition import Definition
from leakaudit.protocols.equations.syntax import Symbol, expressions, parts
from leakaudit.protocols.victim import Victim
from leakaudit.theory.relations import Relations

if TYPE_CHECKING:
    from leakaudit.tasks.task import Problem, Task
    from leakaudit.traces.recorder import Recorder


@dataclass(frozen=True)
class TextProtocol(Victim):
    """A protocol that a text file describes; every file has a class of its own."""

    definition: ClassVar[Definition]
    regular: ClassVar[bool] = True

    @cached_property
    def stationary(self) -> bool:
        """All rounds have the same relations unless a number depends on the round."""
        for statement in self.definition.statements:
            for expression in expressions(statement):
                if any(isinstance(one, Symbol) and one.name == "t" for one in parts(expression)):
                    return False
        return True

    def declared(self, graph: Graph, rounds: int) -> FileRelations:
        """Declare the protocol, with the equation behind each relation."""
        return declare(self.definition, registry.values(self), graph, rounds)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the equations of the file."""
        return self.declared(graph, rounds).relations

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject every run."""
        raise LeakauditError(
            f"{self.definition.name}: a protocol file describes messages that a program sends, "
            "and cannot be run; record the program with 'leakaudit tap' or a Recorder"
        )

    def run(
        self,
        problem: Problem,
        graph: Graph,
        rounds: int,
        recorder: Recorder,
        generator: Generator,
        wires: Iterable[tuple[int, int]],
    ) -> None:
        """Reject every run; see `fits`."""
        self.fits(problem.task, graph, problem.samples)
