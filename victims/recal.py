"""RECAL and DP-RECAL: one node at a time is active and passes on a baton (y, s)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Generator, Tensor

from leakaudit.core.claim import Adjacency, Claim
from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim, written
from leakaudit.core.trace import Graph
from leakaudit.protocols.released import shrink
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.protocols.walk import draw, read
from leakaudit.theory.relations import Expression, Relations, decimal
from leakaudit.traces.arcs import Arcs

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# Privacy leakage frequency (PLF) paper (arXiv 2212.10859v2), eqs. (7a)-(7e). Our copy of the text
# lacks the formulas; the update is RECONSTRUCTED from its AFBS form and verified by its
# convergence. For min sum_i f_i(x_i) + r(y) with x_i = y, node i, which holds the baton, computes
#
#     lbar  = lam_i + s_i (x_i - y)                             (7a)
#     y+    = prox_{beta r}( y + beta (s + lbar - lam_i) )      (7b)
#     x_i+  = x_i - tau_i ( grad f_i(x_i) + lbar )  [+ xi]      (7c)
#     lam_i+ = lbar + s_i ( x_i+ - x_i - y+ + y )   [+ xi]      (7d)
#     s+    = s + lam_i+ - lam_i                                (7e), s = sum_j lam_j
#
# The remaining text does not decide whether (7b) adds the duals of all nodes (baton=full, the
# block-coordinate form, which has the proof: s = sum_j lam_j + s_j x_j and y+ = prox(y + beta (s -
# y sum_j s_j))) or only that of the active node (the default); both converge. Noise only on lam
# leaves x_i without noise: with baton=active the next y+ reveals it (without a regulariser the
# noise hides nothing), and with baton=full it contains the accumulated changes of the gradient.
# Lemma 5, Delta = tau_i C, holds for noise on x. The PLF is the largest number of activations of
# any node; it is counted in the trace's public tensor ``active`` and differs from rounds / N.

OVERFLOW = 700.0  # e^709 is the largest power of e that a float can hold


@victim("recal")
@dataclass(frozen=True)
class RECAL(SimulatedVictim):
    """RECAL, or DP-RECAL if sigma > 0. A round of the trace is one activation."""

    paper: ClassVar[str] = "DP-RECAL, arXiv 2212.10859v2, eqs. (7a)-(7e), reconstructed"
    sends: ClassVar[Mapping[str, str]] = {
        "y": "consensus variable that the active node passes on",
        "s": "sum of the dual variables that it passes on",
    }
    leaks_what: ClassVar[str] = (
        "every gradient; with noise on x, each up to its own noise; "
        "with noise on lam and reg=none, exactly"
    )
    claims_what: ClassVar[str] = "(epsilon, delta) from zCDP at the trace's PLF (Theorem 4)"
    separable: ClassVar[bool] = True

    tau: Sequence[float] = param(
        (0.2,), "step size; one number, or one per node: 0.2,0.1,…", "tau_i"
    )
    s: Sequence[float] = param((0.5,), "dual step size; one number, or one per node", "s_i")
    beta: float = param(0.0, "step size of y; 0 uses 0.95 / (2 sum_i s_i)", "beta")
    reg: Literal["none", "l1"] = param("none", "regulariser", "r")
    weight: float = param(0.01, "weight of reg=l1")
    activation: Literal["walk", "iid"] = param(
        "walk", "next node: a neighbour (random walk), or any node (complete graph)"
    )
    baton: Literal["active", "full"] = param(
        "active", "content of the sum s: lam, or lam + s_i x_i"
    )
    sigma: float = param(0.0, "standard deviation of a node's first noise; 0 is RECAL", "sigma_i")
    decay: float = param(
        1.0, "factor of a node's noise variance from activation to activation", "R"
    )
    noise_on: Literal["x", "lam"] = param(
        "x", "where the noise is added: to the state x (7c), or only to lam (7d)"
    )
    sensitivity: float = param(1.0, "change of a gradient by one record, assumed by the claim", "C")
    delta: float = param(1e-3, "delta of the claim", "delta")

    def __post_init__(self) -> None:
        """Check the ranges, and the part of tau_i (L_i/2 + 2 s_i) < 1 that does not need L_i."""
        tau = _positive("tau", self.tau)
        s = _positive("s", self.s)
        nodes = max(len(tau), len(s))
        fractions = 0 < self.decay <= 1 and 0 < self.delta < 1
        if not fractions or min(self.beta, self.weight, self.sigma) < 0 or self.sensitivity <= 0:
            raise LeakauditError(
                "recal: expected beta, weight, sigma >= 0, sensitivity > 0, "
                "0 < decay <= 1 and 0 < delta < 1"
            )
        if not {len(tau), len(s)} <= {1, nodes}:
            raise LeakauditError(
                f"recal: expected the same number of tau and s, got {len(tau)} and {len(s)}"
            )
        worst = max(a * b for a, b in zip(_each(tau, nodes), _each(s, nodes), strict=True))
        if 2 * worst >= 1:
            raise LeakauditError(
                "recal: expected tau_i (L_i/2 + 2 s_i) < 1, "
                f"but already 2 tau_i s_i is {float(2 * worst):g}; lower tau or s"
            )

    @property
    def l1_weight(self) -> float:
        """Weight of the l1 norm in the objective, 0 for none."""
        return self.weight if self.reg == "l1" else 0.0

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject unsuitable step sizes, and a baton that would need a missing channel.

        There must be one step size per node, with tau_i (L_i/2 + 2 s_i) < 1 at L_i = l2.
        """
        tau, s, _ = self.steps(graph.nodes)
        worst = max(float(a) * (task.l2 / 2 + 2 * float(b)) for a, b in zip(tau, s, strict=True))
        if worst >= 1:
            raise LeakauditError(
                f"recal: expected tau_i (L_i/2 + 2 s_i) < 1, got {worst:g} even at L_i = l2; "
                "lower tau or s"
            )
        complete = 2 * len(graph.edges) == graph.nodes * (graph.nodes - 1)
        if self.activation == "iid" and not complete:
            raise LeakauditError(
                "recal: activation=iid passes the baton to any node; "
                "use --graph complete, or activation=walk"
            )

    def messages(self, graph: Graph, rounds: int, wires: Iterable[tuple[int, int]]) -> int:
        """Count two messages per activation, the most that any schedule sends.

        Fewer are recorded if only some channels are recorded or if a node is drawn twice in a row;
        the exact number depends on the schedule.
        """
        return 2 * rounds if list(wires) else 0

    def schedule(self, graph: Graph, rounds: int, generator: Generator) -> Mapping[str, Tensor]:
        """Draw the active nodes, ``active`` (rounds + 1,); the last one only receives the baton."""
        return {"active": draw(graph, rounds + 1, generator, self.activation)}

    def train(self, sim: Simulation) -> None:
        """Train; an activation computes one gradient of one node."""
        recorder = sim.recorder
        kept = {arc for i, j in sim.wires for arc in ((i, j), (j, i))}
        batons = dict[tuple[int, int], Arcs]()
        at = read(recorder.public, "active", len(sim.rounds) + 1)
        state = _State(self, sim)
        for t in sim.rounds:
            i = at[t - 1]
            to = at[t]
            state.activate(i)
            if i != to:
                if (i, to) not in batons:
                    values = (i, to, 0, (i, to) in kept)
                    batons[i, to] = Arcs(*(torch.tensor([v]) for v in values))
                state.y = recorder.exchange(t, "y", state.y[None], batons[i, to])[0]
                state.total = recorder.exchange(t, "s", state.total[None], batons[i, to])[0]
            for name, value in state.named.items():
                recorder.state(name, t, value)
            sim.end(t, state.x, lam=state.lam)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare (7a)-(7e) along the walk; a prox is opaque.

        A node that is drawn twice in a row keeps the baton, and nothing is sent.
        """
        p = Relations(graph)
        at = read(public, "active", rounds + 1)
        tau, s, beta = self.steps(graph.nodes)
        full = self.baton == "full"
        y: Expression = p.public("w0")
        x = dict.fromkeys(range(graph.nodes), y)
        lam = dict.fromkeys(range(graph.nodes), 0 * y)
        drawn = [0] * graph.nodes
        total = (sum(s) if full else 0) * y
        for t in p.rounds(rounds):
            i = at[t - 1]
            to = at[t]
            dual = lam[i] + s[i] * (x[i] - y)  # (7a)
            pull = total - sum(s) * y if full else total + dual - lam[i]
            made = y + beta * pull  # (7b)
            if self.reg == "l1":
                shrunk = p.state("y", i)
                p.opaque(shrunk, of=[made])
                made = shrunk
            y_new = made if to == i else p.send(i, to, made, "y")
            noise: Expression = 0 * y
            if self.sigma:
                noise = p.noise("xi", self.std(drawn[i]), i)
                drawn[i] += 1
            x_moved = x[i] - tau[i] * (p.grad(i, at=x[i]) + dual)  # (7c)
            if self.noise_on == "x":
                x_moved = x_moved + noise
            x_new = p.state("w", i, eq=x_moved)
            lam_moved = dual + s[i] * (x_new - x[i] - y_new + y)  # (7d)
            if self.noise_on == "lam":
                lam_moved = lam_moved + noise
            lam_new = p.state("lam", i, eq=lam_moved)
            total = total + lam_new - lam[i]  # (7e)
            if full:
                total = total + s[i] * (x_new - x[i])
            total = p.state("s", i, eq=total) if to == i else p.send(i, to, total, "s")
            x[i] = x_new
            lam[i] = lam_new
            y = y_new
        return p

    def claims(
        self, graph: Graph, rounds: int, public: Mapping[str, Tensor] | None = None
    ) -> tuple[Claim, ...]:
        """Return Theorem 4 at the PLF of the schedule, without one at the largest possible PLF."""
        if not self.sigma:
            return ()
        if public is not None:
            active = torch.tensor(read(public, "active", rounds))
            plf = int(torch.bincount(active).max())
        elif self.activation == "iid":
            plf = rounds
        else:  # a walk leaves its node at every step
            plf = (rounds + 1) // 2
        tau, s, _ = self.steps(graph.nodes)
        moves = tau
        if self.noise_on == "lam":
            moves = [a * b for a, b in zip(tau, s, strict=True)]
        scale = max(map(float, moves))
        # zCDP composes additively: the first activation costs Delta^2 / (2 sigma^2), each further
        # one 1 / R times the previous cost.
        first = (scale * self.sensitivity / self.sigma) ** 2 / 2
        rho = first * self._geometric(plf)
        epsilon = rho + 2 * math.sqrt(rho * math.log(1 / self.delta))
        claim = Claim(
            source="DP-RECAL (arXiv 2212.10859v2), Theorem 4",
            promise=f"({epsilon:.4g}, {self.delta:g})-differential privacy at PLF {plf}, "
            f"by {rho:.4g}-zCDP",
            epsilon=epsilon,
            delta=self.delta,
            adjacency="one record of one node differs",
            neighbours=Adjacency.REPLACE,
            std=self.sigma,
            rounds=rounds,
            assumes=(
                f"a record changes a gradient by at most {self.sensitivity:g}",
                "Lemma 5: Delta = tau_i C at every activation",
            ),
            sensitivity=self.sensitivity,
        )
        return (claim,)

    def _geometric(self, count: int) -> float:
        """Return 1 + 1/R + ... + 1/R^(count - 1), infinite if it overflows."""
        if self.decay == 1:
            return count
        growth = -count * math.log(self.decay)
        if growth >= OVERFLOW:
            return math.inf
        return math.expm1(growth) / (1 / self.decay - 1)

    def std(self, drawn: int) -> float:
        """Return the standard deviation of a node's noise: variance sigma^2 R^c."""
        return float(self.sigma * self.decay ** (drawn / 2))

    def steps(self, nodes: int) -> tuple[list[Fraction], list[Fraction], Fraction]:
        """Return tau and s of every node, and beta."""
        steps = []
        for name, numbers in (("tau", self.tau), ("s", self.s)):
            given = _positive(name, numbers)
            if len(given) not in (1, nodes):
                raise LeakauditError(
                    f"recal: expected one {name}, or {nodes} (one per node), got {len(given)}"
                )
            steps.append(_each(given, nodes))
        bound = 1 / (2 * sum(steps[1], Fraction(0)))
        beta = decimal(self.beta) if self.beta else Fraction(19, 20) * bound
        if beta >= bound:
            raise LeakauditError(
                f"recal: expected 2 beta sum_i s_i < 1, i.e. beta below {float(bound):g} "
                f"for {nodes} nodes, got {self.beta:g}"
            )
        return steps[0], steps[1], beta


