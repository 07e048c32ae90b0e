"""A run of a protocol as its victim writes it: where it starts, what it sends, how a round ends."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator, Tensor

from leakaudit.core.progress import step
from leakaudit.core.trace import Graph
from leakaudit.protocols import measures
from leakaudit.protocols.local import stable
from leakaudit.protocols.victim import Victim
from leakaudit.traces.arcs import broadcast

if TYPE_CHECKING:
    from leakaudit.tasks.task import Problem, Task
    from leakaudit.traces.recorder import Recorder


class SimulatedVictim(Victim):
    """A victim that writes its run as a `Simulation`.

    Attributes:
        step_size: Name of the parameter that must not diverge on the task's l2 term; "" for none.
    """

    step_size: ClassVar[str] = ""

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject a step size that diverges on the task's l2 term."""
        if self.step_size:
            steps = {self.step_size: getattr(self, self.step_size)}
            stable(type(self).__name__.lower(), task, **steps)

    @abstractmethod
    def train(self, sim: Simulation) -> None:
        """Train and record; see `Victim.run`."""

    def run(
        self,
        problem: Problem,
        graph: Graph,
        rounds: int,
        recorder: Recorder,
        generator: Generator,
        wires: Iterable[tuple[int, int]],
    ) -> None:
        """Train, and record the messages on some channels."""
        self.train(Simulation(problem, graph, rounds, recorder, generator, wires))


class Simulation:
    """The nodes' models, exchanges and rounds of one run; a model (d,) is that of all nodes.

    Attributes:
        rounds: The rounds, from 1 on.
        w0: The common initial model, (d,).
    """

    def __init__(
        self,
        problem: Problem,
        graph: Graph,
        rounds: int,
        recorder: Recorder,
        generator: Generator,
        wires: Iterable[tuple[int, int]],
    ) -> None:
        self.problem = problem
        self.graph = graph
        self.recorder = recorder
        self.generator = generator
        self.wires = list(wires)
        self.rounds = range(1, rounds + 1)
        self.w0 = recorder.public["w0"].to(problem.x.device)
        self._arcs = broadcast(recorder, self.wires)
        self._clients = torch.tensor([client for client, _ in self.wires], dtype=torch.long)
        self._started = time.perf_counter()

    @property
    def common(self) -> Tensor:
        """A copy of the initial model for every node, (N, d)."""
        return self.w0.repeat(self.problem.nodes, 1)

    def begin(self, w: Tensor) -> Tensor:
        """Record the models before the first round, (N, d) or (d,), and return them."""
        self._keep(0, w)
        return w

    def end(self, t: int, w: Tensor, shown: Tensor | None = None, **vectors: Tensor) -> None:
        """End a round with the models (N, d) or (d,) that it leaves.

        Args:
            vectors: Further vectors whose norms are curves, (N, d) or (N, k, d).
        """
        self._keep(t, w)
        if self.recorder.keep_curves:
            passed = time.perf_counter() - self._started
            if self.observes(t):
                models = (w if shown is None else shown).view(-1, w.shape[-1])
                self._observe(t, models, vectors)
                self.recorder.curve("seconds", t, passed)
            self._started = time.perf_counter()
        self.recorder.end_round(t)
        step("recording", t, self.rounds.stop - 1)

    def observes(self, t: int) -> bool:
        """Return whether a round is a point of the curves, if there are curves."""
        against = self.problem.against
        every = against.every if against is not None else 1
        last = self.rounds.stop - 1
        return self.recorder.keep_curves and (t % every == 0 or t in (1, last))

    def _keep(self, t: int, w: Tensor) -> None:
        self.recorder.state("w", t, w.expand(self.problem.nodes, -1))

    def _observe(self, t: int, w: Tensor, vectors: dict[str, Tensor]) -> None:
        """Record the curves of a round: those of `measures`, and norms.

        ``norm_w`` and ``norm_NAME`` are root mean squares over nodes of Euclidean norms.
        """
        keep = self.recorder.curve
        for name, value in measures.of(self.problem, w):
            keep(name, t, value)
        for name, vector in {"w": w, **vectors}.items():
            keep(f"norm_{name}", t, float(vector.flatten(1).norm(dim=1).square().mean().sqrt()))

    def send(
        self,
        t: int,
        kind: str,
        values: Tensor,
        secure: bool = False,
        before: Tensor | None = None,
    ) -> Tensor:
        """Send every node's row of values (N, d) to all its neighbours.

        Each payload is stored once, for any number of recorded channels.

        Args:
            before: The neighbours' previous copy, (N, d), if they have one.

        Returns:
            The neighbours' new copy, (N, d).
        """
        instead = None if before is None else lambda: before
        return self.recorder.exchange(t, kind, values, self._arcs, secure, instead)

    # --- between clients and a server, the last node ----------------------------------------------

    def up(self, t: int, kind: str, values: Tensor, some: Tensor | None = None) -> None:
        """Send every client's row (N, d) to the server, or those (n, d) of some, ascending."""
        self._rows(t, kind, values, some, upward=True)

    def down(self, t: int, kind: str, values: Tensor, some: Tensor | None = None) -> None:
        """Send one vector (d,) to all clients or to some, or each its row (N, d)."""
        if values.dim() > 1:
            self._rows(t, kind, values, some, upward=False)
            return
        clients, _ = self._recorded(some)
        if len(clients):
            self.recorder.send(t, self.problem.nodes, clients.tolist(), kind, values)

    def _rows(
        self, t: int, kind: str, values: Tensor, some: Tensor | None, *, upward: bool
    ) -> None:
        clients, used = self._recorded(some)
        if not len(clients):
            return
        ends = (clients, torch.full_like(clients, self.problem.nodes))
        src, dst = ends if upward else ends[::-1]
        rows = self.recorder.send_many(t, src, dst, kind)
        self.recorder.kept.cut(values, rows, used)

    def _recorded(self, some: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the clients whose channels are recorded, and their positions among `some`."""
        if some is None:
            return self._clients, self._clients
        clients = self._clients[torch.isin(self._clients, some)]
        return clients, torch.searchsorted(some, clients)
