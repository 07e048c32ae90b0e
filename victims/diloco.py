"""DiLoCo: many inner steps of AdamW, then one outer step with the mean of the changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph, Layout, Training
from leakaudit.protocols.local import LocalSteps, Steps, above, least
from leakaudit.protocols.optimiser import Optimiser, OptimiserState
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Expression, Relations, decimal

# Douillard et al. 2023, Algorithm 1. In round t the server sends w; every client takes H steps of
# AdamW from w, each with another mini-batch, and sends the pseudo-gradient d_i = w - w_i. The
# server takes a step of Nesterov momentum with the mean d of these:
#
#     b <- momentum b + d        w <- w - outer (d + momentum b)
#
# With `bits`, the numbers of each parameter are sent as multiples of max |d| / (2^(bits-1) - 1), as
# int8 with one scale for each parameter.
#
# What is linear: the server's model in all pseudo-gradients that it received. What is opaque: each
# pseudo-gradient, a function of the H gradients, the model and what AdamW keeps from earlier
# rounds, after rounding. No gradient follows from it, but a row of an embedding whose token did not
# occur has no gradient, so that AdamW only shrinks it (`attacks/tokens.py`).

HIDES = (
    "its optimiser divides each coordinate of a gradient by the size of the same coordinate in "
    "earlier ones, so that the sum of many steps hides every gradient"
)


@victim("diloco")
@dataclass(frozen=True)
class DiLoCo(SimulatedVictim):
    """Clients send what many steps of AdamW changed; the server takes a step with the mean."""

    paper: ClassVar[str] = "Douillard et al. 2023, Algorithm 1 (DiLoCo)"
    sends: ClassVar[Mapping[str, str]] = {
        "w": "model of the server",
        "d": "pseudo-gradient of a client: the model before its steps minus the one after them",
    }
    leaks_what: ClassVar[str] = "no gradient; of a model of texts, which tokens occurred"
    centralised: ClassVar[bool] = True
    stationary = True  # all rounds have the same relations
    step_size: ClassVar[str] = "lr"

    lr: float = param(0.001, "step size of the inner AdamW")
    inner: int = param(10, "inner steps per round", "H")
    batch: int = param(0, "records per inner step; 0 uses all")
    decay: float = param(0.01, "weight decay of the inner AdamW", "lambda")
    outer: float = param(0.7, "step size of the server")
    momentum: float = param(0.9, "Nesterov momentum of the server", "mu")
    bits: int = param(8, "bits of a number of a pseudo-gradient; 0 sends it without rounding")

    def __post_init__(self) -> None:
        above("diloco", lr=self.lr, inner=self.inner, outer=self.outer)
        least("diloco", batch=self.batch, decay=self.decay, momentum=self.momentum, bits=self.bits)
        if self.momentum >= 1:
            raise LeakauditError(f"diloco: expected momentum < 1, got {self.momentum:g}")
        if self.bits and not 2 <= self.bits <= 16:
            raise LeakauditError(f"diloco: expected bits = 0 or 2 to 16, got {self.bits}")
        if self.lr * self.decay >= 1:
            raise LeakauditError(
                "diloco: expected lr decay < 1 (from 1 on, the weight decay turns weights around), "
                f"got {self.lr * self.decay:g}"
            )

    @property
    def _outer(self) -> Optimiser:
        return Optimiser("sgd", self.momentum, nesterov=self.momentum > 0)

    def train(self, sim: Simulation) -> None:
        """Train; the generator draws the order of the mini-batches."""
        w = sim.begin(sim.w0)
        steps = Steps(
            self.lr, self.inner, self.batch, optimiser=Optimiser("adamw", decay=self.decay)
        )
        local = LocalSteps(steps, sim)
        memory = OptimiserState()
        for t in sim.rounds:
            models = w.expand(sim.problem.nodes, -1)
            sent = self.rounded(models - local(t, models), sim.problem.task.layout)
            sim.recorder.state("change", t, sent)
            sim.down(t, "w", w)
            sim.up(t, "d", sent)
            w = self._outer.step(memory, self.outer, w, sent.mean(0))
            sim.end(t, w)

    def rounded(self, change: Tensor, layout: Layout) -> Tensor:
        """Return pseudo-gradients as they are sent.

        Args:
            change: (N, d) the changes; overwritten.
        """
        if not self.bits:
            return change
        most = 2 ** (self.bits - 1) - 1
        for columns in layout.slices.values():
            part = change[:, columns]
            cell = part.abs().amax(1, keepdim=True) / most
            # A parameter without any change has no scale, and stays zero.
            cell[cell == 0] = 1
            part.div_(cell).round_().mul_(cell)
        return change

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the clients' changes, which are opaque, and the server's linear step."""
        p = Relations(graph)
        server = graph.nodes - 1
        memory: dict[int, Expression] = {}
        kept: dict[int, Expression] = {}
        w = p.public("w0")
        for _ in p.rounds(rounds):
            down = p.send(server, range(server), w, "w")
            sent = []
            for i in range(server):
                change = self._changed(p, i, down, kept)
                sent.append(p.send(i, server, change, "d"))
            mean = sum(sent[1:], start=sent[0]) / server
            moved = self._outer.declare(p, memory, server, down, mean, decimal(self.outer))
            w = p.state("w", server, eq=moved)
        return p

    def _changed(
        self, p: Relations, i: int, down: Expression, kept: dict[int, Expression]
    ) -> Expression:
        """Declare the inner steps of a client, and return what they changed, as it is sent."""
        model = down
        for k in range(1, self.inner + 1):
            inputs = [model, p.grad(i, at=model, index=k)]
            if i in kept:
                inputs.append(kept[i])
            kept[i] = p.state("m", i, k)
            p.opaque(kept[i], of=inputs[1:], hides=HIDES)
            model = p.state("w", i, k)
            p.opaque(model, of=inputs, hides=HIDES)
        change = p.state("change", i)
        p.opaque(change, of=[down, model])
        training = Training("adamw", self.inner, self.lr, self.decay, self.bits)
        p.trained(change, at=down, by=training)
        return change