class _State:
    """x, lam and the last noise xi of every node, (N, d), and the baton y and total, (d,)."""

    def __init__(self, victim: RECAL, sim: Simulation) -> None:
        problem = sim.problem
        self.victim = victim
        self.problem = problem
        self.generator = sim.generator
        self.y = sim.w0
        self.x = sim.begin(sim.common)
        self.lam = torch.zeros_like(self.x)
        self.xi = torch.zeros_like(self.x)
        self.drawn = [0] * problem.nodes
        tau, s, beta = victim.steps(problem.nodes)
        self.tau = [float(v) for v in tau]
        self.s = [float(v) for v in s]
        self.all = float(sum(s))
        self.beta = float(beta)
        self.total = self.all * self.y if victim.baton == "full" else torch.zeros_like(self.y)

    @property
    def named(self) -> dict[str, Tensor]:
        """Return the vectors besides x under their declared names, (N, d)."""
        return {
            "lam": self.lam,
            "xi": self.xi,
            "y": self.y.expand_as(self.x),
            "s": self.total.expand_as(self.x),
        }

    def activate(self, i: int) -> None:
        """Run the activation of node i, (7a) to (7e)."""
        victim = self.victim
        problem = self.problem
        one = slice(i, i + 1)
        x = self.x[i].clone()
        lam = self.lam[i].clone()
        s = self.s[i]
        dual = lam + s * (x - self.y)  # (7a)
        noise = self._draw(i)
        if victim.baton == "full":
            pull = self.total - self.all * self.y
        else:
            pull = self.total + dual - lam
        y = self.y + self.beta * pull  # (7b)
        if victim.reg == "l1":
            y = shrink(y, self.beta * victim.weight)
        g = problem.task.gradients(self.x[one], problem.x[one], problem.y[one])[0]
        self.x[i] -= self.tau[i] * (g + dual)  # (7c)
        self.x[i] += noise if victim.noise_on == "x" else 0
        moved = self.x[i] - x
        on_lam = noise if victim.noise_on == "lam" else 0
        self.lam[i] = dual + s * (moved - y + self.y) + on_lam  # (7d)
        self.total = self.total + (self.lam[i] - lam)  # (7e)
        if victim.baton == "full":
            self.total = self.total + s * moved
        self.y = y

    def _draw(self, i: int) -> Tensor | float:
        if not self.victim.sigma:
            return 0.0
        drawn = torch.randn(self.x.shape[1], generator=self.generator, dtype=self.x.dtype)
        self.xi[i] = drawn.mul_(self.victim.std(self.drawn[i])).to(self.x.device)
        self.drawn[i] += 1
        return self.xi[i]


def _each(given: list[Fraction], nodes: int) -> list[Fraction]:
    return given * nodes if len(given) == 1 else given


def _positive(name: str, numbers: Sequence[float]) -> list[Fraction]:
    """Return step sizes as fractions; reject those that are not positive."""
    if isinstance(numbers, str):
        raise LeakauditError(f"recal: expected {name} as a list of numbers, got text {numbers!r}")
    found = [decimal(number) for number in numbers]
    if not found or min(found) <= 0:
        raise LeakauditError(
            f"recal: expected {name} as a positive number, or one per node separated by commas, "
            f"got {written(numbers)!r}"
        )
    return found
