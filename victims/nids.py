"""NIDS: as EXTRA, but every node may choose its own step, and what travels holds the gradient.

Li, Shi and Yan 2019, eqs. (1), (2), Metropolis weights, A = diag(a_i), Wn = I - c A (I - W), c = 1 / (2 max a_i):

    z^1 = x^0 - A g^0        x^t = prox_{a_i l1}(z^t)        m^t = 2 x^t - x^{t-1} - A (g^t - g^{t-1})        z^{t+1} = z^t - x^t + Wn m^t

m travels: nothing in round 1, m^{t-1} in round t, which also takes g^{t-1}. x^0 is common, or private (spread > 0), which nobody needs to
hear. Noise of round t has standard deviation sigma fade^t: noise=state adds it to x wherever it is used, and with fade < 1 the optimum is
reached; noise=message adds it to m alone and leaves an error for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Generator, Tensor

from leakaudit.errors import LeakauditError
from leakaudit.progress import step
from leakaudit.protocols.blocks import blocks
from leakaudit.protocols.broadcast import Broadcast
from leakaudit.protocols.consensus import Mixing
from leakaudit.protocols.local import above, stable
from leakaudit.protocols.released import Released, ranges, shrink, start
from leakaudit.protocols.training_curves import Curves
from leakaudit.registry import param, victim
from leakaudit.relations import Expression, Relations, decimal
from leakaudit.trace import Graph
from leakaudit.victim import Victim

if TYPE_CHECKING:
    from leakaudit.tasks.task import Problem, Task
    from leakaudit.traces.recorder import Recorder


@victim("nids")
@dataclass(frozen=True)
class Nids(Victim):
    """NIDS with common or own steps."""

    paper: ClassVar[str] = "Li, Shi and Yan 2019 (NIDS)"
    leaks_what: ClassVar[str] = (
        "every gradient from the third on, from the messages alone, even where the start is private"
    )
    separable: ClassVar[bool] = True
    regular: ClassVar[bool] = True

    alpha: float = param(0.1, "step size of all nodes", "alpha")
    alphas: str = param(
        "",
        "step sizes of the nodes, separated by commas, in place of alpha; 1 / L_i needs no agreement",
        "a_i",
    )
    l1: float = param(0.0, "weight of the l1 norm in every node's objective", "r_i")
    spread: float = param(
        0.0, "standard deviation of private start models around the common one", "x^0"
    )
    sigma: float = param(0.0, "standard deviation of the noise in round 0", "sigma")
    fade: float = param(1.0, "factor of the standard deviation from round to round", "R")
    noise: Literal["state", "message"] = param(
        "state", "noise on the models wherever they are used, or on what travels"
    )

    def __post_init__(self) -> None:
        """Check the ranges."""
        above("nids", alpha=self.alpha)
        ranges("nids", self.l1, self.spread, self.sigma, self.fade)

    def own_steps(self, nodes: int) -> tuple[Fraction, ...]:
        """Return a_i of every node."""
        if not self.alphas:
            return (decimal(self.alpha),) * nodes
        try:
            steps = tuple(decimal(float(text)) for text in self.alphas.split(","))
        except (ValueError, OverflowError):
            steps = ()
        if len(steps) != nodes or min(steps) <= 0:
            raise LeakauditError(
                f"nids: alphas: expected {nodes} positive numbers separated by commas, got {self.alphas!r}"
            )
        return steps

    @property
    def stationary(self) -> bool:
        """All rounds have the same relations where the noise does not fade."""
        return not self.sigma or self.fade == 1

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Refuse steps that are not as many as the nodes, or that diverge on the task's l2 term."""
        stable(
            "nids",
            task,
            **{"alphas" if self.alphas else "alpha": float(max(self.own_steps(graph.nodes)))},
        )

    def run(
        self,
        problem: Problem,
        graph: Graph,
        rounds: int,
        recorder: Recorder,
        generator: Generator,
        wires: Iterable[tuple[int, int]],
    ) -> None:
        """Train; the generator draws noise and private starts."""
        mix, channel, curves = Mixing(graph), Broadcast(recorder, wires), Curves(recorder, problem)
        released = Released(self.sigma, self.fade, recorder, generator)
        w = start(problem, recorder, generator, self.spread)
        steps = self.own_steps(graph.nodes)
        largest = max(steps)
        a = torch.tensor([[float(s)] for s in steps], dtype=w.dtype, device=w.device)
        pull = torch.tensor(
            [[float(s / largest / 2)] for s in steps], dtype=w.dtype, device=w.device
        )
        recorder.state("w", 0, w)
        before, z, last, g, own = w, w, *(torch.empty_like(w) for _ in range(3))
        for t in range(1, rounds + 1):
            problem.task.gradients(w, problem.x, problem.y, out=g)
            if t == 1:
                z = w - a * g
            else:
                for part in blocks(own):
                    torch.sub(last[:, part], g[:, part], out=own[:, part]).mul_(a).add_(
                        w[:, part], alpha=2
                    ).sub_(before[:, part])
                m = channel.send(t, "m", released(t, own) if self.noise == "message" else own)
                new = before if w is z else z  # the oldest vector, which m has used up
                for part in blocks(new):
                    change = mix(m[:, part]).sub_(m[:, part]).mul_(pull).add_(m[:, part])
                    new[:, part] = change.add_(z[:, part]).sub_(w[:, part])
                z = new
            before, last, g = w, g, last
            w = shrink(z, a * self.l1) if self.l1 else z
            recorder.state("z", t, z)
            w = released(t, w) if self.noise == "state" else w
            recorder.state("w", t, w)
            curves.observe(t, w)
            recorder.end_round(t)
            step("recording", t, rounds)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare z, x and m; the prox is opaque. Without l1 and noise on x, z is x."""
        p, mix, steps = Relations(graph), Mixing(graph), self.own_steps(graph.nodes)
        nodes, shaken = range(graph.nodes), self.sigma and self.noise == "state"
        w = (
            {i: p.secret("w", i) for i in nodes}
            if self.spread
            else dict.fromkeys(nodes, p.public("w0"))
        )
        before, last, z = dict(w), dict[int, Expression](), dict(w)
        for t in p.rounds(rounds):
            std = self.sigma * self.fade**t
            g = {i: p.grad(i, at=w[i]) for i in nodes}
            m = {}
            for i in nodes if t > 1 else ():
                out = 2 * w[i] - before[i] - steps[i] * (g[i] - last[i])
                out = out + p.noise("xi", std, i) if self.sigma and not shaken else out
                m[i] = p.send(i, graph.neighbours[i], out, "m")
            before, last = dict(w), g
            for i in nodes:
                pull = steps[i] / max(steps) / 2
                new = (
                    z[i] - before[i] + m[i] - pull * (m[i] - mix.declared(i, m))
                    if m
                    else before[i] - steps[i] * g[i]
                )
                w[i], z[i] = self._moved(p, i, new, std if shaken else 0.0)
        return p

    def _moved(
        self, p: Relations, i: int, new: Expression, std: float
    ) -> tuple[Expression, Expression]:
        """Return x and z of node i from the form of z."""
        if not (self.l1 or std):
            x = p.state("w", i, eq=new)
            return x, x
        z = p.state("z", i, eq=new)
        x = z
        if self.l1:
            x = p.state("x" if std else "w", i)
            p.opaque(x, of=[z])
        return (p.state("w", i, eq=x + p.noise("xi", std, i)) if std else x), z
