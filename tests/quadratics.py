"""Random quadratic problems over all victims with Gaussian noise: protocol, curvatures,
adversary.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from impulses import Response, respond
from torch import Tensor

from leakaudit.core import registry
from leakaudit.core.adversary import Adversary
from leakaudit.core.trace import Graph
from leakaudit.protocols.declared import Protocol
from leakaudit.protocols.topology import make
from leakaudit.protocols.victim import Victim
from leakaudit.views.accounting.view_bound import ViewBound, view_bounds

Draw = Callable[[random.Random], dict[str, Any]]


def _dpsgd(rng: random.Random) -> dict[str, Any]:
    noise = rng.choice(["message", "message", "step"])
    own = rng.choice(["noised", "plain"]) if noise == "message" else "noised"
    return {
        "order": rng.choice(["combine", "adapt"]),
        "noise": noise,
        "own": own,
        "steps": rng.choice([1, 1, 2]),
        "slow": rng.choice([0.0, 0.5]),
    }


def _dpnorm(rng: random.Random) -> dict[str, Any]:
    inner = rng.choice([1, 2])
    noise = rng.choice(["round", "inner"])
    resend = inner == 2 and noise == "inner" and rng.random() < 0.5
    order = "synchronous" if resend else rng.choice(["synchronous", "random"])
    return {
        "order": order,
        "mu": _step(rng),
        "inner": inner,
        "noise": noise,
        "resend": resend,
        "alpha": rng.choice([0.0, 0.3]),
        "eta": rng.choice(["node", "common"]),
    }


def _step(rng: random.Random) -> float:
    return rng.choice([0.1, 0.2, 0.3])


DRAWS: dict[str, Draw] = {
    "dpsgd": lambda rng: {"alpha": _step(rng), **_dpsgd(rng)},
    "dpnorm": _dpnorm,
    "extra": lambda rng: {
        "alpha": _step(rng),
        "noise": rng.choice(["state", "message"]),
        "fade": rng.choice([1.0, 0.9]),
    },
    "nids": lambda rng: {"alpha": _step(rng), "noise": rng.choice(["state", "message"])},
    "tracking": lambda rng: {"alpha": _step(rng), "noise": rng.choice(["state", "message"])},
    "muffliato": lambda rng: {
        "lr": _step(rng),
        "gossips": rng.choice([1, 2]),
        "clip": 0.0,
        "accelerate": rng.random() < 0.5,
    },
    "gossip": lambda rng: {"lr": _step(rng), "steps": rng.choice([1, 2])},
    "dkm": lambda rng: {
        "gamma": _step(rng),
        "mechanism": "gaussian",
        "sensitivity": 0.5,
        "fade": rng.choice([0.0, 3.0]),
    },
    "dpadmm": lambda rng: {"steps": rng.choice([1, 2]), "rho": rng.choice([0.3, 1.0])},
    "dpadmmserver": lambda rng: {"fall": rng.random() < 0.5},
    "recal": lambda rng: {
        "noise_on": rng.choice(["x", "lam"]),
        "baton": rng.choice(["active", "full"]),
        "decay": rng.choice([1.0, 0.97]),
    },
    "rwadmm": lambda rng: {"update": "gradient", "theta": rng.choice([0.5, 1.0])},
}


@dataclass(frozen=True)
class Problem:
    """A protocol, the curvature of every node's loss, and the adversary of one node."""

    protocol: Protocol
    curvature: tuple[float, ...]
    adversary: Adversary
    node: int
    says: str

    def respond(self, curvature: tuple[float, ...]) -> Response:
        """Return the responses of its run."""
        made = self.protocol
        active = made.public.get("active")
        holders = made.graph.nodes - made.victim.centralised
        drawer = (lambda call: -1) if active is None else (lambda call: int(active[call]))
        return respond(
            made.victim,
            made.graph,
            made.rounds,
            curvature,
            made.public,
            holders=holders,
            drawer=drawer,
        )

    def bound(self, smoothness: float | None = None) -> ViewBound:
        """Return its bound at sensitivity 1."""
        return next(view_bounds(self.protocol, self.adversary, [self.node], smoothness=smoothness))


def path(nodes: int) -> Graph:
    """Return the graph of nodes in a row."""
    return Graph(nodes, tuple((i, i + 1) for i in range(nodes - 1)))


def protocol(name: str, graph: Graph, rounds: int, seed: int = 0, **constants: Any) -> Protocol:
    """Return a protocol with its schedule."""
    victim: Victim = registry.get("victims", name)(**constants)
    public: dict[str, Tensor] = dict(
        victim.schedule(graph, rounds, torch.Generator().manual_seed(seed))
    )
    return Protocol(victim, graph, rounds, public)


def problem(seed: int) -> Problem:
    """Draw a problem."""
    rng = random.Random(seed)
    name = rng.choice(sorted(DRAWS))
    nodes, rounds = rng.choice([3, 4, 5]), rng.choice([2, 3, 4, 5])
    constants = DRAWS[name](rng)
    if "sigma" in registry.parameters(registry.get("victims", name)):
        constants["sigma"] = rng.choice([0.3, 0.5, 1.0])
    if registry.get("victims", name).centralised:
        kind, graph = (
            "star with a server",
            Graph(nodes, tuple((i, nodes - 1) for i in range(nodes - 1))),
        )
    else:
        kind = rng.choice(["ring", "star", "complete", "path"])
        graph = path(nodes) if kind == "path" else make(kind, nodes, torch.Generator())
    holders = nodes - registry.get("victims", name).centralised
    node = rng.randrange(holders)
    scale = rng.choice([0.5, 2.0, 6.0])
    curvature = tuple(scale * rng.uniform(-1, 1) for _ in range(nodes))
    others = [n for n in range(nodes) if n != node]
    wires = [wire for i, j in graph.edges for wire in ((i, j), (j, i))]
    adversary = rng.choice(
        [
            Adversary(),
            Adversary(hears="none", corrupt=frozenset(rng.sample(others, rng.choice([1, 2])))),
            Adversary(hears=frozenset(rng.sample(wires, rng.randint(1, len(wires))))),
            Adversary(corrupt=frozenset(rng.sample(others, 1))),
        ]
    )
    made = protocol(name, graph, rounds, seed, **constants)
    says = f"seed {seed}: {name} {constants}, {kind} of {nodes}, {rounds} rounds, {adversary} listens to {node}, curvature {curvature}"
    return Problem(made, curvature, adversary, node, says)
