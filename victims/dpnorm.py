"""DP-Norm: primal-dual learning with noisy messages; with sigma = alpha = 0 it is ECL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import torch
from torch import Generator, Tensor

from leakaudit.core.claim import Adjacency, Claim, NormAssumption
from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols.batches import batches, enough, is_drawn, replaced, turns
from leakaudit.protocols.blocks import blocks
from leakaudit.protocols.dpnorm_family import Duals, Theorem, guaranteed, level, sensitivity, sign
from leakaudit.protocols.schedules import draw_moments, read
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Expression, Form, Relations, Turns, decimal

if TYPE_CHECKING:
    from leakaudit.tasks.task import Task

# DP-Norm (2023), Algorithm 1. Node i has E_i neighbours j; A_{i|j} = +1 if i < j, else -1; eta_i =
# 1 / (mu E_i K), gamma_i = 1 + alpha eta_i; z starts at zero and w at a common model. In a round,
# with one noise vector n_i:
#
#     w_i    <- gamma_i / (gamma_i + eta_i mu E_i)
#               ( w_i - mu g_i(w_i) + mu eta_i / gamma_i sum_j A_{i|j} z_{i|j} )       K times
#     y_{i|j} = 2 / gamma_i ( z_{i|j} - A_{i|j} (w_i + n_i) ) - z_{i|j}            is sent i -> j
#     z_{j|i} <- y_{i|j}
#
# Lines 16 to 19 stand inside the loop over the inner steps: a channel sends once per round "at
# random time", and z_{j|i} counts from the next step on (order=random; the experiments of section
# VI ran so). The analyses of section V assume that all channels send at the end of a round. The
# channels of a node then show different inner models under the same n_i, so that differences of its
# messages are free of noise.
#
# The appendix draws noise in every inner step and subtracts mu eta_i / gamma_i E_i n_i inside the
# bracket; the message then contains the last draw. Node-wise eta_i weights the losses by E_i: on
# irregular graphs the fixed point is argmin sum_i E_i f_i, which the paper's ring does not reveal;
# eta=common, with the mean degree in place of E_i, corrects this. Theorem 1 prints epsilon under
# the square root of its noise level; in its proof, eq. (8), epsilon is outside the root.

FORMS: dict[Theorem, str] = {"eq8": "in the form of eq. (8)", "printed": "as printed"}


@victim("dpnorm")
@dataclass(frozen=True)
class DPNorm(SimulatedVictim):
    """ECL and DP-Norm with K inner steps per round and noise on the dual messages."""

    paper: ClassVar[str] = "DP-Norm 2023, Algorithm 1; ECL if sigma = alpha = 0"
    sends: ClassVar[Mapping[str, str]] = {
        "y": "dual variable of a channel, with the noise of the round",
        "early": "the same before the last step of a round (only with resend=true)",
    }
    leaks_what: ClassVar[str] = (
        "the weighted sum of a round's gradients, up to the noise of two rounds; "
        "without noise if a node sends at several times of a round"
    )
    claims_what: ClassVar[str] = (
        "(epsilon, delta) of all messages of a node (Theorem 1, in two forms)"
    )
    separable: ClassVar[bool] = True
    regular: ClassVar[bool] = True

    mu: float = param(0.05, "step size", "mu")
    inner: int = param(1, "inner steps per round", "K")
    alpha: float = param(0.0, "weight of the denoising normalisation; 0 disables it", "alpha")
    eta: Literal["node", "common"] = param(
        "node", "dual step size: from each node's degree, or from the mean degree"
    )
    sigma: float = param(
        0.01, "standard deviation of the noise if epsilon is not given; 0 adds none", "sigma"
    )
    noise: Literal["round", "inner"] = param(
        "round", "one draw per round (Algorithm 1), or one per inner step (appendix)"
    )
    order: Literal["synchronous", "random"] = param(
        "synchronous",
        "when a round's messages are sent: after the last inner step, "
        "or each after a random one (public)",
    )
    resend: bool = param(
        False, "also send after half of the inner steps, with the noise of the round"
    )
    batch: int = param(0, "records per mini-batch; 0 uses all", "B")
    epsilon: float | None = param(None, "if given, Theorem 1 sets sigma from it", "epsilon")
    delta: float = param(1e-3, "delta of Theorem 1", "delta")
    theorem: Literal["eq8", "printed"] = param(
        "eq8", "form of Theorem 1: eq. (8) of its proof, or as printed"
    )
    lipschitz: float = param(1.0, "largest gradient norm of one record, for Theorem 1", "G")
    records: int = param(0, "records per node, for Theorem 1; 0 if unknown", "d_i")

    def __post_init__(self) -> None:
        positive = self.mu > 0 and self.lipschitz > 0 and self.inner >= 1
        if not (positive and min(self.alpha, self.sigma, self.batch, self.records) >= 0):
            raise LeakauditError(
                "dpnorm: expected mu, lipschitz > 0, inner >= 1 "
                "and alpha, sigma, batch, records >= 0"
            )
        if not 0 < self.delta < 1 or (self.epsilon is not None and self.epsilon <= 0):
            raise LeakauditError(
                "dpnorm: expected epsilon > 0 and 0 < delta < 1, "
                f"got {self.epsilon} and {self.delta}"
            )
        if self.epsilon is not None and self.records < max(1, self.batch):
            raise LeakauditError(
                "dpnorm: epsilon needs the number of records per node for Theorem 1; "
                f"set records=…, got {self.records}"
            )
        if self.resend and self.inner < 2:
            raise LeakauditError("dpnorm: resend needs at least two inner steps; set inner=2")
        if self.resend and self.order == "random":
            raise LeakauditError("dpnorm: resend requires order=synchronous")

    @property
    def stationary(self) -> bool:
        """Whether all rounds have the same relations."""
        return self.order == "synchronous"

    def turns(self, rounds: int) -> Turns | None:
        """Return the turns of `batches`, known if `records` is; every round shuffles anew."""
        return turns(self.batch, self.inner, rounds, self.records)

    def fits(self, task: Task, graph: Graph, samples: int) -> None:
        """Reject a mini-batch larger than a node's data, and noise for another record count."""
        enough(self.batch, samples)
        if self.epsilon is not None and self.records != samples:
            raise LeakauditError(
                f"dpnorm: records={self.records} sets the noise, but a node holds {samples}; "
                "make them equal"
            )

    def schedule(self, graph: Graph, rounds: int, generator: Generator) -> Mapping[str, Tensor]:
        """Publish the noise levels and the times of messages.

        Returns:
            ``sigma`` (N,), if Theorem 1 sets it for this number of rounds, and ``moments``
            (rounds, 2 E), the inner step, from 1, after which each channel of ``graph.arcs``
            sends, if order=random.
        """
        public = {}
        if self.epsilon is not None:
            public["sigma"] = torch.tensor(self._levels(graph, rounds), dtype=torch.float64)
        if self.order == "random":
            public["moments"] = draw_moments(len(graph.arcs), rounds, self.inner, generator)
        return public

    def _moments(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Tensor:
        """Return the inner step, from 1, after which each channel sends, (rounds, 2 E)."""
        channels = len(graph.arcs)
        if self.order == "synchronous":
            return torch.full((1, 1), self.inner).expand(rounds, channels)
        return read(public, "moments", rounds, channels, range(1, self.inner + 1))

    def _constants(self, graph: Graph, node: int) -> tuple[Fraction, Fraction]:
        """Return eta_i and gamma_i of a node, exactly."""
        degree = Fraction(graph.degree(node))
        if self.eta == "common":
            degree = Fraction(2 * len(graph.edges), graph.nodes)
        if not degree:
            raise LeakauditError(
                f"dpnorm: expected every node to have a neighbour, got none of node {node}"
            )
        eta = 1 / (decimal(self.mu) * degree * self.inner)
        return eta, 1 + decimal(self.alpha) * eta

    def train(self, sim: Simulation) -> None:
        """Train with one message per channel and round."""
        problem = sim.problem
        graph = sim.graph
        self.fits(problem.task, graph, problem.samples)
        w = sim.begin(sim.common)
        constants = [self._constants(graph, i) for i in range(graph.nodes)]
        together = self.order == "synchronous"
        moments = self._moments(graph, len(sim.rounds), sim.recorder.public)
        wire = Duals(sim, w, constants, together=together)
        levels = self._levels(graph, len(sim.rounds))
        sigma = torch.tensor(levels, dtype=torch.float64)[:, None].to(w)
        noisy = bool(sigma.any())
        n = torch.zeros_like(w)
        spare = torch.empty_like(w)
        for t in sim.rounds:
            pull = wire.pull()
            for k, part in enumerate(batches(problem, self.batch, self.inner, sim.generator)):
                if noisy and (k == 0 or self.noise == "inner"):
                    drawn = torch.randn(w.shape, generator=sim.generator, dtype=w.dtype)
                    n = sigma * drawn.to(w.device)
                    sim.recorder.state("n" if self.noise == "round" else f"n.{k}", t, n)
                g = problem.task.gradients(w, part.x, part.y, out=spare)
                if self.batch:
                    sim.recorder.state("g" if self.inner == 1 else f"g.{k}", t, g)
                self._step(g, w, pull, n, wire)
                w, spare = g, w
                if self._early(k):
                    wire.send(t, "early", w + n if noisy else w)
                due = (moments[t - 1] == k + 1).nonzero().flatten()
                if len(due) and not together:
                    wire.exchange_some(t, w + n if noisy else w, due)
                    pull = wire.pull()
            if together:
                wire.exchange(t, w + n if noisy else w)
            sim.end(t, w, dual=wire.dual)

    def _step(self, g: Tensor, w: Tensor, pull: Tensor, n: Tensor, wire: Duals) -> None:
        """Overwrite the gradients g with the models after one inner step, (N, d)."""
        curve = 1 + self.mu * wire.share * wire.degree
        for some in blocks(g):
            inside = pull[:, some]
            if self.noise == "inner":
                inside = inside - wire.degree * n[:, some]
            g[:, some].addcmul_(wire.share, inside, value=-1).mul_(-self.mu)
            g[:, some].add_(w[:, some]).div_(curve)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare the inner steps and the messages, in the order of time.

        One draw of noise is the same vector on all channels and in all messages of a round.
        """
        p = Relations(graph)
        sigma = self._published(graph, rounds, public)
        constants = [self._constants(graph, i) for i in range(graph.nodes)]
        w: dict[int, Expression] = dict.fromkeys(range(graph.nodes), p.public("w0"))
        z: dict[tuple[int, int], Form] = dict.fromkeys(graph.arcs, 0)
        moments = self._moments(graph, rounds, public).tolist()
        for t in p.rounds(rounds):
            sent_at = dict(zip(graph.arcs, moments[t - 1], strict=True))
            n: dict[int, Form] = dict.fromkeys(w, 0)
            for k in range(self.inner):
                arrives: dict[tuple[int, int], Form] = {}
                for i, near in enumerate(graph.neighbours):
                    if sigma[i] and (k == 0 or self.noise == "inner"):
                        n[i] = p.noise("n", sigma[i], i, k if self.noise == "inner" else None)
                    pull: Form = sum(sign(i, j) * z[i, j] for j in near)
                    if self.noise == "inner":
                        pull = pull - len(near) * n[i]
                    g = p.grad(i, at=w[i], index=None if self.inner == 1 else k)
                    new = self._moved(constants[i], len(near), w[i], g, pull)
                    w[i] = p.state("w", i, None if k == self.inner - 1 else k, eq=new)
                    step = 2 / constants[i][1]
                    for j in near:
                        due = sent_at[i, j] == k + 1
                        if due or self._early(k):
                            y = step * (z[i, j] - sign(i, j) * (w[i] + n[i])) - z[i, j]
                            sent = p.send(i, j, y, "y" if due else "early")
                        if due:
                            arrives[j, i] = sent
                z |= arrives
        return p

    def _moved(
        self,
        constants: tuple[Fraction, Fraction],
        degree: int,
        w: Expression,
        g: Expression,
        pull: Form,
    ) -> Expression:
        """Declare the model of a node after an inner step."""
        eta, gamma = constants
        mu = decimal(self.mu)
        return (gamma * (w - mu * g) + mu * eta * pull) / (gamma + eta * mu * degree)

    def _published(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> list[float]:
        """Return the noise level of every node."""
        if "sigma" not in public:
            return self._levels(graph, rounds)
        sigma: list[float] = public["sigma"].tolist()
        if len(sigma) != graph.nodes:
            raise LeakauditError(
                f"dpnorm: expected a public 'sigma' for each of {graph.nodes} nodes, "
                f"got {len(sigma)}"
            )
        return sigma

    def claims(
        self, graph: Graph, rounds: int, public: Mapping[str, Tensor] | None = None
    ) -> tuple[Claim, ...]:
        """Return Theorem 1 in both forms if `records` is known; without noise, convergence."""
        if not (self.sigma or self.epsilon):
            regular = "all nodes have the same number of neighbours (assumed for simplicity)"
            reached = Claim(
                "DP-Norm, Algorithm 1 and Theorem 2",
                "all nodes reach the optimum",
                assumes=("convex losses", "alpha = 0", regular),
            )
            return (reached,)
        if not self.records:
            return ()
        norm = NormAssumption("(A1) losses of a record with Lipschitz constant", self.lipschitz)
        deltas = self._sensitivities(graph)
        least = min(s / d for s, d in zip(self._levels(graph, rounds), deltas, strict=True))
        claims = []
        for form in get_args(Theorem):
            epsilon = self.epsilon or guaranteed(least, self.delta, rounds, form)
            needed = level(epsilon, self.delta, rounds, form)
            claim = Claim(
                source=f"DP-Norm, Theorem 1 {FORMS[form]}",
                promise="all messages of a node over all rounds are differentially private",
                epsilon=epsilon,
                delta=self.delta,
                adjacency="one record of one node is replaced",
                neighbours=Adjacency.REPLACE,
                variant=form,
                std=needed * max(deltas),
                rounds=rounds,
                assumes=(
                    str(norm),
                    "(A2) L-smooth losses",
                    "random permutation",
                    "one message per round",
                    *self._timing,
                ),
                gradient_norm=norm,
                sensitivity=replaced(self.lipschitz, self.batch, self.records),
                sampled=is_drawn(self.batch, self.records),
                # The tolerance covers rounding: `guaranteed` inverts `level` by bisection.
                met=needed <= least * (1 + 1e-9),
            )
            claims.append(claim)
        return tuple(claims)

    @property
    def _timing(self) -> tuple[str, ...]:
        """What Theorem 1 assumes of the times of messages, if this run does not keep it."""
        if self.order == "synchronous":
            return ()
        return ("synchronous exchanges (section V), which this run does not have",)

    def _early(self, k: int) -> bool:
        return self.resend and k == self.inner // 2 - 1

    def _sensitivities(self, graph: Graph) -> list[float]:
        """Return Delta_2 of every node."""
        gammas = (float(self._constants(graph, i)[1]) for i in range(graph.nodes))
        return [
            sensitivity(gamma, self.mu, self.inner, self.records, self.batch, self.lipschitz)
            for gamma in gammas
        ]

    def _levels(self, graph: Graph, rounds: int) -> list[float]:
        if self.epsilon is None:
            return [self.sigma] * graph.nodes
        needed = level(self.epsilon, self.delta, rounds, self.theorem)
        return [needed * d for d in self._sensitivities(graph)]
