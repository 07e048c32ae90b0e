"""D-PSGD: decentralised gradient descent with averaging, and decentralised DP-SGD."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from leakaudit.core.claim import Adjacency, Claim, NormAssumption
from leakaudit.core.errors import LeakauditError
from leakaudit.core.registry import param, victim
from leakaudit.core.trace import Graph
from leakaudit.protocols.batches import is_drawn, replaced
from leakaudit.protocols.blocks import blocks
from leakaudit.protocols.consensus import Mixing
from leakaudit.protocols.local import LocalSteps, Steps, above, least, normal
from leakaudit.protocols.optimiser import Optimiser
from leakaudit.protocols.simulation import SimulatedVictim, Simulation
from leakaudit.theory.relations import Expression, Relations, Turns

# Lian et al. 2017, Algorithm 1, with Metropolis weights; round t starts from the models w of round
# t - 1, and w0 is common:
#
#     order=combine    w_i <- sum_j W_ij w_j - alpha g_i(w_i)                        w is sent
#     order=adapt      h_i <- w_i - alpha g_i(w_i)        w_i <- sum_j W_ij h_j      h is sent
#
# With K > 1, further gradient steps follow the first before anything is sent. noise=step is DP-SGD
# as in the comparison of Fukami et al. (DP-Norm): every step adds N(0, sigma^2 I). Their text does
# not specify the position of the averaging; here `order` sets it. noise=message adds noise once per
# round to the model that is sent. With own=plain, a node averages its own model without this noise,
# which reduces the effect of a round's noise on later rounds.


@victim("dpsgd")
@dataclass(frozen=True)
class DPSGD(SimulatedVictim):
    """Nodes average their models with their neighbours' and follow their own gradients.

    Noise and clipping make it decentralised DP-SGD.
    """

    paper: ClassVar[str] = (
        "Lian et al. 2017, Algorithm 1 (D-PSGD); Fukami et al. (DP-Norm), Table II (DP-SGD)"
    )
    sends: ClassVar[Mapping[str, str]] = {
        "w": "model of a node, with its noise; with order=adapt, before the averaging",
    }
    leaks_what: ClassVar[str] = (
        "every gradient, (W w - w) / alpha, up to noise / alpha; "
        "of several steps, the sum of the gradients"
    )
    claims_what: ClassVar[str] = (
        "(epsilon, delta) of all messages if epsilon sets the noise (DP-Norm, Table II)"
    )
    separable: ClassVar[bool] = True
    regular: ClassVar[bool] = True
    step_size: ClassVar[str] = "alpha"

    alpha: float = param(0.1, "step size", "alpha, mu")
    slow: float = param(0.0, "the step size of round t is alpha / (1 + slow (t - 1))")
    steps: int = param(1, "gradient steps per round", "K")
    order: Literal["combine", "adapt"] = param(
        "combine", "combine: average, then step; adapt: step, then send and average"
    )
    batch: int = param(0, "records per step; 0 uses all", "B")
    clip: float = param(0.0, "norm to which each record's gradient is clipped; 0: none", "C, G")
    optimiser: Literal["sgd", "adam", "adamw", "adagrad", "rmsprop"] = param(
        "sgd", "optimiser of the steps, as in torch.optim"
    )
    momentum: float = param(0.0, "momentum of optimiser=sgd")
    nesterov: bool = param(False, "use Nesterov momentum")
    decay: float = param(0.0, "weight decay", "lambda")
    sigma: float = param(0.0, "standard deviation of the noise", "sigma")
    noise: Literal["message", "step"] = param(
        "message", "add noise to messages, or to every gradient step"
    )
    own: Literal["noised", "plain"] = param(
        "noised", "which copy of its own model a node averages if noise=message"
    )
    epsilon: float = param(
        0.0, "if above 0, sigma is what Table II of DP-Norm prints for DP-SGD", "epsilon"
    )
    delta: float = param(1e-3, "delta of that formula", "delta")
    horizon: int = param(0, "number of rounds in that formula", "R")
    samples: int = param(0, "records per node; set automatically when recording", "d_i")

    def __post_init__(self) -> None:
        above("dpsgd", alpha=self.alpha, steps=self.steps)
        least(
            "dpsgd",
            slow=self.slow,
            batch=self.batch,
            clip=self.clip,
            decay=self.decay,
            sigma=self.sigma,
            epsilon=self.epsilon,
            samples=self.samples,
        )
        if not self._optimiser.is_plain and self.noise == "step" and (self.sigma or self.epsilon):
            raise LeakauditError(
                "dpsgd: noise=step is the noise of DP-SGD without momentum or Adam; "
                "use noise=message, or remove the momentum"
            )
        if not 0 < self.delta < 1 or self.horizon < 0:
            raise LeakauditError(
                "dpsgd: expected 0 < delta < 1 and horizon >= 0, "
                f"got {self.delta} and {self.horizon}"
            )
        if self.epsilon and (self.sigma or self.noise != "step" or self.horizon < 1):
            raise LeakauditError(
                "dpsgd: epsilon sets the noise itself; "
                "set noise=step and horizon=ROUNDS, and leave sigma at 0"
            )

    def std(self, samples: int) -> float:
        """Return sigma, or the noise of Table II: sqrt(K R log(1 / delta)) mu / (epsilon d_i).

        Args:
            samples: Records per node, d_i; 0 if unknown.
        """
        if not self.epsilon:
            return self.sigma
        if not samples:
            raise LeakauditError(
                f"dpsgd: the noise for epsilon={self.epsilon:g} depends on the number of records "
                "per node; set samples=…"
            )
        spread = math.sqrt(self.steps * self.horizon * math.log(1 / self.delta))
        return spread * self.alpha / (self.epsilon * samples)

    @property
    def stationary(self) -> bool:
        """All rounds have the same relations if the step is constant."""
        return not self.slow

    def turns(self, rounds: int) -> Turns | None:
        """Return the turns: an order is used until all records were drawn. Needs `samples`."""
        return self._steps(0.0).turns(rounds, self.samples)

    def train(self, sim: Simulation) -> None:
        """Train; the generator draws noise and mini-batches."""
        mix = Mixing(sim.graph)
        std = self.std(sim.problem.samples)
        local = LocalSteps(self._steps(std), sim)
        w = sim.begin(sim.common)
        sent = w
        own = mix.own(w)
        base = torch.empty_like(w)

        def share(t: int, model: Tensor, before: Tensor) -> Tensor:
            if std and self.noise == "message":
                noise = normal(model, std, sim.generator)
                sim.recorder.state("xi", t, noise)
                model = model + noise
            return sim.send(t, "w", model, before=before)

        def averaged(sent: Tensor, model: Tensor) -> Tensor:
            for part in blocks(base):
                base[:, part] = mix(sent[:, part])
                if self.own == "plain":
                    base[:, part].addcmul_(own, model[:, part] - sent[:, part])
            return base

        for t in sim.rounds:
            if self.order == "combine":
                w = local(t, averaged(sent, w), at=w)
                sent = share(t, w, sent)
            else:
                half = local(t, w)
                sent = share(t, half, sent)
                w = averaged(sent, half)
            sim.end(t, w)

    def relations(self, graph: Graph, rounds: int, public: Mapping[str, Tensor]) -> Relations:
        """Declare both orders; a model that is sent without noise is identical to its message."""
        p = Relations(graph)
        mix = Mixing(graph)
        std = self.std(self.samples)
        steps = self._steps(std)
        noised = bool(std) and self.noise == "message"
        memory: dict[int, Expression] = {}
        w = dict.fromkeys(range(graph.nodes), p.public("w0"))
        sent = dict(w)

        def share(
            name: str, models: Mapping[int, Expression]
        ) -> tuple[dict[int, Expression], dict[int, Expression]]:
            told = {}
            if not noised:
                for i, model in models.items():
                    told[i] = p.send(i, graph.neighbours[i], model, "w")
                return told, told
            kept = {i: p.state(name, i, eq=model) for i, model in models.items()}
            for i, model in kept.items():
                told[i] = p.send(i, graph.neighbours[i], model + p.noise("xi", std, i), "w")
            return kept, told

        def averaged(
            i: int, sent: Mapping[int, Expression], models: Mapping[int, Expression]
        ) -> Expression:
            mixed = mix.declared(i, sent)
            if self.own == "plain":
                mixed = mixed + mix.weights[i, i] * (models[i] - sent[i])
            return mixed

        for _ in p.rounds(rounds):
            if self.order == "combine":
                moved = {}
                for i, model in w.items():
                    base = averaged(i, sent, w)
                    moved[i] = steps.declare(p, i, base, at=model, memory=memory)
                w, sent = share("w", moved)
                continue
            moved = {i: steps.declare(p, i, w[i], memory=memory) for i in w}
            half, sent = share("h", moved)
            w = {i: averaged(i, sent, half) for i in w}
            if noised and self.own == "plain":
                w = {i: p.state("w", i, eq=v) for i, v in w.items()}
        return p

    def claims(
        self, graph: Graph, rounds: int, public: Mapping[str, Tensor] | None = None
    ) -> tuple[Claim, ...]:
        """Return the guarantee stated for the printed noise, if that noise is used."""
        if not self.epsilon:
            return ()
        norm = NormAssumption("gradients of single records have norm at most G =", 1.0)
        claim = Claim(
            source="Fukami et al. (DP-Norm), Table II, row DP-SGD",
            promise="all messages of a node together are (epsilon, delta)-differentially private",
            epsilon=self.epsilon,
            delta=self.delta,
            adjacency="one record of a node's data is replaced by another",
            neighbours=Adjacency.REPLACE,
            std=self.std(self.samples),
            rounds=self.horizon,
            assumes=(str(norm), "mini-batches are drawn without replacement"),
            gradient_norm=norm,
            sensitivity=replaced(norm.limit, self.batch, self.samples),
            sampled=is_drawn(self.batch, self.samples),
        )
        return (claim,)

    @property
    def _optimiser(self) -> Optimiser:
        return Optimiser(self.optimiser, self.momentum, self.nesterov, self.decay)

    def _steps(self, std: float) -> Steps:
        of_step = std if self.noise == "step" else 0.0
        return Steps(
            self.alpha,
            self.steps,
            self.batch,
            self.clip,
            of_step,
            slow=self.slow,
            optimiser=self._optimiser,
        )
