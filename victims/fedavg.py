"""FedAvg with one local step: clients send models to a server, which averages them.

McMahan et al. 2017, Algorithm 1, E = 1, B = all. Round t: w down, w_i = w - lr grad f_i(w) up, w <- mean_i w_i.
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


@victim("fedavg")
@dataclass(frozen=True)
class FedAvg:
    """Local models travel up, their mean travels down."""

    paper: ClassVar[str] = "McMahan et al. 2017, Algorithm 1 (FedAvg)"
    leaks_what: ClassVar[str] = "every gradient, (w - w_i) / lr"
    centralised: ClassVar[bool] = True

    lr: float = param(0.1, "local step size", "eta")

    def messages(self, graph: Graph, rounds: int, wires: Iterable[tuple[int, int]]) -> int:
        """One down and one up a wire and round."""
        return 2 * len(list(wires)) * rounds

    def run(
        self, problem: Problem, graph: Graph, rounds: int, recorder: Recorder, generator: Generator, wires: Iterable[tuple[int, int]]
    ) -> None:
        """Train; the generator is not used, the run is deterministic given the start."""
        train(problem, graph, rounds, recorder, wires, "up", up=lambda w, g: w - self.lr * g, merge=lambda w, local: local.mean(0))

    def leaks(self, view: View, node: int, rounds: int) -> list[GradientLeak]:
        """Subtract what went up from what came down."""
        server, lr = view.graph.nodes - 1, float(view.constant("lr"))
        taken = round_trips(view, node, rounds, up="up", down="w")
        models = torch.stack([view.message(t, server, node, "w").double() for t in taken])
        value = (models - torch.stack([view.message(t, node, server, "up").double() for t in taken])) / lr
        return [
            plain_leak(
                view,
                node,
                taken,
                value,
                models,
                amplification=float(models.square().mean().sqrt()) / lr,
                formula="g(t) = (w(t) - w_i(t)) / lr",
            )
        ]
