"""SecureD-FL: averaging by ADMM within groups that change in every iteration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Generator, Tensor

from leakaudit.core.claim import Claim
from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols.blocks import blocks
from leakaudit.protocols.kirkman import partitions
from leakaudit.protocols.local import LocalSteps, Steps, stable
from leakaudit.protocols.optimiser import DeclaredMemory, Optimiser
from leakaudit.protocols.released import start
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Expression, Form, Relations, decimal
from leakaudit.traces.arcs import Arcs, broadcast

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# SecureD-FL (2021), Algorithm 3. In an FL round every peer trains w_k from the last average and
# draws lam_k^0 ~ U[0, 1); z^0 = 0. Iteration i = 1 .. I uses partition i mod |Pi| of the n peers:
#
#     x_k   = (2 w_k - lam_k + rho z) / (2 + rho)
#     y_k   = x_k + lam_k / rho                       is sent to the peers of k's group
#     z_g   = (1/n) sum of the y of group g           is sent to all other peers (kind ``sum``)
#     z     = sum of the z_g
#     lam_k = lam_k + rho (x_k - z)
#
# The trace has one round per iteration: FL round r consists of rounds (r - 1) I + 1 to r I, and its
# training happens in the first of them; a recording may end within an FL round. The paper first
# aggregates initial models that differ: with spread > 0, rounds 1 to I do so, and FL round r is
# rounds r I + 1 to (r + 1) I; with spread = 0 all peers start from w0. Training is plain SGD, as
# printed. The paper's experiments use RMSProp or Adam with I = 2, and do not state whether a peer
# keeps their averages from one FL round to the next (keep). The partitions are public: ``groups``
# (|Pi|, n / s, s). The lam^0 do not sum to zero, so z^1 is off by 2 / (rho (2 + rho)) of their
# mean, and Lemma II.2's rate begins with z^2: at I = 2 a mean of 1/2 shifts every coordinate by
# 1 / (2 + rho)^2.


@victim("secured")
@dataclass(frozen=True)
class SecureD(SimulatedVictim):
    """ADMM averaging in groups between rounds of local training."""

    paper: ClassVar[str] = "SecureD-FL 2021, Algorithms 2 and 3"
    sends: ClassVar[Mapping[str, str]] = {
        "y": "masked model of a peer, to the peers of its group",
        "sum": "sum of a group, to all other peers",
    }
    leaks_what: ClassVar[str] = (
        "every peer's sum of local gradients, from two of its y; "
        "a curious peer obtains it after |Pi| + 1 iterations"
    )
    claims_what: ClassVar[str] = (
        "2 |Pi| - 1 iterations reveal nothing to one curious peer (Theorem III.2)"
    )
    separable: ClassVar[bool] = True

    rho: float = param(0.1, "penalty of the averaging", "rho")
    iterations: int = param(
        2, "ADMM iterations per FL round; at 2, as in the paper, lam^0 shifts the average", "I"
    )
    group_size: int = param(3, "peers per group; must divide the number of peers", "s")
    partitions: int = param(
        4, "number of partitions, and iterations until two peers meet again", "|Pi|"
    )
    lr: float = param(0.1, "step size of the local training", "eta")
    local_steps: int = param(5, "gradient steps per FL round")
    batch: int = param(0, "records per gradient step; 0 uses all")
    optimiser: Literal["sgd", "adam", "adamw", "adagrad", "rmsprop"] = param(
        "sgd", "optimiser of the local steps, as in torch.optim"
    )
    momentum: float = param(0.0, "momentum of optimiser=sgd")
    keep: bool = param(False, "peers keep momentum and averages from one FL round to the next")
    spread: float = param(
        0.0,
        "standard deviation of private initial models around the common one, which are "
        "aggregated first; 0: all peers start from the common one",
        "w^0",
    )
    lam0: float = param(1.0, "lam^0 is drawn from [0, lam0)", "lambda^0")

    def __post_init__(self) -> None:
        counts = min(self.iterations, self.partitions, self.local_steps)
        if not (self.rho > 0 and self.lr > 0 and counts >= 1):
            raise LeakauditError(
                "secured: expected rho, lr > 0 and iterations, partitions, local_steps >= 1"
            )
        if min(self.batch, self.lam0, self.spread) < 0 or self.group_size < 2:
            raise LeakauditError("secured: expected batch, lam0, spread >= 0 and group_size >= 2")
        _ = self._training

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject an unsuitable graph, and step sizes that diverge on the task's l2 term.

        The graph must be complete, and the group size must divide the number of nodes.
        """
        _complete(graph)
        if graph.nodes % self.group_size:
            raise LeakauditError(
                f"secured: expected a group_size that divides the {graph.nodes} nodes, "
                f"got {self.group_size}"
            )
        stable("secured", task, lr=self.lr)

    def messages(self, graph: Graph, rounds: int, wires: Iterable[tuple[int, int]]) -> int:
        """Count two messages per channel and iteration: y within groups, sums to all others.

        Every partition yields this number. Counting from the declaration would need a partition,
        and drawing one requires a search.
        """
        return 2 * len(list(wires)) * rounds

    def schedule(self, graph: Graph, rounds: int, generator: Generator) -> Mapping[str, Tensor]:
        """Draw the partitions, which all peers know."""
        _complete(graph)
        groups = partitions(graph.nodes, self.group_size, self.partitions, generator)
        return {"groups": torch.tensor(groups)}

    def train(self, sim: Simulation) -> None:
        """Train and average.

        The curves are those of the last average, with the mean squared error of z in each
        iteration.
        """
        recorder = sim.recorder
        z = sim.w0
        model = z
        w = sim.begin(start(sim, self.spread))
        lam = z.new_empty(0)
        train = LocalSteps(self._training, sim)
        turn = _Iteration(self.rho, w, sim, sim.graph.nodes // self.group_size)
        for t in sim.rounds:
            if self._starts(t):
                if self._trains(t):
                    w = train(t, z.repeat(sim.graph.nodes, 1))
                lam = torch.rand(w.shape, generator=sim.generator, dtype=w.dtype).to(w) * self.lam0
                recorder.state("lam0", t, lam - self.lam0 / 2)
                z = torch.zeros_like(z)
            z = turn(t, self._partition(recorder.public["groups"], t), w, lam, z)
            recorder.state("x", t, turn.x)
            recorder.state("lam", t, lam)
            if t % self.iterations == 0:
                model = z
            sim.end(t, w, model, lam=lam)
            if sim.observes(t):
                recorder.curve("mse", t, float((z - w.mean(0)).square().mean()))

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare training and averaging; lam^0 is declared as its mean plus noise."""
        p = Relations(graph)
        peers = range(graph.nodes)
        rho = decimal(self.rho)
        z = p.public("w0")
        w = {k: p.secret("w", k) for k in peers} if self.spread else dict[int, Expression]()
        memory: DeclaredMemory = {}
        lam = dict[int, Form]()
        mean = p.public("lam0") / 2 if self.lam0 else 0
        std = self.lam0 / 12**0.5  # of a uniform variable on [0, lam0)
        groups = _checked(graph, public)
        for t in p.rounds(rounds):
            last: Form = rho * z
            if self._starts(t):
                if self._trains(t):
                    w = {k: self._trained(p, k, z, memory) for k in peers}
                lam = dict.fromkeys(peers, 0)
                if self.lam0:
                    lam = {k: mean + p.noise("lam0", std, k, law="uniform") for k in peers}
                last = 0
            x = {k: p.state("x", k, eq=(2 * w[k] - lam[k] + last) / (2 + rho)) for k in peers}
            y = {}
            sums = []
            for group in self._partition(groups, t).tolist():
                for k in group:
                    y[k] = p.send(k, [j for j in group if j != k], x[k] + lam[k] / rho, "y")
                total = sum(y[k] for k in group) * Fraction(1, graph.nodes)
                others = [j for j in peers if j not in group]
                if others:
                    told = [p.send(k, others, total, "sum") for k in group]
                    total = told[0]
                sums.append(total)
            z = p.state("z", eq=sum(sums))
            lam = {k: p.state("lam", k, eq=lam[k] + rho * (x[k] - z)) for k in peers}
        return p

    def claims(
        self, graph: Graph, rounds: int, public: Mapping[str, Tensor] | None = None
    ) -> tuple[Claim, ...]:
        """Return Theorem III.2."""
        safe = 2 * self.partitions - 1
        promise = f"{safe} iterations of an FL round reveal nothing about a peer's w to other peers"
        assumes = (
            "honest but curious peers",
            "s > t_g / (t_g - 1)",
            "a single curious peer",
            "group sums reveal nothing",
        )
        return (Claim("SecureD-FL, Theorem III.2", promise, rounds=safe, assumes=assumes),)

    @property
    def _training(self) -> Steps:
        optimiser = Optimiser(self.optimiser, self.momentum)
        return Steps(self.lr, self.local_steps, self.batch, optimiser=optimiser, keep=self.keep)

    def _trained(self, p: Relations, k: int, z: Expression, memory: DeclaredMemory) -> Expression:
        """Declare the model of a peer after its training."""
        return p.state("w", k, eq=self._training.declare(p, k, z, memory=memory))

    def _trains(self, t: int) -> bool:
        """Return whether the FL round that starts in this round begins with training."""
        return t > 1 or not self.spread

    def _starts(self, t: int) -> bool:
        return (t - 1) % self.iterations == 0

    def _partition(self, groups: Tensor, t: int) -> Tensor:
        return groups[((t - 1) % self.iterations + 1) % len(groups)]


def _complete(graph: Graph) -> None:
    if len(graph.edges) != graph.nodes * (graph.nodes - 1) // 2:
        raise LeakauditError(
            "secured: expected a complete graph (every peer sends to every other); "
            "use graph=complete"
        )


def _checked(graph: Graph, public: Mapping[str, Tensor]) -> Tensor:
    groups = public.get("groups")
    if groups is not None and groups.dim() == 3:
        peers = list(range(graph.nodes))
        if all(sorted(partition.flatten().tolist()) == peers for partition in groups):
            return groups
    raise LeakauditError(
        "secured: expected public 'groups' (|Pi|, n / s, s) "
        f"that contain each of {graph.nodes} peers once per partition"
    )


class _Iteration:
    """One iteration of the averaging for all peers, and its messages.

    x and y are (n, d), the sums of the groups (n / s, d).
    """

    def __init__(
        self,
        rho: float,
        like: Tensor,
        sim: Simulation,
        groups: int,
    ) -> None:
        self.rho = rho
        self.recorder = sim.recorder
        self.arcs = broadcast(sim.recorder, sim.wires)
        self.x = torch.empty_like(like)
        self.y = torch.empty_like(like)
        self.sums = like.new_empty(groups, like.shape[1])
        self._known: dict[bytes, tuple[Tensor, Arcs, Arcs]] = {}

    def __call__(self, t: int, groups: Tensor, w: Tensor, lam: Tensor, z: Tensor) -> Tensor:
        """Compute x, y and the sums, update lam (n, d), and return the new z (d,).

        The groups are (n / s, s).
        """
        new = torch.empty_like(z)
        of, within, between = self._partition(groups)
        if self.recorder.partial:
            every = slice(None)
            self._say(every, w, lam, z)
            self.y = self.recorder.exchange(t, "y", self.y, within)
            self._add_up(every, of)
            self.sums = self.recorder.exchange(t, "sum", self.sums, between)
            self._settle(every, lam, new)
            return new
        for part in blocks(w):
            self._say(part, w, lam, z)
            self._add_up(part, of)
            self._settle(part, lam, new)
        self.recorder.exchange(t, "y", self.y, within)
        self.recorder.exchange(t, "sum", self.sums, between)
        return new

    def _partition(self, groups: Tensor) -> tuple[Tensor, Arcs, Arcs]:
        key = groups.numpy().tobytes()
        if key not in self._known:
            of = torch.empty(len(self.y), dtype=torch.long)
            of[groups] = torch.arange(len(groups))[:, None]
            inside = of[self.arcs.src] == of[self.arcs.dst]
            sums = replace(self.arcs, row=of[self.arcs.src])
            self._known[key] = of.to(self.y.device), self.arcs.some(inside), sums.some(~inside)
        return self._known[key]

    def _say(self, part: slice, w: Tensor, lam: Tensor, z: Tensor) -> None:
        """Compute x and y on some columns."""
        mine = torch.mul(w[:, part], 2, out=self.x[:, part]).sub_(lam[:, part])
        mine.add_(z[part], alpha=self.rho).div_(2 + self.rho)
        torch.add(mine, lam[:, part], alpha=1 / self.rho, out=self.y[:, part])

    def _add_up(self, part: slice, of: Tensor) -> None:
        """Compute the sums of the groups; of: each peer's group."""
        self.sums[:, part].zero_().index_add_(0, of, self.y[:, part]).div_(len(of))

    def _settle(self, part: slice, lam: Tensor, new: Tensor) -> None:
        """Compute the new z and update lam."""
        new[part] = self.sums[:, part].sum(0)
        lam[:, part].add_(self.x[:, part], alpha=self.rho).sub_(new[part], alpha=self.rho)
