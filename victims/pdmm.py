"""PDMM and ADMM: decentralised training by operator splitting, plain or differential."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Generator, Tensor

from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols.admm_family import NeighbourSums, own_steps
from leakaudit.protocols.blocks import blocks
from leakaudit.protocols.growth import TOO_FAST, growth
from leakaudit.protocols.prox import exact, prox
from leakaudit.protocols.schedules import draw_nodes, most_sent, read
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Relations, decimal
from leakaudit.traces.arcs import Arcs

if TYPE_CHECKING:
    from leakaudit.core.adversary import View
    from leakaudit.protocols.dual_constants import ComputedConstants
    from leakaudit.tasks.task import Problem, Task

# Numbers of one direction of several channels that are processed together, 256 KiB in float32, so
# that both directions and their changes stay in a second-level cache. Chosen for common processors.
ROWS = 1 << 16

# W. Yu, Privacy Analysis of Decentralized Federated Learning (2023), Algorithms 1 and 2. Node i has
# d_i neighbours j; B = +1 if i < j, else -1:
#
#     w_i     <- argmin f_i(w) + sum_j B z_{i|j} w + rho d_i / 2 |w|^2
#     z_{j|i} <- z_{j|i} + theta ( z_{i|j} - z_{j|i} + 2 rho B w_i )              is sent i -> j
#
# Section 7.2 leaves asynchronous PDMM open and gives no algorithm. With active=n, n random nodes
# execute both lines in a round, as in asynchronous PDMM by Zhang and Heusdens (2018), where it is
# one node; everything else keeps its value.


@dataclass(frozen=True)
class _DualRule:
    """z_{j|i} <- z_{j|i} + theta ( z_{i|j} - z_{j|i} + 2 rho B w_i ), which i sends to j.

    Stacked, z is (2, E, c): of the messages i -> j, then of those j -> i, for the edges (i, j)
    with i < j, where B = 1 for i and -1 for j.
    """

    rho: float  # penalty of disagreement
    theta: float  # averaging constant, 0 < theta <= 1
    differential: bool  # whether the change of z is sent instead of z
    cell: float  # cell width of a fixed quantizer of the messages; 0 for none
    z0: float  # standard deviation of z^0. If it is 0, z^0 is public and not sent.

    @property
    def kind(self) -> str:
        """Kind of the messages."""
        return "dz" if self.differential else "z"

    def drawn(self, sim: Simulation, w: Tensor) -> Iterator[tuple[tuple[int, int], Tensor]]:
        """Draw z^0 of every edge, so that recording fewer edges does not change the training."""
        if not self.z0:
            return
        for edge in sim.graph.edges:
            z = torch.randn(2, w.shape[1], generator=sim.generator, dtype=w.dtype)
            yield edge, z.mul_(self.z0).to(w.device)

    def change(self, z: Tensor, w: Tensor, ends: Tensor, out: Iterable[Tensor]) -> None:
        """Compute the changes of z, as their senders do.

        Args:
            z: The duals of k edges, (2, k, c).
            w: The models, (N, c).
            ends: The nodes i and j of the edges, (2, k).
            out: Receives the changes i -> j and j -> i, (k, c) each.
        """
        i, j = ends
        there, back = out
        if len(i) > 1:
            own = w[i]
            other = w[j]
        else:  # a view, not a copy
            own = w[i[0]][None]
            other = w[j[0]][None]
        torch.sub(z[1], z[0], out=there)
        torch.neg(there, out=back)
        there.add_(own, alpha=2 * self.rho)
        back.sub_(other, alpha=2 * self.rho)
        for change, old in zip((there, back), z, strict=True):
            if self.theta != 1:
                change.mul_(self.theta)
            if self.cell and self.differential:
                change.div_(self.cell).round_().mul_(self.cell)
            elif self.cell:
                change.add_(old).div_(self.cell).round_().mul_(self.cell).sub_(old)


class _Sums:
    """S_i = sum_j B z_{i|j} and T_i = sum_j B z_{j|i}, (N, d), and z on the recorded channels.

    The sums change by theta ( T - S - 2 rho sum_j w_j ) and theta ( S - T + 2 rho d_i w_i ).
    """

    def __init__(self, rule: _DualRule, sim: Simulation, w: Tensor) -> None:
        """Draw z^0 and send it unless it is zero, for the models w (N, d)."""
        self.rule = rule
        self.recorder = sim.recorder
        self.around = NeighbourSums(sim.graph, w)
        self.kept = sim.recorder.kept
        self.s = torch.zeros_like(w)
        self.t = torch.zeros_like(w)
        at = {wire: k for k, wire in enumerate(sorted(set(sim.wires)))}
        self.ends = torch.tensor(list(at), dtype=torch.long).reshape(-1, 2).T
        # The rule is linear, so a sketch of z follows it, with sketches of the models.
        self.z = w.new_zeros(2, len(at), self.kept.linear)
        for (i, j), z in rule.drawn(sim, w):
            there, back = z
            self.t[i] += there
            self.s[i] += back
            self.t[j] -= back
            self.s[j] -= there
            if (i, j) in at:
                self.z[:, at[i, j]] = self.kept.project(z)
        if rule.z0:
            for out, z in zip(self._outgoing(0, "z0", secure=True), self.z, strict=False):
                out.copy_(z)

    def move(self, w: Tensor, part: slice) -> None:
        """Update S and T on some columns of the models w, (N, d).

        For theta = 1 they are swapped, which `send` completes.
        """
        rule = self.rule
        w = w[:, part]
        s = self.s[:, part]
        t = self.t[:, part]
        pull = 2 * rule.rho * self.around.degree
        others = self.around.sum(w)
        if rule.theta == 1:
            t.sub_(others, alpha=2 * rule.rho)
            s.addcmul_(w, pull)
        else:
            change = (t - s).sub_(others, alpha=2 * rule.rho).mul_(rule.theta)
            t.lerp_(torch.addcmul(s, w, pull), rule.theta)
            s.add_(change)

    def send(self, t: int, w: Tensor) -> None:
        """Update z on the recorded channels and send it in round t, for the models w, (N, d).

        Messages are written directly into the recording if possible.
        """
        rule = self.rule
        outs = self._outgoing(t, rule.kind)
        w = self.kept.project(w)
        if rule.theta == 1:
            self.s, self.t = self.t, self.s
        direct = rule.differential and self.z.is_cpu
        for some in _pieces(self.z):
            z = self.z[:, some]
            rows = [out[some] for out in outs]
            change = rows if direct else [torch.empty_like(one) for one in z]
            rule.change(z, w, self.ends[:, some].to(z.device), change)
            for old, new in zip(z, change, strict=True):
                old.add_(new)
            if direct:
                continue
            sent = change if rule.differential else z
            for row, values in zip(rows, sent, strict=True):
                row.copy_(values)

    def _outgoing(self, t: int, kind: str, secure: bool = False) -> list[Tensor]:
        """Reserve a round's rows of the recording: messages i -> j, then messages j -> i."""
        if not self.ends.numel():
            return []
        found = []
        for src, dst in (self.ends, self.ends.flip(0)):
            out = self.recorder.send_many(t, src, dst, kind, secure=secure)
            out[:, self.kept.linear :] = torch.nan  # whole messages, and so norms, are not computed
            found.append(out[:, : self.kept.linear])
        return found


