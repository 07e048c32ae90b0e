"""PDMM and ADMM: decentralised training by operator splitting, plain or differential.

W. Yu, Privacy Analysis of Decentralized Federated Learning (2023), Algorithms 1 and 2.
Node i has d_i neighbours j; B = +1 if i < j, else -1:

    w_i     <- argmin f_i(w) + sum_j B z_{i|j} w + rho d_i / 2 |w|^2
    z_{j|i} <- z_{j|i} + theta ( z_{i|j} - z_{j|i} + 2 rho B w_i )              travels i -> j

With S_i = sum_j B z_{i|j} and T_i = sum_j B z_{j|i} the nodes need no wires: the update reads S alone, and
S, T move by theta (T - S - 2 rho sum_j w_j) and theta (S - T + 2 rho d_i w_i).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from leakaudit.arcs import Arcs
from leakaudit.curves import Curves
from leakaudit.errors import LeakauditError
from leakaudit.progress import step
from leakaudit.prox import exact, prox
from leakaudit.registry import param, victim
from leakaudit.relations import Relations, decimal
from leakaudit.trace import Graph
from leakaudit.victim import Victim
from leakaudit.victims._blocks import blocks  # noqa: TID251 - shared by files of this folder alone
from leakaudit.victims._growth import TOO_FAST, growth  # noqa: TID251 - shared by files of this folder alone

if TYPE_CHECKING:
    from leakaudit.recorder import Recorder
    from leakaudit.task import Problem, Task

ROWS = 1 << 16  # numbers of one direction of some wires that are worked on together, so that they stay in cache


@victim("pdmm")
@dataclass(frozen=True)
class PDMM(Victim):
    """PDMM (theta = 1) and ADMM (theta = 1/2) with exact, gradient-step or quadratic local updates."""

    paper: ClassVar[str] = "Yu 2023 (TU Delft), Algorithms 1 and 2"
    leaks_what: ClassVar[str] = "every one-step gradient difference; every gradient where z^0 is known or messages are plain"
    separable: ClassVar[bool] = True

    rho: float = param(0.4, "penalty of disagreement", "rho")
    theta: float = param(1.0, "averaging: 1 is PDMM (Peaceman-Rachford), 0.5 is ADMM (Douglas-Rachford)", "theta")
    update: Literal["gradient", "quadratic", "exact"] = param(
        "gradient", "local update: k_max gradient steps, quadratic approximation, or exact"
    )
    alpha: float = param(0.05, "step size of update=gradient", "alpha")
    k_max: int = param(1, "gradient steps a round of update=gradient", "k_max")
    mu: float = param(20.0, "curvature of update=quadratic", "mu")
    differential: bool = param(True, "send changes of z; z^0 goes over an encrypted channel")
    z0: float = param(0.1, "standard deviation of the random z^0; 0 starts at zero, which protects nothing", "z^0")
    quantize: float = param(0.0, "cell width of a fixed quantizer on what travels; 0 sends plain floating point", "Delta")

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not (
            0 < self.theta <= 1
            and self.rho > 0
            and self.alpha > 0
            and self.mu > 0
            and self.k_max >= 1
            and self.z0 >= 0
            and self.quantize >= 0
        ):
            raise LeakauditError("pdmm: expected 0 < theta <= 1, rho, alpha, mu > 0, k_max >= 1, z0 >= 0 and quantize >= 0")

    @property
    def stationary(self) -> bool:
        """All rounds have the same relations."""
        return True

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Refuse an exact update of a model that is not convex, and gradient steps that diverge whatever the data are."""
        if self.update == "exact":
            exact(task)
        if self.update == "gradient":
            factor = growth(graph, self.alpha, self.rho, self.theta, self.k_max, task.l2)
            if factor > TOO_FAST:
                degree = max(map(graph.degree, range(graph.nodes)))
                raise LeakauditError(
                    f"pdmm: alpha (l2 + rho d) = {self.alpha * (task.l2 + self.rho * degree):g} for a node of {degree} neighbours: "
                    f"the run diverges, by {factor:.3g} a round, whatever the data are; lower alpha or rho"
                )

    def messages(self, graph: Graph, rounds: int, wires: Iterable[tuple[int, int]]) -> int:
        """Two a wire and round, and two that exchange z^0."""
        return 2 * len(list(wires)) * (rounds + 1)

    def step(self, degree: Tensor) -> tuple[Tensor, Tensor]:
        """Return c0, c1 of one inexact step w <- c0 w - c1 (g + S); degree and results (N, 1)."""
        if self.update == "quadratic":
            c1 = 1 / (self.mu + self.rho * degree)
            return self.mu * c1, c1
        return 1 - self.alpha * self.rho * degree, torch.full_like(degree, self.alpha)

    def run(
        self, problem: Problem, graph: Graph, rounds: int, recorder: Recorder, generator: Generator, wires: Iterable[tuple[int, int]]
    ) -> None:
        """Train; the cost of a round does not grow with wires that nobody records, unless a quantizer acts on each."""
        state = _State(self, problem, graph, recorder, generator, list(wires))
        curves = Curves(recorder, problem)
        recorder.state("w", 0, state.w)
        for t in range(1, rounds + 1):
            state.advance(t)
            recorder.state("w", t, state.w)
            curves.observe(t, state.w, s=state.s)
            recorder.end_round(t)
            step("recording", t, rounds)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare both updates; z_{i|j} is held by i, and moves by what arrives."""
        p, near, cell = Relations(graph), graph.neighbours, self.quantize / 12**0.5
        rho, theta, alpha, mu = map(decimal, (self.rho, self.theta, self.alpha, self.mu))
        sign = {(i, j): 1 if i < j else -1 for i, j in graph.arcs}
        w = dict.fromkeys(range(graph.nodes), p.public("w0"))
        if self.z0:
            z = {(j, i): p.secret("z", j, i) for i, j in sign}
            for i, j in sign:
                p.send(i, j, z[j, i], "z0", secure=True)
        else:
            z = dict.fromkeys(sign, p.public("z0"))
        for _ in p.rounds(rounds):
            for i in range(graph.nodes):
                pull, push = sum(sign[i, j] * z[i, j] for j in near[i]), rho * len(near[i])
                if self.update == "exact":
                    new = p.state("w", i)
                    p.relate(push * new, -(p.grad(i, at=new) + pull))
                    w[i] = new
                elif self.update == "quadratic":
                    w[i] = p.state("w", i, eq=(mu * w[i] - p.grad(i, at=w[i]) - pull) / (mu + push))
                else:
                    for k in range(1, self.k_max + 1):
                        g = p.grad(i, at=w[i], index=None if self.k_max == 1 else k)
                        w[i] = p.state("w", i, None if k == self.k_max else k, eq=w[i] - alpha * (g + pull + push * w[i]))
            moved = {}
            for i, j in sign:
                change = theta * (z[i, j] - z[j, i] + 2 * rho * sign[i, j] * w[i])
                if self.differential:
                    moved[j, i] = p.state("z", j, i, eq=z[j, i] + p.send(i, j, change, "dz", std=cell))
                else:
                    moved[j, i] = p.send(i, j, z[j, i] + change, "z", std=cell)
            z = moved
        return p


class _State:
    """All nodes' w, S and T, (N, d), and the z of the wires that are materialised, (2, E, c): i -> j, then j -> i.

    each: whether all wires are, since a quantizer acts on them or nodes live in several processes.
    """

    def __init__(
        self, victim: PDMM, problem: Problem, graph: Graph, recorder: Recorder, generator: Generator, wires: list[tuple[int, int]]
    ) -> None:
        task, n = problem.task, graph.nodes
        self.victim, self.problem, self.recorder = victim, problem, recorder
        start = recorder.public["w0"].to(problem.x.device)
        self.w = start.repeat(n, 1)
        self.degree = torch.tensor([[graph.degree(i)] for i in range(n)], dtype=start.dtype, device=start.device)
        self.c, self.g = victim.step(self.degree), torch.empty_like(self.w)
        around = [torch.tensor(n, device=start.device) for n in graph.neighbours]
        self.others = torch.cat(around), torch.tensor([0, *map(len, around[:-1])], device=start.device).cumsum(0)
        self.each = bool(victim.quantize) or recorder.partial
        kept = set(graph.edges if self.each else wires)
        self.wires = torch.tensor(sorted(kept), dtype=torch.long).reshape(-1, 2)
        self.recorded = torch.tensor([tuple(e) in set(wires) for e in self.wires.tolist()], dtype=torch.bool)
        self.columns = slice(0, task.layout.size) if self.each else slice(*recorder.columns)
        src, dst = torch.cat((self.wires, self.wires.flip(1))).T
        self.arcs = Arcs(src, dst, torch.arange(len(src)), self.recorded.repeat(2))
        self._start_wires(graph, generator)

    def _start_wires(self, graph: Graph, generator: Generator) -> None:
        """Draw z^0 for every wire, whichever are kept, so that recording less does not change the training."""
        self.s, self.t = torch.zeros_like(self.w), torch.zeros_like(self.w)
        self.z = self.w.new_zeros(2, len(self.wires), self.columns.stop - self.columns.start)
        at = {tuple(e): k for k, e in enumerate(self.wires.tolist())}
        for i, j in graph.edges if self.victim.z0 else ():
            drawn = torch.randn(2, self.w.shape[1], generator=generator, dtype=self.w.dtype)
            there, back = drawn.mul_(self.victim.z0).to(self.w.device)  # z_{j|i}, z_{i|j}
            self.t[i] += there
            self.s[i] += back
            self.t[j] -= back
            self.s[j] -= there
            if (i, j) in at:
                self.z[0, at[i, j]], self.z[1, at[i, j]] = there[self.columns], back[self.columns]
        if self.recorder.partial:
            self._hear(self._exchange(0, "z0", self.z, secure=True))
        else:
            for out, z in zip(self._outgoing(0, "z0", secure=True), self.z, strict=False):
                out.copy_(self._recorded_columns(z[self.recorded.to(z.device)]))
        self.recorder.end_round(0)

    def advance(self, t: int) -> None:
        """Make one round: local updates, then what travels."""
        victim, problem = self.victim, self.problem
        if victim.update == "exact":
            self.w = prox(problem, self.w, self.s, victim.rho * self.degree)
        inner = {"exact": 0, "gradient": victim.k_max, "quadratic": 1}[victim.update]
        for k in range(inner):
            problem.task.gradients(self.w, problem.x, problem.y, out=self.g)
            for part in blocks(self.w):
                self._descend(part)
                if k == inner - 1:
                    self._move(part)
        if not inner:
            self._move(slice(None))
        if victim.theta == 1 and not self.each:
            self.s, self.t = self.t, self.s
        if self.recorder.partial:
            self._trade(t)
        else:
            self._send(t)

    def _descend(self, part: slice) -> None:
        """Take w <- c0 w - c1 (g + S) on some columns."""
        c0, c1 = self.c
        self.w[:, part].mul_(c0).addcmul_(self.g[:, part], c1, value=-1).addcmul_(self.s[:, part], c1, value=-1)

    def _move(self, part: slice) -> None:
        """Move S and T on some columns; for theta = 1 they change places, which `advance` completes."""
        victim = self.victim
        if self.each:
            return
        w, s, t = self.w[:, part], self.s[:, part], self.t[:, part]
        pull = 2 * victim.rho * self.degree
        others = F.embedding_bag(self.others[0], w.contiguous(), self.others[1], mode="sum")  # sum_j w_j; 2.5 times faster than a product
        if victim.theta == 1:
            t.sub_(others, alpha=2 * victim.rho)
            s.addcmul_(w, pull)
        else:
            change = (t - s).sub_(others, alpha=2 * victim.rho).mul_(victim.theta)
            t.lerp_(torch.addcmul(s, w, pull), victim.theta)
            s.add_(change)

    def _send(self, t: int) -> None:
        """Move z on the wires kept, and write what travels into the recording."""
        outs = self._outgoing(t, "dz" if self.victim.differential else "z")
        size, row = len(self.wires), 0
        together = max(1, ROWS // max(1, self.z.shape[2]))  # wires whose rows stay in cache
        for at in range(0, size, together):
            some = slice(at, at + together)
            kept = self.recorded[some]
            rows = slice(row, row + int(kept.sum()))
            row = rows.stop
            direct = self.victim.differential and not self.victim.quantize and self.z.is_cpu
            change = [out[rows] for out in outs] if direct else [torch.empty_like(z) for z in self.z[:, some]]
            self._travel(some, *change)
            for out, z, sent in () if direct else zip(outs, self.z[:, some], change, strict=False):
                shown = sent if self.victim.differential else z
                out[rows].copy_(self._recorded_columns(shown if bool(kept.all()) else shown[kept.to(shown.device)]))

    def _trade(self, t: int) -> None:
        """Move every z by what arrives from the process of its other end; where nothing arrives it stays."""
        change = torch.empty_like(self.z)
        self._changes(slice(None), *change)
        if self.victim.differential:
            self._hear(self.z + self._exchange(t, "dz", change, instead=lambda: torch.zeros_like(change)))
        else:
            self._hear(self._exchange(t, "z", self.z + change, instead=lambda: self.z))

    def _exchange(self, t: int, kind: str, z: Tensor, secure: bool = False, instead: Callable[[], Tensor] | None = None) -> Tensor:
        """Send (2, E, d) and return what the receivers hold."""
        flat = None if instead is None else lambda: instead().flatten(0, 1)
        return self.recorder.exchange(t, kind, z.flatten(0, 1), self.arcs, secure, flat).view_as(z)

    def _hear(self, z: Tensor) -> None:
        """Take over z as it stands after an exchange; S_i = sum_j B z_{i|j}."""
        self.z, (i, j) = z, self.wires.to(z.device).T
        self.s.zero_().index_add_(0, i, z[1]).index_add_(0, j, z[0], alpha=-1)

    def _travel(self, some: slice, there: Tensor, back: Tensor) -> None:
        """Fill in the changes of z on some wires, i -> j and j -> i, and apply them as both ends do.

        With a quantizer, what arrives is what counts.
        """
        self._changes(some, there, back)
        for z, change in zip(self.z[:, some], (there, back), strict=True):
            z.add_(change)
        if self.victim.quantize:
            i, j = self.wires[some].to(self.z.device).T
            self.t.index_add_(0, i, there).index_add_(0, j, -back)
            self.s.index_add_(0, i, back).index_add_(0, j, -there)

    def _changes(self, some: slice, there: Tensor, back: Tensor) -> None:
        """Fill in the changes of z on some wires, i -> j and j -> i, as their senders reckon them."""
        victim, cell = self.victim, self.victim.quantize
        z, (i, j) = self.z[:, some], self.wires[some].to(self.z.device).T
        w = self.w[:, self.columns]
        own, other = (w[i], w[j]) if len(i) > 1 else (w[i[0]][None], w[j[0]][None])
        torch.sub(z[1], z[0], out=there)
        torch.neg(there, out=back)
        there.add_(own, alpha=2 * victim.rho)
        back.sub_(other, alpha=2 * victim.rho)
        for change, old in zip((there, back), z, strict=True):
            if victim.theta != 1:
                change.mul_(victim.theta)
            if cell and victim.differential:
                change.div_(cell).round_().mul_(cell)
            elif cell:
                change.add_(old).div_(cell).round_().mul_(cell).sub_(old)

    def _outgoing(self, t: int, kind: str, secure: bool = False) -> list[Tensor]:
        """Reserve this round's rows of the recording: those i -> j, those j -> i."""
        i, j = self.wires[self.recorded].T
        return [self.recorder.send_many(t, *ends, kind, secure=secure) for ends in ((i, j), (j, i)) if len(i)]

    def _recorded_columns(self, z: Tensor) -> Tensor:
        start, stop = self.recorder.columns
        return z[:, start - self.columns.start : stop - self.columns.start]
