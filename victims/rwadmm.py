"""Random-walk ADMM, Shah and Avrachenkov 2018: one active node at a time informs its neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols import admm_family as admm
from leakaudit.protocols.local import normal
from leakaudit.protocols.prox import exact, prox
from leakaudit.protocols.schedules import most_sent
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.protocols.walk import draw, read
from leakaudit.tasks.task import Problem, Task
from leakaudit.theory.relations import Relations, decimal
from leakaudit.traces.arcs import Arcs

# DERIVED: only the abstract of the paper was available (one node is updated per iteration, chosen
# by simulating a Markov chain). This is ADMM with edge variables and one active node i, verified to
# converge, with the number of messages that DP-RECAL's Table IV counts; B = +1 if i < j, else -1:
#
#     w_i     <- argmin f_i(w) + sum_j B z_{i|j}'w + rho E_i / 2 |w|^2  [+ n]
#     z_{j|i} <- (1 - theta) z_{j|i} + theta ( z_{i|j} + 2 rho B w_i )          to every neighbour j
#
# and z^0 = 0. The position of the noise in a private version is not known. Here n is state noise:
# w_i + n replaces w_i wherever the algorithm uses it, because noise only on the messages breaks the
# conservation law that defines the fixed point. update=gradient takes one step of size alpha
# instead.


@victim("rwadmm")
@dataclass(frozen=True)
class RWADMM(SimulatedVictim):
    """ADMM with one active node per round."""

    paper: ClassVar[str] = "Shah and Avrachenkov 2018 (RW-ADMM), derived from the abstract"
    sends: ClassVar[Mapping[str, str]] = {
        "z": "dual variable of a channel of the active node",
    }
    leaks_what: ClassVar[str] = "every gradient, -sum_j B z_{i|j} - rho E_i w_i, + rho E_i n"
    separable: ClassVar[bool] = True

    rho: float = param(0.5, "penalty of disagreement", "rho")
    theta: float = param(0.5, "averaging: 0.5 is ADMM, 1 is PDMM", "theta")
    update: Literal["exact", "gradient"] = param(
        "exact", "local update: exact (convex models only), or one gradient step"
    )
    alpha: float = param(0.1, "step size of update=gradient", "alpha")
    activation: Literal["walk", "iid"] = param(
        "walk", "next node: a neighbour (Markov chain), or any node"
    )
    sigma: float = param(0.0, "standard deviation of the noise on w; 0 adds none", "sigma")

    def __post_init__(self) -> None:
        if not (0 < self.theta <= 1 and self.rho > 0 and self.alpha > 0 and self.sigma >= 0):
            raise LeakauditError("rwadmm: expected 0 < theta <= 1, rho, alpha > 0 and sigma >= 0")

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject an exact update of a model that is not convex, and gradient steps that diverge."""
        if self.update == "exact":
            exact(task)
            return
        admm.own_steps("rwadmm", task, graph, self.alpha, self.rho)

    def messages(self, graph: Graph, rounds: int, wires: Iterable[tuple[int, int]]) -> int:
        """Count the recorded channels of the node that has the most, in every round.

        This is an upper bound for every schedule. If the nodes have different numbers of recorded
        channels, the exact number depends on the schedule.
        """
        return rounds * most_sent(wires, 1)

    def schedule(self, graph: Graph, rounds: int, generator: Generator) -> Mapping[str, Tensor]:
        """Draw the active nodes, ``active`` (rounds,)."""
        return {"active": draw(graph, rounds, generator, self.activation)}

    def train(self, sim: Simulation) -> None:
        """Train; z is stored for every arc, since any node may become active."""
        problem = sim.problem
        recorder = sim.recorder
        graph = sim.graph
        at = read(recorder.public, "active", len(sim.rounds))
        kept = {arc for i, j in sim.wires for arc in ((i, j), (j, i))}
        place = {arc: k for k, arc in enumerate(graph.arcs)}
        w = sim.begin(sim.common)
        bare = w.clone()  # w without its noise
        noise = torch.zeros_like(w)
        z = w.new_zeros(len(place), w.shape[1])  # z_{i|j}, held by i
        # For each node i: the positions of z_{i|j} and of z_{j|i}, the signs B, and the messages
        # to its neighbours.
        held = []
        across = []
        sign = []
        told = []
        for i, near in enumerate(graph.neighbours):
            held.append(torch.tensor([place[i, j] for j in near], device=w.device))
            across.append(torch.tensor([place[j, i] for j in near], device=w.device))
            sign.append(w.new_tensor([[1.0 if i < j else -1.0] for j in near]))
            ends = (torch.full((len(near),), i), torch.tensor(near))
            recorded = torch.tensor([(i, j) in kept for j in near])
            told.append(Arcs(*ends, torch.arange(len(near)), recorded))
        for t, i in zip(sim.rounds, at, strict=True):
            only = slice(i, i + 1)
            mine = z[held[i]]
            one = problem.of(only)
            pull = (sign[i] * mine).sum(0, keepdim=True)
            moved = self._move(one, w[only], pull, self.rho * graph.degree(i))
            if self.sigma:
                bare[i] = moved[0]
                noise[i] = normal(moved[0], self.sigma, sim.generator)
                moved = moved + noise[i]
            w[i] = moved[0]
            reflected = mine + 2 * self.rho * sign[i] * moved
            new = (1 - self.theta) * z[across[i]] + self.theta * reflected
            z[across[i]] = recorder.exchange(t, "z", new, told[i])
            recorder.state("v", t, bare)
            recorder.state("n", t, noise)
            sim.end(t, w, z=z)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the active node's update and its messages; other variables do not change."""
        p = Relations(graph)
        at = read(public, "active", rounds)
        rho = decimal(self.rho)
        theta = decimal(self.theta)
        alpha = decimal(self.alpha)
        w = dict.fromkeys(range(graph.nodes), p.public("w0"))
        z = dict.fromkeys(graph.arcs, 0 * w[0])
        for t in p.rounds(rounds):
            i = at[t - 1]
            near = graph.neighbours[i]
            sign = {j: 1 if i < j else -1 for j in near}
            push = rho * len(near)
            pull = sum((sign[j] * z[i, j] for j in near), start=0 * w[i])
            noise = p.noise("n", self.sigma, i) if self.sigma else 0 * w[i]
            if self.update == "exact":
                name = "v" if self.sigma else "w"
                w[i], _ = admm.declare_prox(p, i, push, -pull, name)
                if self.sigma:
                    w[i] = p.state("w", i, eq=w[i] + noise)
            else:
                slope = p.grad(i, at=w[i]) + pull + push * w[i]
                w[i] = p.state("w", i, eq=w[i] - alpha * slope + noise)
            for j in near:
                reflected = z[i, j] + 2 * rho * sign[j] * w[i]
                z[j, i] = p.send(i, j, (1 - theta) * z[j, i] + theta * reflected, "z")
        return p

    def _move(self, one: Problem, w: Tensor, pull: Tensor, weight: float) -> Tensor:
        """Return the active node's new model (1, d)."""
        if self.update == "exact":
            return prox(one, w, pull, w.new_tensor([[weight]]))
        return w - self.alpha * (one.task.gradients(w, one.x, one.y) + pull + weight * w)
