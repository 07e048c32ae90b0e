"""CHOCO-SGD: nodes exchange compressed updates of public copies xh of their models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols.blocks import blocks
from leakaudit.protocols.consensus import Mixing
from leakaudit.protocols.local import LocalSteps, Steps, above, least
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Form, Relations, decimal

# Koloskova, Stich and Jaggi 2019, Algorithm 2, with Metropolis weights; xh = 0 at the start:
#
#     h_i  <- w_i - alpha g_i(w_i)
#     q_i   = Q(h_i - xh_i)                                is sent
#     xh_i <- xh_i + q_i
#     w_i  <- h_i + gamma sum_j W_ij (xh_j - xh_i)
#
# Q keeps the largest coordinates (top), the same number of random coordinates (random), the same
# random coordinates at all nodes and in all rounds (fixed, partial sharing of a model), rounds to
# multiples of a cell (quantize), or leaves the vector unchanged (none). The part that Q omits, r =
# h - xh - q, is zero on every coordinate that was kept, and the positions of these coordinates are
# public. Between two rounds that keep a coordinate, the sum of its gradients is therefore
# determined exactly.

HIDES = (
    "every message holds only some coordinates; "
    "on these, attacks read the sums of the gradients between two messages"
)


@victim("choco")
@dataclass(frozen=True)
class Choco(SimulatedVictim):
    """Decentralised gradient descent with compressed messages."""

    paper: ClassVar[str] = "Koloskova, Stich and Jaggi 2019, Algorithm 2 (CHOCO-SGD)"
    sends: ClassVar[Mapping[str, str]] = {
        "q": "compressed change of a node's model since its last message",
    }
    leaks_what: ClassVar[str] = (
        "for every coordinate, the sum of the gradients between two rounds that send it "
        "(with fixed, every gradient on the same coordinates); "
        "with quantize, every gradient up to the cell width"
    )
    separable: ClassVar[bool] = True
    regular: ClassVar[bool] = True
    step_size: ClassVar[str] = "alpha"

    alpha: float = param(0.1, "step size", "eta")
    slow: float = param(0.0, "step size of round t is alpha / (1 + slow (t - 1))")
    gamma: float = param(0.2, "consensus step", "gamma")
    compress: Literal["top", "random", "fixed", "quantize", "none"] = param(
        "top", "compression", "Q"
    )
    share: float = param(
        0.2, "fraction of the coordinates that top, random and fixed keep (at least one)", "k / d"
    )
    cell: float = param(0.001, "cell width of compress=quantize", "Delta")

    def __post_init__(self) -> None:
        above("choco", alpha=self.alpha, gamma=self.gamma, share=self.share, cell=self.cell)
        least("choco", slow=self.slow)
        if self.share > 1 or self.gamma > 1:
            raise LeakauditError(
                f"choco: expected share <= 1 and gamma <= 1, got {self.share} and {self.gamma}"
            )

    @property
    def stationary(self) -> bool:
        """All rounds have the same relations if the step is constant."""
        return not self.slow

    def chosen(self, size: int, generator: Generator) -> Tensor | None:
        """Return which coordinates (size,) of compress=fixed are sent; None for the others."""
        if self.compress != "fixed":
            return None
        sent = torch.zeros(size, dtype=torch.bool)
        sent[torch.randperm(size, generator=generator)[: self._kept(size)]] = True
        return sent

    def _kept(self, size: int) -> int:
        return max(1, round(self.share * size))

    def compressed(self, v: Tensor, generator: Generator, fixed: Tensor | None = None) -> Tensor:
        """Return Q of every row.

        Args:
            v: Differences of models and copies, (N, d); may be overwritten.
            fixed: The coordinates (d,) of compress=fixed.
        """
        if self.compress == "none":
            return v
        if self.compress == "quantize":
            return v.div_(self.cell).round_().mul_(self.cell)
        if fixed is not None:
            return v.mul_(fixed.to(v.device))
        kept = self._kept(v.shape[1])
        if self.compress == "top":
            rank = v.abs()
        else:
            rank = torch.rand(v.shape, generator=generator).to(v.device)
        chosen = rank.topk(kept, dim=1).indices
        return torch.zeros_like(v).scatter_(1, chosen, v.gather(1, chosen))

    def train(self, sim: Simulation) -> None:
        """Train; the generator draws the coordinates of compress=random and fixed."""
        mix = Mixing(sim.graph)
        local = LocalSteps(Steps(self.alpha, slow=self.slow), sim)
        w = sim.begin(sim.common)
        copy = torch.zeros_like(w)
        change = torch.empty_like(w)
        fixed = self.chosen(w.shape[1], sim.generator)
        for t in sim.rounds:
            half = local(t, w)
            torch.sub(half, copy, out=change)
            copy.add_(sim.send(t, "q", self.compressed(change, sim.generator, fixed)))
            for part in blocks(w):
                apart = mix(copy[:, part]).sub_(copy[:, part])
                torch.add(half[:, part], apart, alpha=self.gamma, out=w[:, part])
            sim.end(t, w)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the local steps and the copies.

        Rounding to a cell is declared as an error of the channel; the other compressions are
        declared with the omitted vector r.
        """
        p = Relations(graph)
        mix = Mixing(graph)
        gamma = decimal(self.gamma)
        steps = Steps(self.alpha, slow=self.slow)
        # The rounding error is uniform on up to half a cell: variance cell^2 / 12.
        std = self.cell / 12**0.5 if self.compress == "quantize" else 0.0
        nodes = range(graph.nodes)
        w = dict.fromkeys(range(graph.nodes), p.public("w0"))
        copy: dict[int, Form] = dict.fromkeys(nodes, 0)
        for _ in p.rounds(rounds):
            half = {}
            new = {}
            for i, near in enumerate(graph.neighbours):
                half[i] = steps.declare(p, i, w[i])
                change = half[i] - copy[i]
                if self.compress in ("quantize", "none"):
                    q = p.send(i, near, change, "q", std=std)
                else:
                    left = p.state("r", i)
                    p.opaque(left, of=[change], hides=HIDES)
                    q = p.send(i, near, change - left, "q")
                    p.omit(left, q)
                new[i] = q
                if p.round > 1:
                    new[i] = p.state("xh", i, eq=q + copy[i])
            w = {}
            for i in nodes:
                apart = mix.declared(i, new) - new[i]
                w[i] = p.state("w", i, eq=half[i] + gamma * apart)
            copy = dict(new)
        return p