class _EdgeDuals:
    """z (2, E, d) on all edges, and its sums S (N, d).

    It is updated with the messages received, as quantizers and nodes in other processes require.
    """

    def __init__(self, rule: _DualRule, sim: Simulation, w: Tensor) -> None:
        """Draw z^0 and send it unless it is zero, for the models w (N, d)."""
        self.rule = rule
        self.recorder = sim.recorder
        self.ends = torch.tensor(sim.graph.edges, dtype=torch.long).reshape(-1, 2).T
        graph = sim.graph
        kept = set(sim.wires)
        recorded = torch.tensor([edge in kept for edge in graph.edges])
        src, dst = torch.cat((self.ends, self.ends.flip(0)), 1)
        self.arcs = Arcs(src, dst, torch.arange(len(src)), recorded.repeat(2))
        z = w.new_zeros(2, len(graph.edges), w.shape[1])
        for k, (_, drawn) in enumerate(rule.drawn(sim, w)):
            z[:, k] = drawn
        self.z = z
        if rule.z0:
            self.z = self._exchange(0, "z0", z, self.arcs, secure=True)
        self.s = torch.zeros_like(w)
        self._change = torch.empty_like(z)
        for k, (i, j) in enumerate(graph.edges):
            self.s[i] += self.z[1, k]
            self.s[j] -= self.z[0, k]

    def move(self, w: Tensor, part: slice) -> None:
        """Do nothing: S changes when messages are received."""

    def send(self, t: int, w: Tensor, active: Tensor | None = None) -> None:
        """Send in round t for the models w, (N, d), and update z and S with the received messages.

        If no message is received, the receiver's z does not change.

        Args:
            active: The nodes that send; all by default.
        """
        change = self._change
        ends = self.ends.to(w.device)
        for some in _pieces(self.z):
            self.rule.change(self.z[:, some], w, ends[:, some], change[:, some])
        arcs = self.arcs
        if active is not None:
            sends = torch.isin(arcs.src, active)
            arcs = arcs.some(sends)
            change[~sends.view(2, -1).to(change.device)] = 0
        if self.rule.differential:
            nothing = torch.zeros_like
            change = self._exchange(t, "dz", change, arcs, instead=lambda: nothing(self.z))
            self.z.add_(change)
        else:
            came = self._exchange(t, "z", self.z + change, arcs, instead=lambda: self.z)
            if self.recorder.partial:  # of a node in another process only z is known
                change = came - self.z
            self.z = came
        for some in _pieces(self.z):
            i, j = ends[:, some]
            self.s.index_add_(0, i, change[1, some])
            self.s.index_add_(0, j, change[0, some], alpha=-1)

    def _exchange(
        self,
        t: int,
        kind: str,
        z: Tensor,
        arcs: Arcs,
        secure: bool = False,
        instead: Callable[[], Tensor] | None = None,
    ) -> Tensor:
        """Send rows of z (2, E, d) and return the receivers' copies."""
        flat = None if instead is None else lambda: instead().flatten(0, 1)
        return self.recorder.exchange(t, kind, z.flatten(0, 1), arcs, secure, flat).view_as(z)


