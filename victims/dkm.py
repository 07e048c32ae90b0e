"""DP-dKM: the decentralised Krasnosel'skii-Mann iteration on noisy broadcasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from leakaudit.core.claim import Adjacency, Claim
from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph, Setting
from leakaudit.protocols.batches import batches, enough, is_drawn, replaced
from leakaudit.protocols.blocks import blocks
from leakaudit.protocols.consensus import Mixing
from leakaudit.protocols.local import stable
from leakaudit.protocols.mixing import matrix, metropolis
from leakaudit.protocols.noises import Noise, calibrated
from leakaudit.protocols.prox import exact, prox
from leakaudit.protocols.released import shrink
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Expression, Relations, decimal

if TYPE_CHECKING:
    from leakaudit.tasks.task import Problem, Task
    from leakaudit.traces.recorder import Recorder

# DP-dKM (2024), Algorithm 1. Agents share a doubly stochastic W; X^0 is common and public. In round
# k:
#
#     x^k(m) <- sum_l w_ml xt^{k-1}(l) + alpha_{k-1} ( T(x^{k-1}(m)) - x^{k-1}(m) )
#     xt^k(m) = x^k(m) + noise                                                  is broadcast
#
#     gd    T = I - gamma grad f                                                does not use l1
#     pgd   T = prox_{gamma R} (I - gamma grad f)
#     dr    T = I + prox_{gamma f} (2 prox_{gamma R} - I) - prox_{gamma R}
#
# with R = l1 |x|_1. With dr the model is prox_{gamma R}(x). f is the task's loss: model=linear
# gives the paper's least squares (halved), model=logistic its logistic regression. The paper's
# table of operators is not available to us; the operators above are the standard ones. With pgd and
# dr the agents' mean does not converge to the optimum of the sum, because a mean of such operators
# is not the operator of the mean. The noise of a release is that for its sensitivity Delta: a
# number or, as in the paper, the bound Delta_K of Theorem 1 on the mean of all models after K
# iterations. The paper then promises (epsilon, delta) of all broadcasts together. Theorem 6 is
# implemented as printed, but the mechanism does not satisfy it: the two densities differ by more
# than e^epsilon on their common support.

SOURCES = {
    "laplace": ("Laplace mechanism", "l1"),
    "gaussian": (
        "Gaussian mechanism, sigma = sqrt(2 log(1.25 / delta)) Delta / epsilon",
        "Euclidean",
    ),
    "truncated_laplace": ("DP-dKM, Definition 6", "Euclidean"),
    "truncated_gaussian": ("DP-dKM, Theorem 6", "Euclidean"),
}
ADJACENCY = "one record of one agent is replaced"


@victim("dkm")
@dataclass(frozen=True)
class DKM(SimulatedVictim):
    """DP-dKM with three operators and five noise mechanisms."""

    paper: ClassVar[str] = "DP-dKM 2024, Algorithm 1"
    sends: ClassVar[Mapping[str, str]] = {
        "x": "model of a node, with its noise",
    }
    leaks_what: ClassVar[str] = (
        "every T(x) - x up to the noise of its round; "
        "this gives every gradient if l1 = 0 or operator=gd"
    )
    claims_what: ClassVar[str] = (
        "(epsilon, delta) of one broadcast and of all (Theorems 4 and 6); sensitivity (Theorem 1)"
    )
    separable: ClassVar[bool] = True
    noise_constant: ClassVar[str] = "factor"
    regular: ClassVar[bool] = True
    noiseless: ClassVar[Mapping[str, Setting]] = {"mechanism": "none"}

    operator: Literal["gd", "pgd", "dr"] = param(
        "gd", "gradient, proximal gradient, or Douglas-Rachford (convex models only)", "T"
    )
    gamma: float = param(0.1, "step size of the operator", "gamma")
    l1: float = param(0.0, "weight of the l1 regulariser of operators pgd and dr", "lambda")
    alpha: float = param(0.5, "relaxation in the first iteration", "alpha_0")
    fade: float = param(0.0, "alpha_k = alpha / (1 + k / fade); 0 keeps alpha constant")
    batch: int = param(0, "records per mini-batch; 0 uses all")
    mechanism: Literal["none", "laplace", "gaussian", "truncated_laplace", "truncated_gaussian"] = (
        param("none", "noise of the broadcasts")
    )
    epsilon: float = param(
        0.5, "epsilon of one release; with sensitivity=0 the paper claims it for all", "epsilon"
    )
    delta: float = param(1e-3, "delta of that epsilon", "delta")
    sensitivity: float = param(
        0.0, "largest change of one release by one record; 0: Delta_K of Theorem 1", "Delta"
    )
    factor: float = param(1.0, "factor of the noise that the mechanism prescribes")
    bound: float = param(1.0, "largest |T(x) - x| of a record, for Theorem 1", "B")
    records: int = param(0, "records per agent, for Theorem 1; 0 if unknown", "N")
    horizon: int = param(0, "iterations of Theorem 1; set automatically when recording", "K")

    def __post_init__(self) -> None:
        positive = min(self.gamma, self.bound, self.factor) > 0 and 0 < self.alpha <= 1
        counts = min(self.l1, self.fade, self.batch, self.records, self.horizon)
        if not (positive and counts >= 0):
            raise LeakauditError(
                "dkm: expected gamma, bound, factor > 0, 0 < alpha <= 1 "
                "and l1, fade, batch, records, horizon >= 0"
            )
        if not (self.epsilon > 0 and 0 < self.delta < 0.5 and self.sensitivity >= 0):
            raise LeakauditError("dkm: expected epsilon > 0, 0 < delta < 0.5 and sensitivity >= 0")
        if self.operator == "gd" and self.l1:
            raise LeakauditError(
                "dkm: operator gd has no regulariser; use operator=pgd or dr, or l1=0"
            )
        calibrated(self.mechanism, self.epsilon, self.delta, 1.0)
        known = self.sensitivity or (self.records and self.horizon)
        if self.mechanism != "none" and not known:
            raise LeakauditError(
                f"dkm: the noise of {self.mechanism} needs the sensitivity of Theorem 1; "
                "set records and horizon for it, or sensitivity=…"
            )

    @property
    def stationary(self) -> bool:
        """All rounds have the same relations if alpha is constant."""
        return not self.fade

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject settings that cannot run.

        These are operator=dr with a model that is not convex, a mini-batch larger than a node's
        data, and step sizes that diverge on the task's l2 term.
        """
        enough(self.batch, samples)
        if self.operator == "dr":
            exact(task)
        else:
            stable("dkm", task, gamma=self.gamma)

    def train(self, sim: Simulation) -> None:
        """Train; the curves are those of the model, which is prox(x) for operator=dr."""
        recorder = sim.recorder
        x = sim.begin(sim.common)
        told = x
        noise = self._noise(sim.graph)
        mix = Mixing(sim.graph)
        spare = torch.empty_like(x)
        for t in sim.rounds:
            (part,) = batches(sim.problem, self.batch, 1, sim.generator)
            relax = float(self._relaxation(t))
            if self.operator == "dr" or self.l1:
                x = mix(told) + relax * self._residual(part, x, t, recorder)
            else:
                g = part.task.gradients(x, part.x, part.y, out=spare)
                if self.batch:
                    recorder.state("g", t, g)
                size = relax * self.gamma
                for some in blocks(x):
                    torch.sub(mix(told[:, some]), g[:, some], alpha=size, out=x[:, some])
            shown = x
            if noise is not None:
                n = noise.draw(x, sim.generator)
                recorder.state("n", t, n)
                shown = x + n
            told = sim.send(t, "x", shown)
            sim.end(t, x, self._shrink(x) if self.operator == "dr" else None)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the broadcasts and T - I; a prox is an unknown function of its argument."""
        p = Relations(graph)
        mix = Mixing(graph)
        noise = self._noise(graph)
        x = dict.fromkeys(range(graph.nodes), p.public("w0"))
        told = dict(x)
        for t in p.rounds(rounds):
            for i in x:
                mixed = mix.declared(i, told)
                x[i] = p.state("w", i, eq=mixed + self._relaxation(t) * self._declared(p, i, x[i]))
            shown = x
            if noise is not None:
                shown = {i: x[i] + noise.declared(p, "n", i) for i in x}
            told = {i: p.send(i, graph.neighbours[i], shown[i], "x") for i in x}
        return p

    def claims(
        self, graph: Graph, rounds: int, public: Mapping[str, Tensor] | None = None
    ) -> tuple[Claim, ...]:
        """Return the mechanism's theorem, Theorem 4 and Theorem 1.

        They concern one broadcast, the sum over all broadcasts (eps_1 of Theorem 4), and the
        sensitivity of the result. Noise for Delta_K is claimed to suffice for all broadcasts.
        """
        claims = list[Claim]()
        if self.mechanism != "none":
            one = self._of_broadcast(graph)
            claims += [one, self._of_all(one, rounds, graph)]
        if self.records:
            most = self._theorem_1(graph, rounds)
            moved = Claim(
                source="DP-dKM, Theorem 1",
                promise=f"one record changes the final mean by at most {most:.4g} in expectation",
                adjacency=ADJACENCY,
                neighbours=Adjacency.REPLACE,
                rounds=rounds,
                assumes=("|T(x) - x| <= B", "X^0 = 0", "one random record per iteration"),
            )
            claims.append(moved)
        return tuple(claims)

    def _of_broadcast(self, graph: Graph) -> Claim:
        """Return the claim of one broadcast: the mechanism's theorem at Delta."""
        required = calibrated(self.mechanism, self.epsilon, self.delta, self._delta(graph))
        assert required is not None
        source, norm = SOURCES[self.mechanism]
        moved = f"one record changes a broadcast by at most Delta = {self._delta(graph):g}"
        assumes = [f"{moved} in {norm} norm"]
        if not self.sensitivity:
            assumes.append(f"|T(x) - x| <= B = {self.bound:g} for every record")
        return Claim(
            source=source,
            promise="one broadcast is differentially private",
            epsilon=self.epsilon,
            delta=0.0 if self.mechanism == "laplace" else self.delta,
            adjacency=ADJACENCY,
            neighbours=Adjacency.REPLACE,
            std=required.std,
            rounds=1,
            assumes=tuple(assumes),
            sensitivity=self._moved,
            classic=self.mechanism == "gaussian",
            calibrated_to=self._delta(graph),
            met=self.factor >= 1,
        )

    def _of_all(self, one: Claim, rounds: int, graph: Graph) -> Claim:
        """Return the claim of all broadcasts: the same at Delta_K, otherwise the sum of them."""
        if not self.sensitivity:
            return replace(
                one,
                source="DP-dKM, section 1.2 and Theorem 1",
                classic=False,
                promise="all broadcasts together are differentially private, as their noise is "
                "calibrated to Delta_K",
                rounds=self.horizon,
                sampled=is_drawn(self.batch, self.records),
            )
        count = rounds * graph.nodes
        return replace(
            one,
            source="DP-dKM, Theorem 4",
            classic=False,
            promise=f"all {count} broadcasts together are differentially private "
            "(eps_1: the sum over all)",
            epsilon=count * self.epsilon,
            delta=count * (one.delta or 0.0),
            rounds=rounds,
        )

    @property
    def _moved(self) -> float:
        """Return how far a gradient may move at the same x: for a broadcast to move by Delta.

        The three operators are nonexpansive functions of gamma times the gradient. With Delta_K, T
        moves by 2 B at most, since |T(x) - x| <= B for each record; gd averages over them.
        """
        if not self.sensitivity:
            averaged = self.batch if self.operator == "gd" else 1
            return replaced(self.bound / self.gamma, averaged, self.records)
        return self.sensitivity / (self.alpha * self.gamma)

    def _noise(self, graph: Graph) -> Noise | None:
        if self.mechanism == "none":
            return None
        required = calibrated(self.mechanism, self.epsilon, self.delta, self._delta(graph))
        assert required is not None
        scaled = {name: getattr(required, name) * self.factor for name in ("scale", "width")}
        return replace(required, **scaled)

    def _delta(self, graph: Graph) -> float:
        """Return Delta, the sensitivity for which the noise is calibrated."""
        return self.sensitivity or self._theorem_1(graph, self.horizon)

    def _theorem_1(self, graph: Graph, rounds: int) -> float:
        """Return the bound of Theorem 1.

        2 B sum_k alpha_k / (N M) + 4 B sum_k (1 + 2 alpha_k) sum_{j<k} alpha_j lambda^{k-1-j}
        """
        w = matrix(metropolis(graph), torch.zeros(0, dtype=torch.float64))
        mixing = float(torch.linalg.eigvalsh(w)[:-1].abs().max())  # lambda: without the largest, 1
        total = 0.0  # sum of the alpha so far
        past = 0.0  # the inner sum, over j < k
        far = 0.0  # the outer sum
        for k in range(rounds):
            alpha = float(self._relaxation(k + 1))
            far += (1 + 2 * alpha) * past
            past = mixing * past + alpha
            total += alpha
        return 2 * self.bound * total / (self.records * graph.nodes) + 4 * self.bound * far

    def _relaxation(self, t: int) -> Fraction:
        """Return alpha_{t-1}, the relaxation of round t."""
        if not self.fade:
            return decimal(self.alpha) / 1
        return decimal(self.alpha) / (1 + (t - 1) / decimal(self.fade))

    def _shrink(self, x: Tensor) -> Tensor:
        """Return prox_{gamma R}(x)."""
        return shrink(x, self.gamma * self.l1)

    def _residual(self, part: Problem, x: Tensor, t: int, recorder: Recorder) -> Tensor:
        """Return T(x) - x of all agents, (N, d)."""
        if self.operator == "dr":
            r = self._shrink(x)
            weight = torch.full_like(x[:, :1], 1 / self.gamma)
            v = prox(part, r, (x - 2 * r) / self.gamma, weight)
            at = v
        else:
            r = x
            at = x
            v = self._shrink(x - self.gamma * part.task.gradients(x, part.x, part.y))
        if self.batch:
            recorder.state("g", t, part.task.gradients(at, part.x, part.y))
        recorder.state("r", t, r)
        recorder.state("v", t, v)
        return v - r

    def _declared(self, p: Relations, i: int, x: Expression) -> Expression:
        """Declare T(x) - x of agent i."""
        gamma = decimal(self.gamma)
        if self.operator == "dr":
            r = self._unknown(p, "r", i, x)
            v = p.state("v", i)
            step = gamma * p.grad(i, at=v)
            p.relate(step, 2 * r - x - v)
            p.firm(v, of=2 * r - x, by=step)
            return v - r
        moved = x - gamma * p.grad(i, at=x)
        if not self.l1:
            return moved - x
        return self._unknown(p, "v", i, p.state("u", i, eq=moved)) - x

    def _unknown(self, p: Relations, name: str, i: int, of: Expression) -> Expression:
        """Declare prox_{gamma R}, which is nonlinear if there is a regulariser."""
        if not self.l1:
            return of
        out = p.state(name, i)
        p.opaque(out, of=[of])
        p.firm(out, of=of)
        return out
