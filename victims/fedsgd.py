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
from leakaudit.registry import param, victim
from leakaudit.trace import Graph
from leakaudit.victims._server import plain_leak, round_trips, train  # noqa: TID251 - shared by files of this folder alone

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
        train(problem, graph, rounds, recorder, wires, "g", up=lambda w, g: g, merge=lambda w, g: w - self.lr * g.mean(0))

    def leaks(self, view: View, node: int, rounds: int) -> list[GradientLeak]:
        """Read the gradients off the wire, and the models where the way down is heard."""
        server = view.graph.nodes - 1
        taken = round_trips(view, node, rounds, up="g", down=None)
        down = [view.message(t, server, node, "w").double() for t in taken if view.has(t, server, node, "w")]
        models = torch.stack(down) if len(down) == len(taken) else None
        value = torch.stack([view.message(t, node, server, "g").double() for t in taken])
        return [plain_leak(view, node, taken, value, models, amplification=float(value.square().mean().sqrt()), formula="g(t) is sent")]