@victim("pdmm")
@dataclass(frozen=True)
class PDMM(SimulatedVictim):
    """PDMM (theta = 1) and ADMM (theta = 1/2): exact, gradient-step or quadratic local updates."""

    paper: ClassVar[str] = "Yu 2023 (TU Delft), Algorithms 1 and 2"
    sends: ClassVar[Mapping[str, str]] = {
        "z0": "encrypted start of the dual variable of a channel, in round 0 (only with z0 > 0)",
        "dz": "change of the dual variable of a channel (only with differential=true)",
        "z": "dual variable of a channel (only with differential=false)",
    }
    leaks_what: ClassVar[str] = (
        "every one-step gradient difference; every gradient if z^0 is known or messages are plain"
    )
    separable: ClassVar[bool] = True

    rho: float = param(0.4, "penalty of disagreement", "rho")
    theta: float = param(
        1.0, "averaging: 1 is PDMM (Peaceman-Rachford), 0.5 is ADMM (Douglas-Rachford)", "theta"
    )
    update: Literal["gradient", "quadratic", "exact"] = param(
        "gradient", "local update: k_max gradient steps, quadratic approximation, or exact"
    )
    alpha: float = param(0.05, "step size of update=gradient", "alpha")
    k_max: int = param(1, "gradient steps per round for update=gradient", "k_max")
    mu: float = param(20.0, "curvature of update=quadratic", "mu")
    differential: bool = param(True, "send only changes of z; z^0 is sent over encrypted channels")
    z0: float = param(
        0.1, "standard deviation of the random z^0; 0 starts at zero and protects nothing", "z^0"
    )
    quantize: float = param(
        0.0,
        "cell width of a fixed quantizer of the messages; 0 sends plain floating-point numbers",
        "Delta",
    )
    active: int = param(
        0, "nodes that take part in a round, drawn anew for each (public); 0 for all"
    )

    def __post_init__(self) -> None:
        positive = min(self.rho, self.alpha, self.mu) > 0 and 0 < self.theta <= 1
        if not (positive and self.k_max >= 1 and min(self.z0, self.quantize, self.active) >= 0):
            raise LeakauditError(
                "pdmm: expected 0 < theta <= 1, rho, alpha, mu > 0, k_max >= 1, "
                "z0 >= 0, quantize >= 0 and active >= 0"
            )

    @property
    def stationary(self) -> bool:
        """Whether all rounds have the same relations."""
        return not self.active

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject an exact update of a model that is not convex, and gradient steps that diverge."""
        if self.active > graph.nodes:
            raise LeakauditError(
                f"pdmm: active={self.active}, but there are only {graph.nodes} nodes"
            )
        if self.update == "exact":
            exact(task)
        elif self.update == "gradient" and self.active:
            own_steps("pdmm", task, graph, self.alpha, self.rho)
        elif self.update == "gradient":
            factor = growth(graph, self.alpha, self.rho, self.theta, self.k_max, task.l2)
            if factor > TOO_FAST:
                degree = max(map(graph.degree, range(graph.nodes)))
                product = self.alpha * (task.l2 + self.rho * degree)
                raise LeakauditError(
                    f"pdmm: alpha (l2 + rho d) = {product:g} for a node with {degree} neighbours: "
                    f"the run diverges by a factor of {factor:.3g} per round on any data; "
                    "lower alpha or rho"
                )

    def messages(self, graph: Graph, rounds: int, wires: Iterable[tuple[int, int]]) -> int:
        """Count as declared, or at most as many as the nodes with the most channels send."""
        if not self.active:
            return super().messages(graph, rounds, wires)
        recorded = set(wires)
        return rounds * most_sent(recorded, self.active) + 2 * len(recorded) * bool(self.z0)

    def schedule(self, graph: Graph, rounds: int, generator: Generator) -> Mapping[str, Tensor]:
        """Draw the nodes of every round, ``active`` (rounds, n), if not all take part."""
        if not self.active:
            return {}
        return {"active": draw_nodes(graph.nodes, rounds, self.active, generator)}

    def _active(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Tensor:
        """Return the nodes of every round, (rounds, n)."""
        if not self.active:
            return torch.arange(graph.nodes).expand(rounds, -1)
        return read(public, "active", rounds, self.active, range(graph.nodes))

    def step(self, degree: Tensor) -> tuple[Tensor, Tensor]:
        """Return c0 and c1 of one inexact step w <- c0 w - c1 (g + S), (N, 1) each.

        Args:
            degree: Number of neighbours of each node, (N, 1).
        """
        if self.update == "quadratic":
            c1 = 1 / (self.mu + self.rho * degree)
            return self.mu * c1, c1
        return 1 - self.alpha * self.rho * degree, torch.full_like(degree, self.alpha)

    def train(self, sim: Simulation) -> None:
        """Train; without a quantizer, channels that are not recorded add no cost to a round."""
        w = sim.begin(sim.common)
        rule = _DualRule(self.rho, self.theta, self.differential, self.quantize, self.z0)
        degree = w.new_tensor([[sim.graph.degree(i)] for i in range(sim.graph.nodes)])
        if self.active:
            self._train_some(sim, w, degree, rule)
            return
        form = _EdgeDuals if self.quantize or sim.recorder.partial else _Sums
        duals = form(rule, sim, w)
        spare = torch.empty_like(w)
        sim.recorder.end_round(0)
        for t in sim.rounds:
            w = self._updated(sim.problem, w, degree, duals.s, spare, duals.move)
            duals.send(t, w)
            sim.end(t, w, s=duals.s)

    def _train_some(self, sim: Simulation, w: Tensor, degree: Tensor, rule: _DualRule) -> None:
        """Train if only some nodes take part in a round."""
        duals = _EdgeDuals(rule, sim, w)
        sim.recorder.end_round(0)
        active = self._active(sim.graph, len(sim.rounds), sim.recorder.public)
        for t, some in zip(sim.rounds, active, strict=True):
            old = w[some]
            pull = duals.s[some]
            spare = torch.empty_like(old)
            new = self._updated(
                sim.problem.of(some), old, degree[some], pull, spare, lambda *_: None
            )
            w[some] = new
            duals.send(t, w, some)
            sim.end(t, w, s=duals.s)

    def _updated(
        self,
        problem: Problem,
        w: Tensor,
        degree: Tensor,
        pull: Tensor,
        spare: Tensor,
        move: Callable[[Tensor, slice], None],
    ) -> Tensor:
        """Return the new w (N, d), and update the sums block by block by `move`.

        Gradient steps overwrite the old w.

        Args:
            pull: S, (N, d).
        """
        if self.update == "exact":
            w = prox(problem, w, pull, self.rho * degree)
            move(w, slice(None))
            return w
        c0, c1 = self.step(degree)
        last = self.k_max if self.update == "gradient" else 1
        for k in range(1, last + 1):
            g = problem.task.gradients(w, problem.x, problem.y, out=spare)
            for part in blocks(w):
                w[:, part].mul_(c0).addcmul_(g[:, part], c1, value=-1)
                w[:, part].addcmul_(pull[:, part], c1, value=-1)
                if k == last:
                    move(w, part)
        return w

    @classmethod
    def computed(cls, view: View, unknown: frozenset[str]) -> ComputedConstants:
        """Compute unknown constants from the changes of z; see `dual_constants`."""
        from leakaudit.protocols import dual_constants  # most adversaries know all constants

        return dual_constants.computed(view, unknown)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare both updates; node i holds z_{i|j}, which changes by the received message."""
        p = Relations(graph)
        near = graph.neighbours
        rho, theta, alpha, mu = map(decimal, (self.rho, self.theta, self.alpha, self.mu))
        twice = 2 * rho
        # The rounding error is uniform on up to half a cell: variance cell^2 / 12.
        cell = self.quantize / 12**0.5
        sign = {(i, j): 1 if i < j else -1 for i, j in graph.arcs}
        w = dict.fromkeys(range(graph.nodes), p.public("w0"))
        if self.z0:
            z = {(j, i): p.secret("z", j, i) for i, j in sign}
            for i, j in sign:
                p.send(i, j, z[j, i], "z0", secure=True)
        else:
            z = dict.fromkeys(sign, p.public("z0"))
        active = self._active(graph, rounds, public).tolist()
        for t in p.rounds(rounds):
            for i in active[t - 1]:
                pull = sum(sign[i, j] * z[i, j] for j in near[i])
                push = rho * len(near[i])
                if self.update == "exact":
                    w[i] = p.state("w", i)
                    p.relate(push * w[i], -(p.grad(i, at=w[i]) + pull))
                elif self.update == "quadratic":
                    w[i] = p.state("w", i, eq=(mu * w[i] - p.grad(i, at=w[i]) - pull) / (mu + push))
                else:
                    for k in range(1, self.k_max + 1):
                        g = p.grad(i, at=w[i], index=None if self.k_max == 1 else k)
                        moved_w = w[i] - alpha * (g + pull + push * w[i])
                        w[i] = p.state("w", i, None if k == self.k_max else k, eq=moved_w)
            moved = dict(z)
            pushed = {i: twice * w[i] for i in active[t - 1]}
            for i, j in sign:
                if i not in pushed:
                    continue
                change = theta * (z[i, j] - z[j, i] + sign[i, j] * pushed[i])
                if self.differential:
                    sent = p.send(i, j, change, "dz", std=cell)
                    moved[j, i] = p.state("z", j, i, eq=z[j, i] + sent)
                else:
                    moved[j, i] = p.send(i, j, z[j, i] + change, "z", std=cell)
            z = moved
        return p


def _pieces(z: Tensor) -> Iterator[slice]:
    """Yield slices of the edges that fit into the cache.

    Args:
        z: The duals, (2, E, c).
    """
    together = max(1, ROWS // max(1, z.shape[2]))
    return (slice(at, at + together) for at in range(0, z.shape[1], together))
