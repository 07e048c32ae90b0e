"""DP-RECAL (paper 001): its Theorem 4 with the noise in either place, and the independence of its activations."""

from __future__ import annotations

import itertools
import math

import torch

from leakaudit import api
from leakaudit.adversary import Adversary
from leakaudit.bounds import gaussian
from leakaudit.claims.row import Finding, Row
from leakaudit.claims.runs import protocol, run
from leakaudit.declared import Protocol
from leakaudit.relations import Bound, account, know
from leakaudit.verdict import against

ROUNDS, NODES, ALPHA = 160, 8, 0.01


def _declared(**settings: object) -> Protocol:
    noise = {"sigma": 0.4, "decay": 0.97, **settings}
    return protocol(victim="recal", nodes=NODES, graph="ring", rounds=ROUNDS, data="gaussians", model="logistic", set=noise)


def _busiest(made: Protocol) -> tuple[int, int]:
    """Return the node that is active most often, and how often."""
    counts = torch.bincount(made.public["active"][:-1], minlength=NODES)
    return int(counts.argmax()), int(counts.max())


def _bound(made: Protocol) -> Bound:
    return account(know(made.whole, Adversary()), made.whole.gradients(_busiest(made)[0]), 1.0)


def _against_claim(about: str, **settings: object) -> Finding:
    """Compare the exact epsilon of the busiest node with Theorem 4 at the schedule's PLF."""
    made = _declared(**settings)
    (claim,), bound, (node, plf) = made.victim.claims(made.graph, ROUNDS, made.public), _bound(made), _busiest(made)
    claimed, delta = claim.epsilon or math.inf, claim.delta or 0.0
    true = gaussian.epsilon(delta, bound.mu)
    says = f"PLF {plf}: Theorem 4 says ({claimed:.4g}, {delta:g}); the exact view has mu = {bound.mu:.4g}, epsilon {true:.4g}"
    figures = {"plf": plf, "mu": _plain(bound.mu), "epsilon": _plain(true), "claimed_epsilon": claimed, "node": node}
    return Finding(about, against(true > claimed), says, figures)


def _recovered() -> float:
    """Return the largest error of the gradients of a node whose noise is on lam, relative to the largest gradient."""
    settings = {"sigma": 0.5, "noise_on": "lam"}
    done = run(victim="recal", nodes=NODES, graph="ring", rounds=ROUNDS, data="gaussians", model="logistic", set=settings)
    node = int(torch.bincount(done.trace.public["active"][:-1]).argmax())
    leak, (x, y) = api.leaks(done.trace, nodes=[node])[0], done.truth.of(node)
    exact = [k for k in range(len(leak.std)) if float(leak.std[k]) < 1e-6]
    at = [t for t, i in enumerate(done.trace.public["active"][:-1].tolist()) if i == node]
    true = torch.stack([done.plan.task.gradient(done.truth.states["w"][t, node], x.double(), y) for t in at[: leak.combination.shape[1]]])
    error = leak.value[exact] - leak.combination[exact] @ true
    return float(error.abs().max() / true.abs().max()) if len(exact) else 1.0


def _theorem_4() -> tuple[Finding, ...]:
    error = _recovered()
    active = _against_claim("noise on lam", noise_on="lam")
    says = f"{active.says}; on a run with noise of .5 the gradients come back to {error:.1e}"
    return (
        _against_claim("noise on x"),
        Finding("noise on lam", active.verdict, says, {**active.figures, "relative_error": error}),
        _against_claim("noise on lam, the baton that adds up s_i x_i", noise_on="lam", baton="full"),
    )


def _schedule(activation: str, graph: str, rounds: int) -> list[int]:
    settings = {"activation": activation}
    made = protocol(victim="recal", nodes=NODES, graph=graph, rounds=rounds, data="gaussians", model="logistic", set=settings)
    active: list[int] = made.public["active"].tolist()
    return active


def _far(active: list[int]) -> int:
    """Count the moves to a node that is no neighbour on the ring."""
    return sum((b - a) % NODES not in (1, NODES - 1) for a, b in itertools.pairwise(active))


def _activation() -> tuple[Finding, ...]:
    rounds, share = 400, (NODES - 2) / NODES
    walk, free = _far(_schedule("walk", "ring", rounds)), _far(_schedule("iid", "complete", rounds))
    log_chance = rounds * math.log10(1 - share)
    spread = math.sqrt(rounds * share * (1 - share))
    says = (
        f"{rounds} moves of a walk on a ring of {NODES}: {walk} to a node that is no neighbour, where independent draws make about "
        f"{rounds * share:.0f}; their chance to make none is 1e{log_chance:.0f}. The convergence that rests on it stays empirical"
    )
    about = f"{free} of {rounds} moves, {abs(free - rounds * share) / spread:.1f} standard deviations from {rounds * share:.0f}"
    return (
        Finding(
            "a walk to neighbours", against(walk == 0 and log_chance < math.log10(ALPHA)), says, {"moves": walk, "log10_chance": log_chance}
        ),
        Finding("independent draws on a complete graph", against(abs(free - rounds * share) > 4 * spread), about, {"moves": free}),
    )


def _plain(value: float) -> float | str:
    return "inf" if value == math.inf else value


ROWS = (
    Row(10, "001", "DP-RECAL, Theorem 4", "(epsilon, delta) from the largest number of activations of a node (PLF)", _theorem_4),
    Row(11, "001", "DP-RECAL, Lemma 2", "activations are independent and uniform in expectation", _activation),
)
