"""FedSGD: clients send gradients to a server, which steps and sends the model back.

McMahan et al. 2017, Algorithm 1 with one full-batch step. Round t: w down, g_i = grad f_i(w) up, w <- w - lr mean_i g_i.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Generator

from leakaudit.adversary import View
from leakaudit.leak import GradientLeak
from leakaudit.progress import step
from leakaudit.registry import param, victim
from leakaudit.trace import Graph
from leakaudit.victims._server import broadcast, plain_leak, round_trips  # noqa: TID251 - shared by files of this folder alone

if TYPE_CHECKING:
    from leakaudit.recorder import Recorder
    from leakaudit.task import Problem


@victim("fedsgd")
@dataclass(frozen=True)
class FedSGD:
    """Gradients travel up, the model travels down."""

    paper: ClassVar[str] = "McMahan et al. 2017, Algorithm 1 (FedSGD)"
    leaks_what: ClassVar[str] = "every gradient, as it is sent"
    centralised: ClassVar[bool] = True

    lr: float = param(0.1, "step size of the server", "eta")

    def messages(self, graph: Graph, rounds: int, wires: Iterable[tuple[int, int]]) -> int:
        """One down and one up a wire and round."""
        return 2 * len(list(wires)) * rounds

    def run(
        self, problem: Problem, graph: Graph, rounds: int, recorder: Recorder, generator: Generator, wires: Iterable[tuple[int, int]]
    ) -> None:
        """Train; the generator is not used, the run is deterministic given the start."""
        clients, server = [i for i, _ in wires], graph.nodes - 1
        w = recorder.public["w0"].to(problem.x.device)
        for t in range(1, rounds + 1):
            recorder.state("w", t - 1, w.expand(server, -1))
            broadcast(recorder, t, server, clients, w)
            g = problem.task.gradients(w.expand(server, -1), problem.x, problem.y)
            if clients:
                recorder.send_many(t, torch.tensor(clients), torch.full((len(clients),), server), "g").copy_(
                    g[clients][:, slice(*recorder.columns)]
                )
            w = w - self.lr * g.mean(0)
            recorder.end_round(t)
            step("recording", t, rounds)

    def leaks(self, view: View, node: int, rounds: int) -> list[GradientLeak]:
        """Read the gradients off the wire, and the models where the way down is heard."""
        server = view.graph.nodes - 1
        taken = round_trips(view, node, rounds, up="g", down=None)
        models = (
            torch.stack([view.message(t, server, node, "w").double() for t in taken])
            if all(view.has(t, server, node, "w") for t in taken)
            else None
        )
        value = torch.stack([view.message(t, node, server, "g").double() for t in taken])
        return [plain_leak(view, node, taken, value, models, amplification=float(value.square().mean().sqrt()), formula="g(t) is sent")]
